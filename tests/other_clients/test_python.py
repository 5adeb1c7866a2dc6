"""redis-py's own clients, and applications of streams from PyPI, unchanged, against the gateway."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import walrus
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from tests.support.clients import Opener
from tests.support.gateways import Served


@pytest.fixture(params=["sync", "asyncio"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener(request.param, stack)


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_produces_consumes_and_retries(served: Served, opened: Opener, protocol: int) -> None:
    client = opened.bare(served.url, protocol=protocol, decode_responses=True)
    client.xgroup_create("orders", "workers", id="0", mkstream=True)
    ids = [client.xadd("orders", {"n": n}) for n in range(10)]
    read = client.xreadgroup("workers", "ann", {"orders": ">"}, count=10)
    entries = read["orders"][0] if isinstance(read, dict) else read[0][1]
    assert [entry for entry, _ in entries] == ids
    assert client.xack("orders", "workers", *ids[:9]) == 9
    assert client.xautoclaim("orders", "workers", "bob", 0)[1] == [(ids[9], {"n": "9"})]
    assert client.xinfo_stream("orders")["length"] == 10
    assert {"orders"} == set(client.keys("*"))
    assert list(client.scan()[1]) == ["orders"]
    pipe = client.pipeline(transaction=True)
    pipe.xadd("orders", {"n": 10})
    pipe.incr("count")
    pipe.xlen("orders")
    assert pipe.execute()[1:] == [1, 11]
    pipe = client.pipeline(transaction=False)
    for n in range(100):
        pipe.xadd("orders", {"n": n})
        pipe.set(f"k{n}", n)
    assert len(pipe.execute()) == 200
    assert client.xlen("orders") == 111


def test_walrus_containers_and_consumer_groups_work(served: Served) -> None:
    db = walrus.Database(port=served.port)
    stream = db.Stream("events")
    ids = [stream.add({"n": n}) for n in range(5)]
    assert len(stream) == 5
    assert [entry for entry, _ in stream[ids[1] : ids[3]]] == ids[1:4]
    group = db.consumer_group("workers", ["events"])
    group.create()
    group.set_id(id="0")
    [(name, read)] = group.read(count=3)
    assert (name, [entry for entry, _ in read]) == (b"events", ids[:3])
    assert group.events.ack(*ids[:3]) == 3
    assert [entry for entry, _ in group.events.read()] == ids[3:]
    assert [row["message_id"] for row in group.events.pending()] == ids[3:]
    other = group.consumer("rescuer")
    assert [entry for entry, _ in other.events.claim(*ids[3:])] == ids[3:]
    assert stream.trim(2, approximate=False) == 3
    db.Hash("plain").update(a=1)
    assert db.Hash("plain").as_dict(decode=True) == {"a": "1"}
    db.close()


def test_a_faststream_application_consumes_in_a_group(served: Served) -> None:
    with redis.Redis.from_url(served.url) as client:
        client.xgroup_create("orders", "workers", id="0", mkstream=True)

    async def whole() -> list[Any]:
        broker = RedisBroker(served.url)
        seen, done = list[Any](), asyncio.Event()

        @broker.subscriber(stream=StreamSub("orders", group="workers", consumer="ann", polling_interval=50))
        async def handle(number: int) -> None:
            seen.append(number)
            if len(seen) == 20:
                done.set()

        app = FastStream(broker)
        async with asyncio.timeout(30):
            running = asyncio.create_task(app.run())
            async with RedisBroker(served.url) as producer:
                for number in range(20):
                    await producer.publish(number, stream="orders")
                await done.wait()
            app.exit()
            await running
        return seen

    assert asyncio.run(whole()) == list(range(20))
