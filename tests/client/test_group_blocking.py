"""XREADGROUP that waits: what wakes a consumer, and what ends the wait."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream.commands import xreadgroup
from braidstream.model.strand import Strand
from tests.support.clients import Opener, blocked
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

READ = ("XREADGROUP", "GROUP", "g", "ann")


def _bring(client: braidstream.Redis, strand: Strand, ms: int = 50) -> None:
    client.run_plan(apply(strand, [((ms, 0), [b"n", b"new"])]))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting consumers do not look up by themselves for a minute: who is served sooner was woken."""
    monkeypatch.setattr(xreadgroup, "QUEUE_SLICE_MS", 60_000)


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
CREATIONS: dict[str, Callable[[braidstream.Redis], object]] = {
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
    client = opened(engine.url, decode_responses=True, socket_timeout=20)
    started = time.monotonic()
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, count=limit, block=60_000)
    blocked(engine)
    APPENDS[append](stream)
    assert _woken(reader) == ["new"]
    assert time.monotonic() - started < 30, "woken, not timed out"
    assert stream.xpending("x", "g")["pending"] == 1


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("limit", [None, 1, 10])
@pytest.mark.parametrize("creation", CREATIONS)
def test_a_strand_born_while_a_consumer_waits_wakes_it(
    opened: Opener,
    stream: braidstream.Redis,
    engine: Engine,
    background: ThreadPoolExecutor,
    creation: str,
    limit: int | None,
) -> None:
    client = opened(engine.url, decode_responses=True)
    started = time.monotonic()
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, count=limit, block=60_000)
    blocked(engine)
    CREATIONS[creation](stream)
    assert _woken(reader) == ["new"]
    assert time.monotonic() - started < 30, "woken, not found by looking up after a while"
    assert client.xreadgroup("g", "ann", {"x": ">"}) == []


@pytest.mark.usefixtures("patient")
def test_every_waiting_consumer_hears_of_a_new_strand(
    stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    readers = []
    for me in range(4):
        client = client_of(engine, decode_responses=True)
        readers.append(background.submit(client.xreadgroup, "g", f"c{me}", {"x": ">"}, count=4, block=60_000))
        blocked(engine, me + 1)
    far, started = Strand(b"x", "s", 700), time.monotonic()
    _bring(stream, far, 1)
    for ms in (2, 3, 4):
        blocked(engine, 5 - ms)
        stream.run_plan(apply(far, [((ms, 0), [b"n", b"new"])], (ms - 1, 0)))
    assert [_woken(reader) for reader in readers] == [["new"]] * 4
    assert time.monotonic() - started < 30


def test_a_wait_in_a_pipeline_is_not_misled_by_an_append_that_was_refused(
    stream: braidstream.Redis, engine: Engine
) -> None:
    """Found by `make differential`, seed 826708960: the plan counted on a strand that was not made."""
    become(engine, id_mode="liberal")
    stream.xgroup_create("a{b}c", "g", id="$", mkstream=True)
    stream.xadd("a{b}c", {"n": "1"})
    stream.xreadgroup("g", "ann", {"a{b}c": ">"}, count=6)
    pipe = stream.pipeline(transaction=False)
    pipe.xadd("a{b}c", {"n": "2"}, id="0-2")
    pipe.xreadgroup("g", "ann", {"a{b}c": ">"}, count=3, block=1)
    refused, nothing = pipe.execute(raise_on_error=False)
    assert "equal or smaller" in str(refused)
    assert nothing == []


def test_a_read_in_a_pipeline_is_not_misled_by_an_append_that_was_refused(
    stream: braidstream.Redis, engine: Engine
) -> None:
    """Found by `make differential`, seed 56612187: the refusal made the plan forget the strands midway."""
    become(engine, id_mode="liberal")
    stream.xgroup_create("y", "g", id="5-0", mkstream=True)
    first = stream.pipeline(transaction=False)
    first.xreadgroup("g", "ann", {"y": ">"}, count=7, noack=True)
    first.xadd("y", {"n": "1"})
    _, last = first.execute()
    second = stream.pipeline(transaction=False)
    second.xadd("y", {"n": "2"}, id=last)
    second.xreadgroup("g", "ann", {"y": ">"}, count=4)
    refused, [[_, [[_, fields]]]] = second.execute(raise_on_error=False)
    assert "equal or smaller" in str(refused)
    assert fields == {"n": "1"}


def test_a_consumer_of_several_streams_waits_for_any_of_them(
    opened: Opener, stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    stream.xgroup_create("y", "g", id="0", mkstream=True)
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xreadgroup, "g", "ann", {"y": ">", "x": ">"}, block=60_000)
    blocked(engine)
    _bring(stream, Strand(b"x", "s", 2))
    assert _woken(reader) == ["new"]


ENDS: dict[str, Callable[[braidstream.Redis], object]] = {
    "XGROUP DESTROY": lambda client: client.xgroup_destroy("x", "g"),
    "DEL": lambda client: client.delete("x"),
}


@pytest.mark.parametrize("block_ms", [0, 3_000, 60_000])
@pytest.mark.parametrize("end", ENDS)
def test_a_group_that_goes_away_ends_the_wait_as_the_engine_ends_it(
    opened: Opener,
    stream: braidstream.Redis,
    engine: Engine,
    background: ThreadPoolExecutor,
    end: str,
    block_ms: int,
) -> None:
    client = opened(engine.url)
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, block=block_ms)
    blocked(engine)
    ENDS[end](stream)
    said = "^NOGROUP No such key 'x' or consumer group 'g' in XREADGROUP"
    if end == "DEL" and engine.version < (7, 2):
        said = "^UNBLOCKED the stream key no longer exists"
    with pytest.raises(redis.ResponseError, match=said):
        reader.result(timeout=20)


def test_the_destruction_of_another_group_does_not_end_the_wait(
    opened: Opener, stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    stream.xgroup_create("x", "other", id="0")
    client = opened(engine.url, decode_responses=True)
    reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, block=60_000)
    blocked(engine)
    stream.xgroup_destroy("x", "other")
    stream.xadd("x", {"n": "new"})
    assert _woken(reader) == ["new"]


@pytest.mark.parametrize("count", [None, 1])
def test_many_changes_of_groups_do_not_end_the_wait(
    stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor, count: int | None
) -> None:
    with client_of(engine, decode_responses=True) as client:
        reader = background.submit(client.xreadgroup, "g", "ann", {"x": ">"}, count, block=60_000)
        for number in range(xreadgroup.MOST_ERRORS + 5):
            blocked(engine)
            stream.xgroup_create("x", f"other-{number}", id="0")
        blocked(engine)
        stream.xadd("x", {"n": "new"})
        assert _woken(reader) == ["new"]


Unblock = Callable[..., Future[object]]
UNBLOCKED: dict[str, Callable[[braidstream.Redis], object]] = {
    "XREADGROUP": lambda client: client.xreadgroup("g", "ann", {"x": ">"}, block=60_000),
    "XREADGROUP COUNT": lambda client: client.xreadgroup("g", "ann", {"x": ">"}, count=1, block=60_000),
    "XREADGROUP, a native stream too": lambda client: client.xreadgroup(
        "g", "ann", {"x": ">", "native": ">"}, block=60_000
    ),
    "XREAD": lambda client: client.xread({"x": "$"}, block=60_000),
    "TREAD": lambda client: client.tread("log", 2, 1, block=60_000),
    "TREAD GROUP": lambda client: client.tread("log", block=60_000, group="g", start="LAST"),
    "TREAD RETRY": lambda client: client.tread(
        "log", block=60_000, group="g", start="LAST", retry=(5_000, 60_000)
    ),
}


@pytest.fixture
def unblock(stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor) -> Unblock:
    """Start a read, and end its wait by CLIENT UNBLOCK."""

    def started(client: braidstream.Redis, read: str, *, error: bool) -> Future[object]:
        with engine.client() as operator:
            operator.xgroup_create("native", "g", mkstream=True)
            stream.xadd("x", {"n": "1"}, id="60-1")  # a second strand: COUNT 1 waits in turn
            stream.xreadgroup("g", "ann", {"x": ">"})
            stream.twrite("log", "t", "1")
            reader = background.submit(UNBLOCKED[read], client)
            blocked(engine)
            [number] = [each["id"] for each in operator.client_list() if "b" in each["flags"]]
            assert operator.client_unblock(int(number), error=error)
            return reader

    return started


@pytest.mark.parametrize("read", UNBLOCKED)
def test_client_unblock_error_ends_the_wait_with_its_error(
    unblock: Unblock, engine: Engine, read: str
) -> None:
    with client_of(engine, decode_responses=True) as client:
        reader = unblock(client, read, error=True)
        with pytest.raises(redis.ResponseError, match="UNBLOCKED client unblocked via CLIENT UNBLOCK"):
            reader.result(timeout=20)


@pytest.mark.parametrize("read", UNBLOCKED)
def test_client_unblock_ends_the_wait_as_if_its_time_were_over(
    unblock: Unblock, engine: Engine, read: str
) -> None:
    with client_of(engine, decode_responses=True) as client:
        assert not unblock(client, read, error=False).result(timeout=20)


def test_a_wait_that_nothing_ends_returns_nil_in_time(
    opened: Opener, stream: braidstream.Redis, engine: Engine
) -> None:
    client = opened(engine.url, protocol=2, socket_timeout=1, **opened.retry(0))
    client.response_callbacks.clear()
    started = time.monotonic()
    assert client.execute_command(*READ, "BLOCK", 1200, "STREAMS", "x", ">") is None
    assert client.execute_command(*READ, "COUNT", 1, "BLOCK", 1200, "STREAMS", "x", ">") is None
    assert 2.4 <= time.monotonic() - started < 30


def test_own_entries_are_told_at_once_whatever_block_says(
    opened: Opener, stream: braidstream.Redis, engine: Engine
) -> None:
    client = opened(engine.url, protocol=2)
    client.response_callbacks.clear()
    assert client.execute_command(*READ, "BLOCK", 0, "STREAMS", "x", "0") == [[b"x", []]]


@pytest.mark.parametrize("options", [("MAXCOUNT", 5), ("CLAIM", 10**6), ("COUNT", 1)], ids=str)
def test_a_wait_ends_in_time_when_others_took_what_this_client_remembers_as_new(
    stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor, options: tuple[str | int, ...]
) -> None:
    stream.xadd("x", {"n": 1})
    stream.xreadgroup("g", "ann", {"x": ">"}, count=1)  # remembers where the group is
    with client_of(engine, decode_responses=True) as another:
        for strand in (Strand(b"x", "s", 1), Strand(b"x", "s", 2)):
            _bring(another, strand, ms=10**14)
        another.xreadgroup("g", "bob", {"x": ">"}, noack=True)
    reader = background.submit(stream.execute_command, *READ, *options, "BLOCK", 300, "STREAMS", "x", ">")
    assert not reader.result(timeout=60)


def test_count_is_filled_if_the_stream_was_replaced(opened: Opener, engine: Engine) -> None:
    become(engine)
    with client_of(engine, decode_responses=True) as other:
        other.xgroup_create("x", "g", id="0", mkstream=True)
        client = opened(engine.url, decode_responses=True)
        client.xinfo_groups("x")
        for number in range(4):
            other.xadd("y", {"n": number})
        other.copy("y", "x", replace=True)
        other.xgroup_create("x", "g", id="0")
    assert _number(client.xreadgroup("g", "ann", {"x": ">"}, count=6, block=2)) == 4


def _number(answer: Any) -> int:
    [(_, entries)] = answer.items() if isinstance(answer, dict) else answer
    return len(entries)
