"""Native streams for tests of `braid adopt`, and their adoption."""

from typing import Any

import redis

import braidstream
from braidstream.operations.adoption import adopt
from tests.support.servers import Engine


def bare_client(engine: Engine) -> redis.Redis:
    return redis.Redis.from_url(engine.url, decode_responses=True)


def native_stream(bare: redis.Redis, name: str = "orders", entries: int = 20) -> list[Any]:
    """A native stream with two groups: one has read 10 and acknowledged 4, one has read nothing."""
    for at in range(entries):
        bare.xadd(name, {"at": at})
    bare.xgroup_create(name, "billing", 0)
    bare.xgroup_create(name, "audit", "$")
    [[_, taken]] = bare.xreadgroup("billing", "ann", {name: ">"}, count=10)
    bare.xack(name, "billing", *(entry for entry, _ in taken[:4]))
    return bare.xrange(name)


def adopt_here(client: braidstream.Redis, name: str = "orders") -> None:
    assert client.run_plan(adopt(name.encode())).problem == ""
