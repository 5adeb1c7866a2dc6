"""XREADGROUP that waits: what wakes a consumer, what ends the wait, and how a crowd shares a stream."""

import asyncio
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream.strand import Strand
from tests.support.clients import Opener
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

CROWD = 64
ENTRIES = 2_000
BATCH = 8
READ = ("XREADGROUP", "GROUP", "g", "ann")


def _blocked(engine: Engine, consumers: int = 1) -> None:
    with engine.client() as operator:
        eventually(
            lambda: operator.info("clients")["blocked_clients"] == consumers,
            within_s=20,
            why=f"{consumers} consumers should be waiting in the engine",
        )


def _bring(client: braidstream.Redis, strand: Strand, ms: int = 50) -> None:
    client.run_plan(apply(strand, [((ms, 0), [b"n", b"new"])]))


@pytest.fixture
def stream(engine: Engine) -> braidstream.Redis:
    """A stream that regions 1 and 2 write, with an empty group."""
    become(engine, id_mode="semi-strict")
    with engine.client() as operator:
        operator.hset("bs:config", "writers", "1 2")
    with client_of(engine, decode_responses=True) as client:
        client.xgroup_create("x", "g", id="0", mkstream=True)
        yield client


APPENDS: dict[str, Callable[[braidstream.Redis], object]] = {
    "ours": lambda client: client.xadd("x", {"n": "new"}),
    "ours, a chosen ID": lambda client: client.xadd("x", {"n": "new"}, id="60-1"),
    "region 2": lambda client: _bring(client, Strand(b"x", "s", 2)),
}
BIRTHS: dict[str, Callable[[braidstream.Redis], object]] = {
    "region 2, a chosen ID": lambda client: _bring(client, Strand(b"x", "c", 2)),
    "a region nobody had heard of": lambda client: _bring(client, Strand(b"x", "s", 700)),
}


def _woken(reader: Any) -> list[str]:
    [[name, entries]] = reader.result(timeout=20)
    assert name == "x"
    return [fields["n"] for _, fields in entries]


@pytest.mark.parametrize("limit", [None, 1, 10])
@pytest.mark.parametrize("append", APPENDS)
def test_a_waiting_consumer_is_woken_by_an_append_to_any_strand(
    opened: Opener,
    stream: braidstream.Redis,
    engine: Engine,
    background: ThreadPoolExecutor,
    append: str,
    limit: int | None,
) -> None:
    client = opened(engine.url, decode_responses=True, socket_timeout=0.5)
    started = time.monotonic()
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, count=limit, block=60_000)
    _blocked(engine)
    APPENDS[append](stream)
    assert _woken(reader) == ["new"]
    assert time.monotonic() - started < 30, "woken, not timed out"
    assert stream.xpending("x", "g")["pending"] == 1


@pytest.mark.parametrize("birth", BIRTHS)
def test_a_strand_born_while_a_consumer_waits_is_read_before_the_wait_ends(
    opened: Opener, stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor, birth: str
) -> None:
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, count=1, block=700)
    _blocked(engine)
    BIRTHS[birth](stream)
    assert _woken(reader) == ["new"]
    assert client.xreadgroup("g", "ann", {"x": ">"}) == []


def test_a_consumer_of_several_streams_waits_for_any_of_them(
    opened: Opener, stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    stream.xgroup_create("y", "g", id="0", mkstream=True)
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xreadgroup, "g", "ann", {"y": ">", "x": ">"}, block=60_000)
    _blocked(engine)
    _bring(stream, Strand(b"x", "s", 2))
    assert _woken(reader) == ["new"]


ENDS: dict[str, Callable[[braidstream.Redis], object]] = {
    "XGROUP DESTROY": lambda client: client.xgroup_destroy("x", "g"),
    "DEL": lambda client: client.delete("x"),
}


@pytest.mark.parametrize("block_ms", [0, 3_000, 60_000])
@pytest.mark.parametrize("end", ENDS)
def test_a_group_that_goes_away_ends_the_wait_with_nogroup(
    opened: Opener,
    stream: braidstream.Redis,
    engine: Engine,
    background: ThreadPoolExecutor,
    end: str,
    block_ms: int,
) -> None:
    client = opened(engine.url)
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, block=block_ms)
    _blocked(engine)
    ENDS[end](stream)
    with pytest.raises(
        redis.ResponseError, match="^NOGROUP No such key 'x' or consumer group 'g' in XREADGROUP"
    ):
        reader.result(timeout=20)


def test_the_destruction_of_another_group_does_not_end_the_wait(
    opened: Opener, stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    stream.xgroup_create("x", "other", id="0")
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, block=60_000)
    _blocked(engine)
    stream.xgroup_destroy("x", "other")
    stream.xadd("x", {"n": "new"})
    assert _woken(reader) == ["new"]


def test_a_wait_that_nothing_ends_returns_nil_in_time(
    opened: Opener, stream: braidstream.Redis, engine: Engine
) -> None:
    client = opened(engine.url, protocol=2, socket_timeout=0.5, **opened.retry(0))
    client.response_callbacks.clear()
    started = time.monotonic()
    assert client.execute_command(*READ, "BLOCK", 700, "STREAMS", "x", ">") is None
    assert client.execute_command(*READ, "COUNT", 1, "BLOCK", 700, "STREAMS", "x", ">") is None
    assert 1.4 <= time.monotonic() - started < 10


def test_own_entries_are_told_at_once_whatever_block_says(
    opened: Opener, stream: braidstream.Redis, engine: Engine
) -> None:
    client = opened(engine.url, protocol=2)
    client.response_callbacks.clear()
    assert client.execute_command(*READ, "BLOCK", 0, "STREAMS", "x", "0") == [[b"x", []]]


@pytest.mark.parametrize("limit", [1, 10])
def test_a_crowd_shares_a_stream_nothing_twice_nothing_lost_nobody_starved(
    stream: braidstream.Redis, engine: Engine, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    got = asyncio.run(_crowd(engine, stream, limit))
    served = [len(values) for values in got]
    with capsys.disabled():
        print(
            f"\n{engine.flavour}, COUNT {limit}: {CROWD} consumers of {ENTRIES} entries got "
            f"{min(served)} to {max(served)}, median {statistics.median(served):.0f}"
        )
    everything = [value for values in got for value in values]
    twice = {value for value in everything if everything.count(value) > 1}
    assert not twice, "duplicated"
    assert not {str(n) for n in range(ENTRIES)} - set(everything), "lost"
    assert len(everything) == ENTRIES
    assert min(served) > 0, "starved"
    assert stream.xpending("x", "g")["pending"] == ENTRIES


async def _crowd(engine: Engine, stream: braidstream.Redis, limit: int) -> list[list[str]]:
    """What each of the crowd got, while regions 1, 2 and 700 write in turn."""
    _bring(stream, Strand(b"x", "s", 700), ms=1)
    stream.xreadgroup("g", "first", {"x": ">"}, noack=True)
    got: list[list[str]] = [[] for _ in range(CROWD)]
    async with braidstream.asyncio.Redis.from_url(engine.url, decode_responses=True) as client:

        async def consume(me: int) -> None:
            while sum(map(len, got)) < ENTRIES:
                reply = await client.xreadgroup("g", f"c{me}", {"x": ">"}, count=limit, block=1_000)
                for _, entries in reply:
                    assert len(entries) <= limit
                    got[me] += [fields["n"] for _, fields in entries]

        consumers = [asyncio.create_task(consume(me)) for me in range(CROWD)]
        await asyncio.to_thread(_blocked, engine, CROWD)
        await asyncio.to_thread(_write, stream)
        await asyncio.wait_for(asyncio.gather(*consumers), 60)
    return got


def _write(stream: braidstream.Redis) -> None:
    """Entries 0, 1, 2 ... by turns of the writers, a few at a time."""
    ends = {Strand(b"x", "s", 2): (0, 0), Strand(b"x", "s", 700): (1, 0)}
    turns = count()
    for first in range(0, ENTRIES, BATCH):
        values = [str(n) for n in range(first, min(first + BATCH, ENTRIES))]
        turn = next(turns)
        if turn % 3 == 0:
            pipe = stream.pipeline(transaction=False)
            for value in values:
                pipe.xadd("x", {"n": value})
            pipe.execute()
            continue
        strand = list(ends)[turn % 3 - 1]
        natives = [(10 + turn, n) for n in range(len(values))]
        batch = [(native, [b"n", value.encode()]) for native, value in zip(natives, values, strict=True)]
        assert stream.run_plan(apply(strand, batch, ends[strand])) == len(batch)
        ends[strand] = natives[-1]
