"""FastStream through the gateway: an application that knows nothing of braidstream uses its streams.

Start a gateway (`braid gateway`), and set REDIS_URL to its address.
"""

import asyncio
import os

import redis.asyncio
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel

URL = os.environ.get("REDIS_URL", "redis://localhost:7101")
STREAM = "example:faststream"
broker = RedisBroker(URL, logger=None)
app = FastStream(broker, logger=None)


class Order(BaseModel):
    order: int
    amount: int


@broker.subscriber(stream=StreamSub(STREAM, group="billing", consumer="worker-1", polling_interval=50))
async def charge(order: Order) -> None:
    print(f"order {order.order}: {order.amount} charged", flush=True)
    if order.order == 3:
        app.exit()


@app.after_startup
async def send() -> None:
    for number in (1, 2, 3):
        await broker.publish(Order(order=number, amount=10 * number), stream=STREAM)


async def main() -> None:
    async with redis.asyncio.Redis.from_url(URL) as client:
        await client.delete(STREAM)
        await client.xgroup_create(STREAM, "billing", id="0", mkstream=True)
    await app.run()


if __name__ == "__main__":
    asyncio.run(main())
