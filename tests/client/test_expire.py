"""EXPIRE and its family on streams: a region alone answers as the bare engine does, before and after."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from tests.support.regions import client_of, position
from tests.support.servers import Engine
from tests.support.waiting import eventually

FAR_MS = 4_102_444_800_000


@pytest.fixture
def bare(engine: Engine) -> Iterator[redis.Redis]:
    """The engine itself, in a database that is not a region."""
    with redis.Redis.from_url(engine.url.replace("/0", "/5"), decode_responses=True) as client:
        yield client


def _said(client: Any, *words: Any) -> Any:
    try:
        return client.execute_command(*words)
    except redis.ResponseError as error:
        return str(error)


WORDS: tuple[tuple[Any, ...], ...] = (
    ("EXPIRE", "x", 1000),
    ("EXPIRE", "x", 1000, "NX"),
    ("EXPIRE", "x", 500, "GT"),
    ("EXPIRE", "x", 2000, "gt", "xx"),
    ("EXPIRE", "x", 3000, "LT"),
    ("PEXPIRE", "x", 500_000, "LT", "XX"),
    ("EXPIREAT", "x", FAR_MS // 1000),
    ("EXPIRETIME", "x"),
    ("PEXPIREAT", "x", FAR_MS + 7),
    ("PEXPIRETIME", "x"),
    ("EXPIRETIME", "x"),
    ("PERSIST", "x"),
    ("PERSIST", "x"),
    ("TTL", "x"),
    ("PEXPIRETIME", "x"),
    ("EXPIRE", "x", 10, "XX"),
    ("EXPIRE", "x", 10, "GT"),
    ("PEXPIREAT", "x", FAR_MS, "LT"),
    ("PEXPIREAT", "x", FAR_MS, "GT"),
    ("PEXPIREAT", "x", FAR_MS, "LT"),
    ("EXPIRE", "x", "abc"),
    ("EXPIRE", "x", "1.5"),
    ("EXPIRE", "x", 10, "NOPE"),
    ("EXPIRE", "x", 10, "NX", "XX"),
    ("EXPIRE", "x", 10, "GT", "LT"),
    ("EXPIRE", "x", "abc", "NX", "GT"),
    ("EXPIRE", "x", 9223372036854775807),
    ("PEXPIRE", "x", 9223372036854775807),
    ("PEXPIREAT", "x", "-1", "NX"),
    ("EXISTS", "x"),
    ("EXPIRE", "x", "-1"),
    ("EXISTS", "x"),
    ("TTL", "x"),
    ("PTTL", "x"),
    ("EXPIRE", "x", 10),
    ("PERSIST", "x"),
)


def test_the_family_answers_as_the_engine_does(liberal: braidstream.Redis, bare: redis.Redis) -> None:
    for client in (liberal, bare):
        client.xadd("x", {"n": "1"}, id="1-1")
        client.xgroup_create("x", "g")
    answers = [[(words, _said(client, *words)) for words in WORDS] for client in (liberal, bare)]
    assert answers[0] == answers[1]


QUESTIONS: tuple[tuple[Any, ...], ...] = (
    ("EXISTS", "x"),
    ("TYPE", "x"),
    ("TTL", "x"),
    ("PEXPIRETIME", "x"),
    ("KEYS", "*"),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("OBJECT", "ENCODING", "x"),
    ("XLEN", "x"),
    ("XRANGE", "x", "-", "+"),
    ("XREAD", "STREAMS", "x", "0"),
    ("XINFO", "STREAM", "x"),
    ("XINFO", "GROUPS", "x"),
    ("XPENDING", "x", "g"),
    ("XACK", "x", "g", "1-1"),
    ("XDEL", "x", "1-1"),
    ("XTRIM", "x", "MAXLEN", 0),
    ("XREADGROUP", "GROUP", "g", "me", "STREAMS", "x", ">"),
    ("XREADGROUP", "GROUP", "g", "me", "BLOCK", 10, "STREAMS", "x", ">"),
    ("XADD", "x", "NOMKSTREAM", "*", "n", "1"),
    ("XADD", "x", "NOMKSTREAM", "1-1", "n", "1"),
    ("XSETID", "x", "9-9"),
    ("XGROUP", "CREATE", "x", "g", "0"),
    ("XGROUP", "SETID", "x", "g", "0"),
    ("XGROUP", "DESTROY", "x", "g"),
    ("EXPIRE", "x", 10),
    ("PERSIST", "x"),
    ("RENAME", "x", "y"),
    ("COPY", "x", "y"),
    ("DUMP", "x"),
    ("DEL", "x"),
    ("XADD", "x", "1-1", "n", "2"),
    ("XGROUP", "CREATE", "x", "g", "0", "MKSTREAM"),
    ("SET", "x", "plain", "NX"),
)
SHUFFLED = {words[0] + str(at): words for at, words in enumerate(QUESTIONS)}


@pytest.mark.parametrize("first", SHUFFLED)
def test_an_expired_stream_is_no_stream_for_whichever_command_comes_first(
    liberal: braidstream.Redis, bare: redis.Redis, engine: Engine, first: str
) -> None:
    answers = []
    for client in (liberal, bare):
        client.xadd("x", {"n": "1"}, id="1-1")
        client.xadd("x", {"n": "1"}, id="1-2")
        client.xgroup_create("x", "g", 0)
        client.xreadgroup("g", "me", {"x": ">"}, count=1)
        client.pexpire("x", 40)
    with redis.Redis.from_url(engine.url) as operator:
        for client, names in ((operator, ("bs:1:s:{x}", "bs:1:c:{x}")), (bare, ("x",))):
            eventually(lambda: not client.exists(*names), within_s=30, why="it should expire")  # noqa: B023
    after = (
        ("TTL", "x"),
        ("EXISTS", "x"),
        ("XLEN", "x"),
        ("XINFO", "GROUPS", "x"),
        ("XADD", "x", "1-1", "n", "3"),
    )
    for client in (liberal, bare):
        answers.append([_said(client, *words) for words in (SHUFFLED[first], *after)])
    assert answers[0] == answers[1]
    assert liberal.ttl("x") == -1 or first == "SET33"


def test_ids_continue_above_those_of_the_expired_stream(region: braidstream.Redis, engine: Engine) -> None:
    with redis.Redis.from_url(engine.url) as operator:
        generated = list[str]()
        for _ in range(5):
            generated += [region.xadd("x", {"n": "1"}) for _ in range(3)]
            region.pexpire("x", 2)
            eventually(lambda: not operator.exists("bs:1:s:{x}"), within_s=30, why="the strand should expire")
            generated.append(region.xadd("x", {"n": "2"}))
            assert (region.xlen("x"), region.ttl("x")) == (1, -1)
            region.delete("x")
        assert generated == sorted(set(generated), key=position)


def test_strands_turns_and_bells_that_are_created_later_expire_too(
    liberal: braidstream.Redis, engine: Engine
) -> None:
    liberal.xgroup_create("x", "g", mkstream=True)
    liberal.pexpireat("x", FAR_MS)
    liberal.xadd("x", {"n": "1"}, id="1-1")
    liberal.xadd("x", {"n": "1"})
    liberal.xreadgroup("g", "me", {"x": ">"})
    liberal.xreadgroup("g", "me", {"x": ">"}, count=1, block=5)
    with redis.Redis.from_url(engine.url, decode_responses=True) as operator:
        found = {key: operator.pexpiretime(key) for key in operator.keys("*{x}*")}
        assert found.pop("bs:meta:{x}") == -1
        assert {key.split(":")[1] for key in found} >= {"1", "bell", "turn"}
        assert set(found.values()) == {FAR_MS}
        liberal.persist("x")
        found = {key: operator.pexpiretime(key) for key in operator.keys("*{x}*")}
        assert set(found.values()) == {-1}


@pytest.mark.parametrize("transaction", [False, True])
def test_pipelines_and_transactions(liberal: braidstream.Redis, bare: redis.Redis, transaction: bool) -> None:
    answers = []
    for client in (liberal, bare):
        with client.pipeline(transaction=transaction) as pipe:
            pipe.xadd("x", {"n": "1"}, id="5-1")
            pipe.expireat("x", FAR_MS // 1000)
            pipe.expiretime("x")
            pipe.persist("x")
            pipe.ttl("x")
            pipe.expireat("x", 1_500_000_000)
            pipe.exists("x")
            pipe.xadd("x", {"n": "2"}, id="1-1")
            pipe.ttl("x")
            pipe.xlen("x")
            pipe.pexpire("x", 0)
            pipe.xadd("x", {"n": "3"}, id="1-1")
            pipe.xrange("x")
            pipe.type("x")
            answers.append(pipe.execute())
    assert answers[0] == answers[1]


def test_rename_copy_and_restore_take_the_deadline_along(
    liberal: braidstream.Redis, bare: redis.Redis
) -> None:
    answers = []
    for client in (liberal, bare):
        client.xadd("x", {"n": "1"}, id="1-1")
        payload = client.execute_command("DUMP", "x", **{"NEVER_DECODE": True})
        client.pexpireat("x", FAR_MS)
        client.copy("x", "y")
        client.rename("x", "z")
        client.xadd("x", {"n": "1"}, id="1-1")
        client.execute_command("RESTORE", "w", FAR_MS, payload, "ABSTTL")
        client.xadd("y", {"n": "1"})
        client.set("w2", "1", pxat=FAR_MS)
        for source, name in (("y", "string"), ("x", "never")):
            client.copy(source, name)
            assert client.xlen(name)
            client.set(name, "1", keepttl=True)
        names = ("w", "w2", "x", "y", "z", "string", "never")
        answers.append([client.pexpiretime(name) for name in names])
        client.delete("z")
        client.xadd("z", {"n": "1"})
        answers[-1].append(client.ttl("z"))
    assert answers[0] == answers[1]


def test_a_log_does_not_expire(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "e")
    with pytest.raises(redis.ResponseError, match=r"EXPIRE refused by braidstream: 'log' is a log.*TEVICT"):
        region.expire("log", 1)
    assert region.ttl("log") == -1


def test_a_message_is_new_after_its_stream_expired(region: braidstream.Redis, engine: Engine) -> None:
    def send() -> str:
        return str(region.execute_command("XADD", "x", "IDMP", "p", "m", "*", "n", "1"))

    first = send()
    assert send() == first
    region.pexpire("x", 20)
    with redis.Redis.from_url(engine.url) as operator:
        eventually(lambda: not operator.exists("bs:1:s:{x}"), within_s=30, why="the strand should expire")
    second = send()
    assert position(second) > position(first)
    assert (send(), region.xlen("x")) == (second, 1)


def test_a_blocked_consumer_hears_of_the_deadline(liberal: braidstream.Redis, bare: redis.Redis) -> None:
    answers = []
    for client in (liberal, bare):
        client.xgroup_create("x", "g", mkstream=True)
        client.pexpire("x", 300)
        said = _said(client, "XREADGROUP", "GROUP", "g", "me", "BLOCK", 20_000, "STREAMS", "x", ">")
        answers.append(said.split()[0])
    assert answers[0] == answers[1]


def test_the_asyncio_client_has_it_too(region: braidstream.Redis, engine: Engine) -> None:
    async def story() -> list[Any]:
        async with braidstream.asyncio.Redis.from_url(engine.url, decode_responses=True) as client:
            await client.xadd("x", {"n": "1"})
            set_it = await client.pexpireat("x", FAR_MS)
            when = await client.pexpiretime("x")
            return [
                set_it,
                when,
                await client.persist("x"),
                await client.expire("x", 0),
                await client.exists("x"),
            ]

    assert asyncio.run(story()) == [True, FAR_MS, True, True, 0]


def test_with_peers_the_commands_answer_the_same(region: braidstream.Redis, engine: Engine) -> None:
    """Who carries the deadline out is tested in tests/regions/test_deadlines.py."""
    region.xadd("x", {"n": "1"})
    with redis.Redis.from_url(engine.url) as operator:
        operator.fcall("bs_region_writers", 1, "bs:config", "meet", 2)
    with client_of(engine, decode_responses=True) as client:
        assert client.expire("x", 100)
        assert client.ttl("x") in (99, 100)
        assert not client.expire("x", 50, gt=True)
        assert client.pexpireat("x", FAR_MS)
        assert (client.pexpiretime("x"), client.expiretime("x")) == (FAR_MS, FAR_MS // 1000)
        assert client.copy("x", "y")
        assert client.pexpiretime("y") == FAR_MS
        for is_multi in (True, False):
            with client_of(engine) as new, new.pipeline(transaction=is_multi) as pipe:
                assert pipe.pexpiretime("x").execute() == [FAR_MS]
        with client.pipeline() as pipe:
            assert pipe.persist("x").ttl("x").expire("x", 100).execute()[:2] == [True, -1]
        assert client.expire("x", 0)
        assert (client.exists("x"), client.ttl("x")) == (0, -2)
