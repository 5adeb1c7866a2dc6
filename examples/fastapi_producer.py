"""A web service that appends orders. A request that is repeated with the same Idempotency-Key appends once.

python examples/fastapi_producer.py
curl -X POST localhost:8000/orders -H 'Idempotency-Key: 4711' --json '{"order": 1, "amount": 30}'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header
from pydantic import BaseModel, PositiveInt

import braidstream
import braidstream.asyncio

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
client = braidstream.asyncio.from_url(URL, decode_responses=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await client.aclose()


app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    order: PositiveInt
    amount: PositiveInt


@app.post("/orders", status_code=202)
async def accept(order: Order, idempotency_key: Annotated[str, Header()]) -> dict[str, str]:
    """trace_fields() links the worker's span to the one of this request, if there is one."""
    fields = {"order": str(order.order), "amount": str(order.amount), **braidstream.trace_fields()}
    words = [word for pair in fields.items() for word in pair]
    entry = await client.execute_command(
        "XADD", "example:orders", "IDMP", "shop", idempotency_key, "*", *words
    )
    return {"id": entry}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
