"""Logs: dense offsets, TWRITE, TREAD, TEVICT, TCFGSET. docs/reference/commands.md has the grammar."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

import braidstream
from tests.support.matrix import on_every_engine
from tests.support.servers import Engine

flavour = on_every_engine

GENERATED = "its offsets are generated. Use TWRITE."


def test_offsets_are_dense_from_one_and_entries_are_read_by_them(region: braidstream.Redis) -> None:
    assert [region.twrite("log", f"tag{n}", f"msg{n}") for n in (1, 2)] == [1, 2]
    assert region.twrite("log", entries=[("a", "1"), ("b", "2"), ("c", "3")]) == [3, 4, 5]
    assert region.tread("log", 1, 2) == [(1, "tag1", "msg1"), (2, "tag2", "msg2")]
    assert region.tread("log", 4, 10) == [(4, "b", "2"), (5, "c", "3")]
    assert region.tread("log", 6, 10) == []


def test_evicted_entries_are_none_in_their_places(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("t", str(n)) for n in range(1, 7)])
    assert region.tevict("log", 2) == 2
    region.xdel("log", "0-4", "0-6")
    expected = [None, None, (3, "t", "3"), None, (5, "t", "5"), None]
    assert region.tread("log", 1, 10) == expected
    assert region.tread("log", 6, 10) == [None]
    assert region.tread("log", 7, 10) == []
    assert region.tread("log", 2, 3) == expected[1:4]


def test_skip_leaves_out_missing_entries_and_goes_on_to_the_next(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("t", str(n)) for n in range(1, 9)])
    region.tevict("log", 2)
    region.xdel("log", "0-5")
    assert [row[0] for row in region.tread("log", 1, 3, skip=True)] == [3, 4, 6]
    assert region.tread("log", 9, 3, skip=True) == []


def test_withinfo_tells_the_first_and_the_last_offset(region: braidstream.Redis) -> None:
    assert region.tread("log", 1, 0, withinfo=True) == ((1, 0), [])
    region.twrite("log", entries=[("t", str(n)) for n in range(1, 6)])
    assert region.tread("log", 1, 0, withinfo=True) == ((1, 5), [])
    region.tevict("log", 2)
    assert region.tread("log", 2, 2, withinfo=True) == ((3, 5), [None, (3, "t", "3")])
    region.tevict("log", 100)
    assert region.tread("log", 5, 9, withinfo=True) == ((6, 5), [None])


def test_an_offset_is_never_given_twice(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("t", "x")] * 3)
    region.xdel("log", "0-3")
    assert region.twrite("log", "t", "after XDEL") == 4
    region.tevict("log", 4)
    assert region.twrite("log", "t", "after TEVICT") == 5
    region.delete("log")
    assert not region.exists("log")
    assert region.tread("log", 1, 10, withinfo=True) == ((6, 5), [None] * 5)
    assert region.twrite("log", "t", "after DEL") == 6
    assert region.tread("log", 5, 10) == [None, (6, "t", "after DEL")]
    region.flushdb()
    assert region.twrite("log", "t", "after FLUSHDB") == 7


def test_a_log_whose_key_was_deleted_behind_our_back_gives_no_offset_twice(
    region: braidstream.Redis, engine: Engine
) -> None:
    region.twrite("log", entries=[("t", "x")] * 3)
    with engine.client() as operator:
        operator.delete("bs:1:t:{log}")
    offset = region.twrite("log", "t", "later")
    assert offset > 1_000_000
    assert region.twrite("log", "t", "next") == offset + 1
    assert region.tread("log", offset, 5) == [(offset, "t", "later"), (offset + 1, "t", "next")]
    for start in (1, 3, 10_001, offset - 10**15):
        with pytest.raises(redis.ResponseError, match="JUMP .* Continue there"):
            region.tread("log", start, 100_000)
    assert region.tread("log", offset - 50, 51) == [None] * 50 + [(offset, "t", "later")]
    assert region.tread("log", 1, 1, skip=True) == [(offset, "t", "later")]


@pytest.mark.parametrize("entries", [1, 3])
def test_backlog_keeps_at_least_so_many(region: braidstream.Redis, entries: int) -> None:
    for _ in range(500 // entries):
        last = region.twrite("log", entries=[("t", "x")] * entries, backlog=150)[-1]
    length = region.xlen("log")
    assert 150 <= length < 250 + entries
    assert region.tread("log", last - 149, 150) == [(n, "t", "x") for n in range(last - 149, last + 1)]


def test_tcfgset_sets_the_backlog_of_every_write(region: braidstream.Redis) -> None:
    assert region.tcfgset("log", backlog=120)
    assert region.exists("log")
    for _ in range(50):
        region.twrite("log", entries=[("t", "x")] * 10)
    assert 120 <= region.xlen("log") < 230
    facts = region.xinfo_stream("log")
    assert (facts["backlog"], facts["pending-max"], facts["last-offset"]) == (120, 1000, 500)
    assert region.tcfgset("log", backlog=0, pending=7)
    for _ in range(30):
        region.twrite("log", entries=[("t", "x")] * 10)
    assert region.xlen("log") >= 420
    assert region.xinfo_stream("log")["pending-max"] == 7


def test_tevict_keeps_at_least_so_many(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("t", "x")] * 1_000)
    assert 500 < region.tevict("log", keep=400) <= 600
    assert region.tevict("log", keep=5_000) == 0
    assert region.tevict("log", keep=0) >= 300
    assert region.tevict("missing", 5) == region.tevict("missing", keep=5) == 0


def test_a_long_log_is_evicted_in_steps(region: braidstream.Redis) -> None:
    for _ in range(26):
        region.twrite("log", entries=[("t", "x")] * 10_000)
    assert region.tevict("log", 259_990) == 259_990
    assert region.tread("log", 1, 0, withinfo=True) == ((259_991, 260_000), [])
    assert region.tevict("log", 10**12) == 10


def _later(call: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(0.2, call)
    timer.start()
    return timer


def test_block_waits_for_the_offset_and_not_for_less(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")

    def write() -> None:
        region.twrite("log", "t", "2")
        time.sleep(0.1)
        region.twrite("log", entries=[("t", "3"), ("t", "4")])

    timer = _later(write)
    assert region.tread("log", 3, 5, block=5_000) == [(3, "t", "3"), (4, "t", "4")]
    timer.join()
    assert region.tread("log", 4, 5, block=5_000) == [(4, "t", "4")]
    assert region.tread("log", 5, 5, block=20) == []


def test_block_waits_for_a_log_that_does_not_exist(region: braidstream.Redis) -> None:
    timer = _later(lambda: region.twrite("log", "t", "1"))
    assert region.tread("log", 1, 5, block=5_000) == [(1, "t", "1")]
    timer.join()
    assert region.tread("none", 1, 5, block=20, withinfo=True) == ((1, 0), [])


def test_block_waits_on_after_a_deletion(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")

    def delete_and_write() -> None:
        region.delete("log")
        time.sleep(0.1)
        region.twrite("log", "t", "2")

    timer = _later(delete_and_write)
    assert region.tread("log", 2, 5, block=5_000) == [(2, "t", "2")]
    timer.join()


def test_stream_commands_read_a_log(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("a", "1"), ("b", "2"), ("c", "3")])
    entries = [(f"0-{n}", {"t": tag, "e": str(n)}) for n, tag in enumerate("abc", 1)]
    assert region.xrange("log") == entries
    assert region.xrevrange("log", count=1) == entries[2:]
    assert region.xread({"log": "0-1"}) == [["log", entries[1:]]]
    assert region.xlen("log") == 3
    assert region.type("log") == "stream"
    assert region.object("encoding", "log") == "log"
    region.xgroup_create("log", "jobs", "0")
    assert region.xreadgroup("jobs", "me", {"log": ">"}, count=2) == [["log", entries[:2]]]
    assert region.xack("log", "jobs", "0-1") == 1
    assert region.xpending("log", "jobs")["pending"] == 1
    facts = region.xinfo_stream("log")
    assert {name: facts[name] for name in ("length", "home", "epoch", "first-offset", "last-offset")} == {
        "length": 3,
        "home": 1,
        "epoch": 0,
        "first-offset": 1,
        "last-offset": 3,
    }
    region.delete("log")
    region.twrite("log", "t", "4")
    assert region.xinfo_groups("log") == []
    assert region.xtrim("log", maxlen=0, approximate=False) == 1


CHOOSING_IDS = [
    ("XADD", "log", "*", "f", "v"),
    ("XADD", "log", "9999999999999-1", "f", "v"),
    ("XADD", "log", "0-9", "f", "v"),
    ("XADD", "log", "MAXLEN", "5", "*", "f", "v"),
    ("XADD", "log", "IDMP", "p", "i", "*", "f", "v"),
    ("XSETID", "log", "9-9"),
]


@pytest.mark.parametrize("words", CHOOSING_IDS)
def test_what_chooses_ids_is_refused_on_a_log(liberal: braidstream.Redis, words: tuple[str, ...]) -> None:
    liberal.twrite("log", "t", "1")
    with pytest.raises(redis.ResponseError) as raised:
        liberal.execute_command(*words)
    assert str(raised.value) == f"{words[0]} refused by braidstream: 'log' is a log, {GENERATED}"
    assert liberal.twrite("log", "t", "2") == 2


@pytest.mark.parametrize("words", CHOOSING_IDS[:-1])
def test_and_so_it_is_in_a_multi(liberal: braidstream.Redis, words: tuple[str, ...]) -> None:
    liberal.twrite("log", "t", "1")
    [result] = liberal.pipeline().execute_command(*words).execute(raise_on_error=False)
    assert str(result).endswith(f"refused by braidstream: 'log' is a log, {GENERATED}")
    assert liberal.twrite("log", "t", "2") == 2


def test_a_log_is_not_renamed_nor_copied(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")
    region.xadd("stream", {"a": "1"})
    for words in (("RENAME", "log", "new"), ("COPY", "log", "new"), ("RENAME", "stream", "log")):
        with pytest.raises(redis.ResponseError, match="is a log, and its offsets belong to its name"):
            region.execute_command(*words)
    payload = region.execute_command("DUMP", "stream", NEVER_DECODE=True)
    with pytest.raises(redis.ResponseError, match="is a log"):
        region.restore("log", 0, payload, replace=True)
    assert region.tread("log") == [(1, "t", "1")]


def test_a_stream_or_another_key_is_the_wrong_type(region: braidstream.Redis) -> None:
    region.xadd("stream", {"a": "1"})
    region.set("text", "x")
    for name in ("stream", "text"):
        for words in (
            ("TWRITE", name, "t", "e"),
            ("TREAD", name, 1, 10),
            ("TREAD", name, 1, 10, "BLOCK", 10),
            ("TEVICT", name, 1),
            ("TCFGSET", name, "BACKLOG", 1),
        ):
            with pytest.raises(redis.ResponseError, match="^WRONGTYPE Operation against a key"):
                region.execute_command(*words)
            [result] = region.pipeline(transaction=False).execute_command(*words).execute(False)
            assert str(result).startswith("WRONGTYPE")
    assert region.type("stream") == "stream"
    assert region.get("text") == "x"


def test_a_deleted_log_may_become_a_stream_and_back(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("t", "x")] * 3)
    region.delete("log")
    region.xadd("log", {"a": "1"})
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.twrite("log", "t", "4")
    region.delete("log")
    assert region.twrite("log", "t", "4") == 4


def test_a_message_is_written_once_however_often_it_is_sent(
    region: braidstream.Redis, engine: Engine
) -> None:
    assert region.twrite("log", "t", "1", idmp=("p", "a")) == 1
    assert region.twrite("log", entries=[("t", "2"), ("t", "3")], idmp=("p", "b"), backlog=5) == [2, 3]
    assert region.twrite("log", "t", "4", idmp=("q", "a"), maxage=60_000) == 4  # another producer
    with braidstream.Redis.from_url(engine.url) as other:
        for client in (region, other):
            assert client.twrite("log", "t", "1", idmp=("p", "a")) == 1
            assert client.twrite("log", entries=[("t", "2"), ("t", "3")], idmp=("p", "b")) == [2, 3]
            assert client.twrite("log", "t", "4", idmp=("q", "a"), maxage=60_000) == 4
        with other.pipeline(transaction=False) as pipe:
            pipe.twrite("log", "t", "5", idmp=("p", "c"))
            pipe.twrite("log", "t", "5", idmp=("p", "c"))
            pipe.twrite("log", "t", "6")
            assert pipe.execute() == [5, 5, 6]
        with other.pipeline() as pipe:
            pipe.twrite("log", entries=[("t", "7"), ("t", "8")], idmp=("p", "d"))
            pipe.twrite("log", "t", "9")
            assert pipe.execute() == [[7, 8], 9]
    assert [row[2] for row in region.tread("log", 1, 20)] == [str(n) for n in range(1, 10)]
    facts = region.xinfo_stream("log")
    assert (facts["pids-tracked"], facts["iids-added"], facts["iids-duplicates"]) == (2, 5, 7)
    region.tevict("log", 1)
    assert region.twrite("log", "t", "1", idmp=("p", "a")) == 1


def test_the_settings_of_messages_hold_for_logs(region: braidstream.Redis, engine: Engine) -> None:
    region.twrite("log", "t", "1", idmp=("p", "a"))
    with braidstream.Redis.from_url(engine.url) as other:
        assert other.execute_command("XCFGSET", "log", "IDMP-MAXSIZE", 1)  # a change forgets all messages
    assert region.twrite("log", "t", "1", idmp=("p", "a")) == 2
    assert region.twrite("log", "t", "2", idmp=("p", "b")) == 3
    assert region.twrite("log", "t", "2", idmp=("p", "b")) == 3
    assert region.twrite("log", "t", "1", idmp=("p", "a")) == 4
    region.delete("log")
    assert region.twrite("log", "t", "1", idmp=("p", "a")) == 5


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("TWRITE", "log", "IDMP", "p", "i", "t"), "syntax error"),
        (("TWRITE", "log", "IDMP", "", "i", "t", "e"), "syntax error, IDMP requires a non-empty producer ID"),
        (
            ("TWRITE", "log", "IDMP", "p", "", "t", "e"),
            "syntax error, IDMP requires a non-empty idempotent ID",
        ),
        (
            ("TWRITE", "log", "IDMP", "p", "i", "IDMP", "p", "i", "ENTRIES", "t", "e"),
            "syntax error, IDMP specified multiple times",
        ),
        (("TWRITE", "log", "IDMP", "p", "i", "ENTRIES"), "wrong number of arguments for 'twrite' command"),
        (("TWRITE", "log", "t"), "wrong number of arguments for 'twrite' command"),
        (("TWRITE", "log", "t", "e", "x"), "wrong number of arguments for 'twrite' command"),
        (("TWRITE", "log", "ENTRIES", "t", "e", "x"), "wrong number of arguments for 'twrite' command"),
        (("TWRITE", "log", "BACKLOG", "5", "ENTRIES"), "wrong number of arguments for 'twrite' command"),
        (("TWRITE", "log", "BACKLOG", "x", "ENTRIES", "t", "e"), "backlog is not an integer or out of range"),
        (("TWRITE", "log", "BACKLOG", "5", "t", "e"), "syntax error"),
        (("TWRITE", "log", "ENTRIES", *["t", "e"] * 10_001), "too many entries (at most 10000)"),
        (("TREAD", "log", "1"), "wrong number of arguments for 'tread' command"),
        (("TREAD", "log", "x", "1"), "offset is not an integer or out of range"),
        (("TREAD", "log", "-1", "1"), "offset is not an integer or out of range"),
        (("TREAD", "log", str(2**53 + 1), "1"), "offset is not an integer or out of range"),
        (("TREAD", "log", "1", "x"), "count is not an integer or out of range"),
        (("TREAD", "log", "1", "-1"), "count is not an integer or out of range"),
        (("TREAD", "log", "1", "1", "BLOCK", "-1"), "timeout is negative"),
        (("TREAD", "log", "1", "1", "BLOCK", "x"), "timeout is not an integer or out of range"),
        (("TREAD", "log", "1", "1", "BLOCK"), "syntax error"),
        (("TREAD", "log", "1", "1", "SIDEWAYS"), "syntax error"),
        (("TEVICT", "log"), "wrong number of arguments for 'tevict' command"),
        (("TEVICT", "log", "x"), "offset is not an integer or out of range"),
        (("TEVICT", "log", "-x"), "count is not an integer or out of range"),
        (("TCFGSET", "log"), "wrong number of arguments for 'tcfgset' command"),
        (("TCFGSET", "log", "BACKLOG"), "wrong number of arguments for 'tcfgset' command"),
        (("TCFGSET", "log", "PENDING", "0"), "pending is not an integer or out of range"),
        (("TCFGSET", "log", "PENDING", "100001"), "pending is not an integer or out of range"),
        (("TCFGSET", "log", "BACKLOG", "-1"), "backlog is not an integer or out of range"),
        (("TCFGSET", "log", "WHAT", "1"), "syntax error"),
    ],
)
def test_errors_say_what_is_wrong(region: braidstream.Redis, words: tuple[str, ...], error: str) -> None:
    with pytest.raises(redis.ResponseError) as raised:
        region.execute_command(*words)
    assert str(raised.value) == error
    assert not region.exists("log")


def test_four_words_are_the_short_form_whatever_the_tag(region: braidstream.Redis) -> None:
    assert region.execute_command("TWRITE", "log", "ENTRIES", "x") == 1
    assert region.tread("log") == [(1, "ENTRIES", "x")]


@pytest.mark.parametrize("transaction", [False, True])
def test_log_commands_share_a_round_trip(region: braidstream.Redis, transaction: bool) -> None:
    with region.pipeline(transaction=transaction) as pipe:
        pipe.twrite("log", "t", "1")
        pipe.twrite("log", entries=[("t", "2"), ("t", "3")])
        pipe.tread("log", 1, 10)
        pipe.tread("log", 1, 1, withinfo=True)
        pipe.tread("none", 1, 1)
        pipe.tcfgset("other", backlog=100)
        pipe.twrite("other", "t", "1", backlog=5)
        pipe.set("key", "value")
        results = pipe.execute()
    rows = [(n, "t", str(n)) for n in (1, 2, 3)]
    assert results == [1, [2, 3], rows, ((1, 3), rows[:1]), [], True, 1, True]
    with region.pipeline(transaction=transaction) as pipe:
        pipe.delete("log")
        pipe.twrite("log", "t", "4")
        pipe.tread("log", 3, 10)
        assert pipe.execute() == [1, 4, [None, (4, "t", "4")]]


def test_a_watched_log_that_is_written_fails_the_transaction(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")
    for name in ("log", "new"):
        with region.pipeline() as pipe:
            pipe.watch(name)
            region.twrite(name, "t", "2")
            pipe.multi()
            pipe.twrite(name, "t", "3")
            with pytest.raises(redis.WatchError):
                pipe.execute()
    assert region.tread("log", 1, 10, withinfo=True)[0] == (1, 2)


def test_writers_at_once_make_one_log(region: braidstream.Redis) -> None:
    told = dict[int, str]()

    def write(who: int) -> None:
        for n in range(20):
            offsets = region.twrite("log", entries=[("t", f"{who}.{n}.{part}") for part in range(3)])
            assert offsets == list(range(offsets[0], offsets[0] + 3))
            told.update({offset: f"{who}.{n}.{part}" for part, offset in enumerate(offsets)})

    threads = [threading.Thread(target=write, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert region.tread("log", 1, 1_000) == [(n, "t", told[n]) for n in range(1, 361)]


def test_the_asyncio_client_has_the_same_methods(engine: Engine, region: braidstream.Redis) -> None:
    asyncio.run(_use_asyncio(engine))


async def _use_asyncio(engine: Engine) -> None:
    async with braidstream.asyncio.Redis.from_url(engine.url) as client:
        assert await client.twrite("log", "t", b"\xff") == 1
        assert await client.tread("log") == [(1, b"t", b"\xff")]
        assert await client.tread("log", withinfo=True) == ((1, 1), [(1, b"t", b"\xff")])
        assert await client.tevict("log", 1) == 1
        assert await client.tcfgset("log", backlog=5)
        async with client.pipeline() as pipe:
            pipe.twrite("log", entries=[("t", "2"), ("t", "3")])
            pipe.tread("log", 1, 2)
            assert await pipe.execute() == [[2, 3], [None, (2, b"t", b"2")]]


@pytest.mark.parametrize("name", ["", "}odd", "a{tag}b", "with space", "{}", "new\nline"])
def test_any_name_may_be_a_log(region: braidstream.Redis, name: str) -> None:
    assert region.twrite(name, "t", "1") == 1
    assert region.tread(name) == [(1, "t", "1")]
    assert region.keys("*") == [name]
    with pytest.raises(redis.ResponseError, match="is a log, its offsets are generated"):
        region.xadd(name, {"a": "1"})
    assert region.delete(name) == 1
    assert region.twrite(name, "t", "2") == 2


def test_wrong_arguments_of_the_methods_are_refused(region: braidstream.Redis) -> None:
    for call in (
        lambda: region.twrite("log"),
        lambda: region.twrite("log", "t"),
        lambda: region.twrite("log", "t", "e", entries=[("a", "b")]),
        lambda: region.twrite("log", entries=[]),
        lambda: region.tevict("log"),
        lambda: region.tevict("log", 1, keep=1),
    ):
        with pytest.raises(ValueError, match=r"pass|empty"):
            call()


def test_several_entries_are_refused_between_watch_and_multi(region: braidstream.Redis) -> None:
    entries = [("t", "1"), ("t", "2")]
    with region.pipeline() as pipe:
        pipe.watch("other")
        with pytest.raises(braidstream.RefusedError, match="under WATCH"):
            pipe.twrite("log", entries=entries)
        assert pipe.twrite("log", entries=entries[:1]) == [1]
        pipe.multi()
        pipe.twrite("log", entries=entries)
        assert pipe.execute() == [[2, 3]]
