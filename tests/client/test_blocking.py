"""XREAD: readers that wait and what wakes them, the caps of its reply, `$` and `+`.

Every test runs on the sync client and on its asyncio twin.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import redis
import redis.asyncio

import braidstream
import braidstream.asyncio
from braidstream.model.strand import Strand
from tests.support.clients import Opener, blocked
from tests.support.regions import apply, become
from tests.support.servers import Engine, Flavour

FAR = 99_999_999_999_999


def _answer(reader: "Future[Any]") -> list[tuple[str, dict[str, str]]]:
    [[name, found]] = reader.result(timeout=5)
    assert name == "x"
    return found


def test_block_stretches_the_sockets_timeout(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, socket_timeout=0.6, **opened.retry(0))
    client.xadd("x", {"n": "1"})
    started = time.monotonic()
    assert client.xread({"x": "$"}, block=1300) == []
    assert client.execute_command("XREAD", "BLOCK", 1000, "STREAMS", "x", "$") == []
    assert time.monotonic() - started >= 2.3


def test_an_engine_that_says_nothing_is_still_a_timeout_and_the_client_goes_on(
    opened: Opener, flavour: Flavour, background: ThreadPoolExecutor
) -> None:
    with Engine(flavour) as engine:
        become(engine)
        client = opened(engine.url, socket_timeout=0.2, **opened.retry(0), decode_responses=True)
        client.set("plain", "value")
        entry = client.xadd("x", {"n": "1"})
        reader = background.submit(client.xread, {"x": "$"}, block=300)
        blocked(engine)
        engine.pause()
        try:
            with pytest.raises(redis.TimeoutError):
                reader.result(timeout=5)
        finally:
            engine.resume()
        # The late reply must not be taken for the reply to the next command.
        assert [client.get("plain"), client.xrange("x")] == ["value", [(entry, {"n": "1"})]]


@pytest.mark.parametrize("block_ms", [0, 5000])
def test_a_waiting_reader_is_woken_by_an_append(
    opened: Opener, region: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor, block_ms: int
) -> None:
    region.xadd("x", {"n": "1"})
    client = opened(engine.url, decode_responses=True, socket_timeout=0.2)
    reader = background.submit(client.xread, {"x": "$"}, block=block_ms)
    blocked(engine)
    entry = region.xadd("x", {"n": "2"})
    assert _answer(reader) == [(entry, {"n": "2"})]


FAR_STRANDS = {"s": Strand(b"x", "s", 2), "c": Strand(b"x", "c", 2)}


def _reborn(writer: braidstream.Redis) -> object:
    writer.delete("x")
    return writer.xadd("x", {"n": "new"}, id=f"{FAR}-1")


CREATIONS: dict[str, Callable[[braidstream.Redis], object]] = {
    "the first write": lambda writer: writer.xadd("x", {"n": "new"}),
    "the first chosen ID": lambda writer: writer.xadd("x", {"n": "new"}, id=f"{FAR}-1"),
    "another region's first write": lambda writer: writer.run_plan(
        apply(FAR_STRANDS["s"], [((FAR, 0), [b"n", b"new"])])
    ),
    "another region's first chosen ID": lambda writer: writer.run_plan(
        apply(FAR_STRANDS["c"], [((FAR, 0), [b"n", b"new"])])
    ),
    "a stream that is deleted and starts over": _reborn,
}


@pytest.mark.parametrize("before", ["unborn", "generated", "chosen"])
@pytest.mark.parametrize("creation", CREATIONS)
def test_a_waiting_reader_is_woken_by_a_strand_that_was_not_there(
    opened: Opener,
    liberal: braidstream.Redis,
    engine: Engine,
    background: ThreadPoolExecutor,
    creation: str,
    before: str,
) -> None:
    with engine.client() as operator:
        operator.hset("bs:config", "writers", "1 2")
    if before != "unborn":
        liberal.xadd("x", {"n": "old"}, id="*" if before == "generated" else "5-5")
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xread, {"x": "$"}, block=5000)
    blocked(engine)
    CREATIONS[creation](liberal)
    assert [fields["n"] for _, fields in _answer(reader)] == ["new"]


def test_readers_of_several_streams_wait_for_any_of_them(
    opened: Opener, region: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    region.xadd("y", {"n": "1"})
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xread, {"y": "$", "x": "$"}, block=5000)
    blocked(engine)
    entry = region.xadd("x", {"n": "2"})
    assert _answer(reader) == [(entry, {"n": "2"})]


def test_a_cancelled_wait_leaves_the_asyncio_client_usable(region: braidstream.Redis, engine: Engine) -> None:
    async def story() -> tuple[Any, Any]:
        async with braidstream.asyncio.Redis.from_url(engine.url, decode_responses=True) as client:
            reader = asyncio.create_task(client.xread({"x": "$"}, block=0))
            await asyncio.to_thread(blocked, engine)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            entry = await client.xadd("x", {"n": "1"})
            return entry, await client.xrange("x")

    entry, found = asyncio.run(story())
    assert found == [(entry, {"n": "1"})]


class Interrupting(redis.asyncio.Connection):
    """Cancels a task just after something was sent for it, for the so many-th time."""

    sends: ClassVar = 0
    task: ClassVar[asyncio.Task[None]]

    async def _send_packed_command(self, command: Any) -> None:
        await super()._send_packed_command(command)  # type: ignore[misc]
        Interrupting.sends -= 1
        if Interrupting.sends == 0:
            asyncio.get_running_loop().call_soon(Interrupting.task.cancel)


@pytest.mark.parametrize("sends", range(1, 9))
def test_a_task_that_is_cancelled_while_an_append_is_sent_ends(
    region: braidstream.Redis, engine: Engine, sends: int
) -> None:
    """Also while its connection is made."""

    async def story() -> tuple[bool, list[Any]]:
        pool = redis.asyncio.ConnectionPool.from_url(engine.url, connection_class=Interrupting)
        async with braidstream.asyncio.Redis.from_pool(pool) as client:

            async def append() -> None:
                for _ in range(20):
                    await client.xadd("x", {"n": "1"})

            Interrupting.task, Interrupting.sends = asyncio.create_task(append()), sends
            await asyncio.wait([Interrupting.task])
            last = await client.xadd("x", {"n": "2"})
            return Interrupting.task.cancelled(), [last, *await client.xrevrange("x", count=1)]

    is_cancelled, (last, found) = asyncio.run(story())
    assert is_cancelled
    assert found == (last, {b"n": b"2"})


# Options of Redis 8.2 to 8.10 that these engines lack.


def _lengths(found: Any) -> list[tuple[str, int]]:
    return [(name, len(entries)) for name, entries in found]


def test_maxcount_and_maxsize_cap_the_whole_reply_of_xread(
    opened: Opener, region: braidstream.Redis, engine: Engine
) -> None:
    client = opened(engine.url, decode_responses=True)
    for name in "xy":
        for n in range(5):
            client.xadd(name, {"n": f"{n:0100}"})
    both = {"x": 0, "y": 0}
    assert _lengths(client.xread(both, max_count=7)) == [("x", 5), ("y", 2)]
    assert _lengths(client.xread(both, count=3, max_count=4)) == [("x", 3), ("y", 1)]
    assert _lengths(client.xread(both, max_count=5)) == [("x", 5)]
    assert _lengths(client.xread(both, max_size=1)) == [("x", 1)]  # at least one entry, always
    assert _lengths(client.xread(both, max_size=100_000)) == [("x", 5), ("y", 5)]
    capped = sum(length for _, length in _lengths(client.xread(both, max_size=600)))
    assert 1 < capped < 6
    for cap in ("0", "-1", "x"):
        with pytest.raises(redis.ResponseError, match="MAXCOUNT|value is not an integer or out of range"):
            client.execute_command("XREAD", "MAXCOUNT", cap, "STREAMS", "x", "0")
    with pytest.raises(redis.ResponseError, match="MAXCOUNT"):
        client.execute_command("XREAD", "COUNT", "5", "MAXCOUNT", "4", "STREAMS", "x", "0")


def test_plus_reads_the_last_entry_and_dollar_what_comes_after_it(
    opened: Opener, region: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    client = opened(engine.url, decode_responses=True)
    assert client.xread({"x": "+"}) == client.xread({"x": "$"}) == []
    region.xadd("x", {"n": "1"})
    last = region.xadd("x", {"n": "2"})
    assert client.xread({"x": "+"}) == [["x", [(last, {"n": "2"})]]]
    assert client.xread({"x": "+"}, count=5, block=1000) == [["x", [(last, {"n": "2"})]]]
    region.xdel("x", last)
    assert [fields for _, fields in client.xread({"x": "+"})[0][1]] == [{"n": "1"}]
    assert client.xread({"x": "$"}) == []
