"""A web service that also handles orders: the consumer runs in the event loop of the web server.

python examples/fastapi_worker.py
curl localhost:8000/charged
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

import braidstream.asyncio

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
client = braidstream.asyncio.from_url(URL)
consumer = braidstream.asyncio.Consumer(client, "example:orders", group="example:billing")
numbers = list[int]()


class Order(BaseModel):
    order: int
    amount: int


@consumer.handler
async def charge(order: Order) -> None:
    await asyncio.sleep(0.01)  # your work
    numbers.append(order.order)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The web server hears SIGTERM, and then ends this: so the consumer need not listen to signals."""
    running = asyncio.create_task(consumer.run(signals=False))
    yield
    consumer.stop()
    await running
    await client.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/charged")
async def charged() -> list[int]:
    return sorted(numbers)


@app.get("/readyz")
async def readyz(response: Response) -> None:
    response.status_code = 200 if consumer.is_ready else 503


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
