"""An application of FastStream whose entries come from a braidstream worker.

FastStream gives lifespan, dependencies and logging. The worker gives retries, dead letters and take-over: an
entry of a process that died is handled elsewhere.

python examples/faststream_worker.py
"""

import asyncio
import os

from faststream import Context, ContextRepo, Depends, FastStream, apply_types
from faststream.redis import RedisBroker
from pydantic import BaseModel

import braidstream.asyncio

# Of several regions: if one dies, the worker goes on in the next one.
URLS = os.environ.get("REGION_URLS", "redis://localhost:6379").split()
client = braidstream.asyncio.MultiRegion(URLS)
consumer = braidstream.asyncio.Consumer(
    client,
    "example:orders",
    group="example:billing",
    prefetch=0,
    claim_after=float(os.environ.get("CLAIM_AFTER", "60")),
)
# An application of FastStream needs a broker. This one may have subscribers too, for lists and channels.
app = FastStream(RedisBroker(URLS[0]))


class Order(BaseModel):
    order: int
    amount: int


def price(factor: int = Context()) -> int:
    return 2 * factor


@consumer.handler
@apply_types(context__=app.context)
async def charge(order: Order, factor: int = Depends(price)) -> None:
    await asyncio.sleep(0.1)  # your work
    print(f"order {order.order}: {factor * order.amount} charged", flush=True)
    await client.xadd("example:charged", {"order": order.order, "process": os.getpid()})


@app.on_startup
async def start(context: ContextRepo) -> None:
    context.set_global("factor", 5)


@app.after_startup
async def work() -> None:
    """FastStream hears SIGTERM, and then stops the worker."""
    app.context.set_global("running", asyncio.create_task(consumer.run(signals=False)))


@app.on_shutdown
async def stop() -> None:
    consumer.stop()
    await app.context.get("running")
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(app.run())
