"""An asyncio worker: orders of one customer run one after the other, different customers at the same time."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

from pydantic import BaseModel, PositiveInt

import braidstream
import braidstream.asyncio
from braidstream import Message

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
ORDERS = 6


class Order(BaseModel):
    customer: str
    number: PositiveInt


async def main() -> None:
    async with braidstream.asyncio.from_url(URL) as client:
        await client.delete("example:shipping")
        for number in range(1, ORDERS + 1):
            await client.xadd(
                "example:shipping", {"customer": "ada" if number % 2 else "grace", "number": number}
            )

        consumer = braidstream.asyncio.Consumer(
            client, "example:shipping", group="packers", key="customer", timeout=10
        )
        shipped = dict[str, list[int]]()

        @consumer.middleware
        async def stop_at_the_end(
            messages: Sequence[Message], call_next: Callable[[], Awaitable[None]]
        ) -> None:
            await call_next()
            if sum(map(len, shipped.values())) == ORDERS:
                consumer.stop()

        @consumer.handler
        async def ship(order: Order) -> None:
            await asyncio.sleep(0.01)  # your work
            shipped.setdefault(order.customer, []).append(order.number)

        await consumer.run()
        for customer in sorted(shipped):
            print(f"{customer}: {shipped[customer]}")


if __name__ == "__main__":
    asyncio.run(main())
