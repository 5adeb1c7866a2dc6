"""A broker for taskiq over a braidstream worker: a task of a process that died runs again elsewhere.

taskiq worker --workers 2 examples.taskiq_broker:broker
python -m examples.taskiq_broker
"""

import asyncio
import os
from collections.abc import AsyncGenerator

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

import braidstream.asyncio
from braidstream import Message

# A server, a cluster or a Sentinel group. With several regions, workers go on in the next one if one dies.
URLS = os.environ.get("REGION_URLS", "redis://localhost:6379").split()

Client = braidstream.asyncio.Redis | braidstream.asyncio.RedisCluster


class BraidBroker(AsyncBroker):
    """Tasks are entries of a stream, acknowledged when taskiq says so: by default after they have run."""

    def __init__(self, client: Client, stream: str, *, claim_after: float = 60) -> None:
        super().__init__()
        self.client = client
        self.stream, self.claim_after = stream, claim_after
        self.consumer: braidstream.asyncio.Consumer | None = None

    async def kick(self, message: BrokerMessage) -> None:
        await self.client.xadd(self.stream, {"task": message.message})

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        taken = asyncio.Queue[AckableMessage]()
        # prefetch=0: a task that kills its process counts as an attempt, and ends in the dead letters.
        self.consumer = braidstream.asyncio.Consumer(
            self.client,
            self.stream,
            group="taskiq",
            concurrency=100,
            prefetch=0,
            claim_after=self.claim_after,
        )

        @self.consumer.handler
        async def hand_over(message: Message) -> None:
            done = asyncio.Event()
            await taken.put(AckableMessage(data=message.raw[b"task"], ack=done.set))
            await done.wait()

        self.running = asyncio.create_task(self.consumer.run(signals=False))
        while not self.running.done():
            arrived = asyncio.create_task(taken.get())
            await asyncio.wait({arrived, self.running}, return_when=asyncio.FIRST_COMPLETED)
            if arrived.done():
                yield arrived.result()
        await self.running  # raises why it ended

    async def shutdown(self) -> None:
        if self.consumer is not None:
            self.consumer.stop()
            await self.running
        await self.client.aclose()
        await super().shutdown()


broker = BraidBroker(
    braidstream.asyncio.MultiRegion(URLS),
    "example:tasks",
    claim_after=float(os.environ.get("CLAIM_AFTER", "60")),
)


@broker.task("charge")
async def charge(order: int, amount: int) -> None:
    await asyncio.sleep(0.1)  # your work
    print(f"order {order}: {amount} charged", flush=True)
    await broker.client.xadd("example:tasks:charged", {"order": order, "process": os.getpid()})


async def main() -> None:
    await broker.startup()
    for number in range(1, int(os.environ.get("ORDERS", "3")) + 1):
        await charge.kiq(number, 10 * number)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
