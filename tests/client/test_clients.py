"""The clients, sync and asyncio, are redis-py's: the same options, protocols, replies, pipelines, errors."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from tests.support.clients import Opener
from tests.support.regions import become
from tests.support.servers import Engine, Flavour

# Shapes: what redis-py returns for a bare engine, whatever protocol and options.

SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "decoded": {"decode_responses": True},
    "RESP2 decoded": {"protocol": 2, "decode_responses": True},
    "RESP3 decoded": {"protocol": 3, "decode_responses": True},
    "new responses": {"legacy_responses": False},
    "new responses decoded, RESP2": {"legacy_responses": False, "protocol": 2, "decode_responses": True},
}


def _story(client: Any) -> Iterator[Any]:
    """Every command of ours once; chosen IDs, so that a bare engine answers the same."""
    yield client.xread({"x": 0})
    for n in range(1, 6):
        yield client.xadd("x", {"n": str(n), "é": b"\xc3\xa9"}, id=f"{n}-{n}")
    yield client.xadd("y", {"n": "1"}, id="7")
    yield client.xadd("none", {"n": "1"}, nomkstream=True)
    yield client.xlen("x")
    yield client.xrange("x", "2", "(4-4")
    yield client.xrevrange("x", count=2)
    yield client.xread({"x": "3-3", "y": 0, "none": 0}, count=2)
    yield client.xread({"x": "$"})
    yield client.xread({"x": "$"}, block=1)
    yield client.execute_command("XREAD", "STREAMS", "x", "4-4")
    yield client.execute_command("XRANGE", "x", "-", "+", "COUNT", 0)
    yield client.xinfo_stream("x")
    yield client.xinfo_stream("x", full=True)
    yield client.xdel("x", "1-1", "9-9")
    yield client.xtrim("x", maxlen=2, approximate=False)
    yield client.execute_command("XSETID", "x", "8-8")
    yield client.exists("x", "y", "x", "none")
    yield client.type("x")
    yield client.ttl("x"), client.pttl("x"), client.ttl("none"), client.persist("x")
    yield client.object("ENCODING", "x")
    yield client.rename("y", "z"), client.renamenx("z", "x"), client.copy("z", "y")
    yield client.set("plain", "1"), client.get("plain")
    yield sorted(client.keys("*"))
    yield client.scan(0, match="plain", count=1000)
    yield client.delete("x", "plain", "none"), client.unlink("y")
    yield client.flushdb(), client.keys("*")


@pytest.mark.parametrize("shape", SHAPES)
def test_replies_have_the_shape_redis_py_gives_them(opened: Opener, engine: Engine, shape: str) -> None:
    become(engine, id_mode="liberal")
    ours = _story(opened(engine.url, **SHAPES[shape]))
    bare = _story(opened.bare(engine.url.replace("/0", "/1"), **SHAPES[shape]))
    for step, (seen, wanted) in enumerate(zip(ours, bare, strict=True)):
        assert _typed(seen) == _typed(wanted), f"step {step}"


def _typed(value: Any) -> Any:
    """The value with its types; what the engine counts of its own memory left out."""
    if isinstance(value, dict):
        pairs = [(_typed(key), _typed(each)) for key, each in value.items()]
        return dict, [pair for pair in pairs if "radix" not in str(pair[0])]
    if isinstance(value, list | tuple):
        return type(value), [_typed(each) for each in value]
    return type(value), value


def _failures(client: Any) -> Iterator[Callable[[], Any]]:
    client.set("plain", "1")
    client.xadd("x", {"n": "1"}, id="5-5")
    for words in (
        ("XADD", "x", "*"),
        ("XADD", "x", "5-5", "n", "1"),
        ("XADD", "x", "0-0", "n", "1"),
        ("XADD", "x", "nonsense", "n", "1"),
        ("XADD", "x", "MAXLEN", "-1", "*", "n", "1"),
        ("XADD", "x", "MAXLEN", "1", "LIMIT", "5", "*", "n", "1"),
        ("XADD", "plain", "*", "n", "1"),
        ("XRANGE", "plain", "-", "+"),
        ("XRANGE", "x", "nonsense", "+"),
        ("XRANGE", "x", "(18446744073709551615-18446744073709551615", "+"),
        ("XLEN", "plain"),
        ("XLEN",),
        ("XREAD", "COUNT", "1", "x", "0"),
        ("XREAD", "STREAMS", "x"),
        ("XREAD", "STREAMS", "x", "y", "0"),
        ("XREAD", "STREAMS", "x", ">"),
        ("XREAD", "BLOCK", "-1", "STREAMS", "x", "0"),
        ("XDEL", "x", "nonsense"),
        ("XTRIM", "x", "MAXLEN"),
        ("XTRIM", "x", "NOTHING", "1"),
        ("XSETID", "none", "1-1"),
        ("XSETID", "x", "1-1"),
        ("XINFO", "STREAM", "none"),
        ("XINFO", "NOTHING", "x"),
        ("RENAME", "none", "x"),
        ("COPY", "x", "x"),
    ):
        yield lambda words=words: client.execute_command(*words)


def test_errors_are_redis_pys_own_to_the_letter(opened: Opener, engine: Engine) -> None:
    become(engine, id_mode="liberal")
    ours = _failures(opened(engine.url))
    bare = _failures(opened.bare(engine.url.replace("/0", "/1")))
    for fail, fail_bare in zip(ours, bare, strict=True):
        assert _raised(fail) == _raised(fail_bare)


def _raised(call: Callable[[], Any]) -> tuple[type[BaseException], str]:
    with pytest.raises(redis.RedisError) as raised:
        call()
    return type(raised.value), str(raised.value)


# Pipelines, mixed with plain commands.


def _mixed(client: Any, *, transaction: bool) -> Any:
    pipe = client.pipeline(transaction=transaction)
    pipe.set("plain", "é")
    pipe.xadd("x", {"n": "1"}, id="5-5")
    pipe.get("plain")
    pipe.xadd("plain", {"n": "1"})
    pipe.sadd("set", "a")
    pipe.smembers("set")
    pipe.hset("hash", mapping={"f": "1"})
    pipe.hgetall("hash")
    pipe.zadd("sorted", {"a": 1.5})
    pipe.zrange("sorted", 0, -1, withscores=True)
    pipe.incr("plain")
    pipe.xadd("x", {"n": "2"}, id="5-5")
    pipe.xrange("x")
    pipe.xread({"x": 0})
    pipe.xlen("x")
    pipe.exists("x", "plain")
    pipe.delete("x", "plain")
    pipe.xinfo_stream("x")
    pipe.xlen("x")
    return pipe


@pytest.mark.parametrize("transaction", [False, True], ids=["pipeline", "MULTI"])
@pytest.mark.parametrize("shape", ["default", "RESP2", "RESP3 decoded", "new responses"])
def test_a_mixed_pipeline_gives_redis_pys_results_with_errors_among_them(
    opened: Opener, engine: Engine, shape: str, transaction: bool
) -> None:
    become(engine, id_mode="liberal")
    ours = opened(engine.url, **SHAPES[shape])
    bare = opened.bare(engine.url.replace("/0", "/1"), **SHAPES[shape])
    seen = _mixed(ours, transaction=transaction).execute(raise_on_error=False)
    wanted = _mixed(bare, transaction=transaction).execute(raise_on_error=False)
    for step, (one, other) in enumerate(zip(seen, wanted, strict=True)):
        if isinstance(other, Exception):
            assert (type(one), str(one)) == (type(other), str(other)), f"command {step + 1}"
        else:
            assert _typed(one) == _typed(other), f"command {step + 1}"


@pytest.mark.parametrize("transaction", [False, True], ids=["pipeline", "MULTI"])
def test_the_first_error_of_a_pipeline_is_raised_as_redis_py_does(
    opened: Opener, engine: Engine, transaction: bool
) -> None:
    become(engine, id_mode="liberal")
    ours, bare = opened(engine.url), opened.bare(engine.url.replace("/0", "/1"))
    seen = _raised(_mixed(ours, transaction=transaction).execute)
    assert seen == _raised(_mixed(bare, transaction=transaction).execute)
    assert "Command # 4 (XADD plain * n 1) of pipeline caused error" in seen[1]
    assert ours.sismember("set", "a") == 1  # what came after the error was done all the same


def test_a_pipeline_of_appends_returns_their_ids_in_order(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    for transaction in (False, True, False):  # a missing strand, then cached ones
        pipe = client.pipeline(transaction=transaction)
        for n in range(50):
            pipe.xadd(f"x{n % 3}", {"n": str(n)})
        added = pipe.execute()
        for which in range(3):
            assert [entry for entry, _ in client.xrange(f"x{which}")][-len(added[which::3]) :] == added[
                which::3
            ]


def test_a_pipeline_is_used_again_after_an_error(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True, single_connection_client=True)
    pipe = client.pipeline()
    pipe.xadd("x", {"n": "1"}, id="5-5")
    with pytest.raises(redis.ResponseError, match="strict ID mode"):
        pipe.execute()
    [entry] = pipe.xadd("x", {"n": "2"}).execute()
    assert client.xrange("x") == [(entry, {"n": "2"})]


# Ways to connect.


def test_one_connection_is_enough(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, single_connection_client=True, max_connections=1, decode_responses=True)
    entry = client.xadd("x", {"n": "1"})
    client.rename("x", "y")
    assert client.xread({"y": 0}, block=10) == [["y", [(entry, {"n": "1"})]]]


def test_a_unix_socket_serves_as_well(opened: Opener, flavour: Flavour) -> None:
    with Engine(flavour, unixsocket=True) as engine:
        become(engine)
        path = str(engine.unixsocket)
        for client in (opened.constructed(unix_socket_path=path), opened(f"unix://{path}")):
            entry = client.xadd("x", {"n": "1"})
            assert client.xrevrange("x", count=1) == [(entry, {b"n": b"1"})]


def test_tls_serves_as_well(opened: Opener, tls_flavour: Flavour) -> None:
    with Engine(tls_flavour, tls=True) as engine:
        become(engine)
        client = opened(engine.url, decode_responses=True)
        [entry, found] = client.pipeline().xadd("x", {"n": "1"}).xrange("x").execute()
        assert found == [(entry, {"n": "1"})]


# One client, many threads or tasks.


def _churn(number: int) -> list[Callable[[Any], Any]]:
    """Commands that teach a client strands and make it forget them."""
    return [
        lambda client: client.xadd("x", {"n": "1"}),
        lambda client: client.xrange("x", count=2),
        lambda client: client.xread({"x": "0"}, count=1),
        lambda client: client.xdel("x", "1-1"),
        lambda client: client.delete("x"),
        lambda client: client.exists("x", "y"),
        lambda client: client.xadd("x", {"n": "1"}, id=f"{number}-1"),
        lambda client: client.xadd("x", {"n": "1"}, maxlen=3, approximate=False),
        lambda client: client.pipeline().xadd("x", {"n": "1"}).xlen("x").execute(),
        lambda client: client.flushdb(),
    ]


def test_threads_may_share_a_client(liberal: braidstream.Redis) -> None:
    failures = list[BaseException]()

    def work(first: int) -> None:
        for number in range(1, 60):
            try:
                _churn(number)[(first + number) % 10](liberal)
            except redis.ResponseError as error:
                if "equal or smaller" not in str(error):
                    failures.append(error)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_tasks_may_share_a_client(liberal: braidstream.Redis, engine: Engine) -> None:
    async def work(client: Any, first: int) -> list[BaseException]:
        failures = list[BaseException]()
        for number in range(1, 30):
            try:
                await _churn(number)[(first + number) % 10](client)
            except Exception as error:
                if "equal or smaller" not in str(error):
                    failures.append(error)
        return failures

    async def story() -> list[list[BaseException]]:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            return await asyncio.gather(*(work(client, first) for first in range(8)))

    assert asyncio.run(story()) == [[]] * 8


def test_a_group_is_created_with_a_scope(opened: Opener, liberal: braidstream.Redis, engine: Engine) -> None:
    client = opened(engine.url, decode_responses=True)
    assert client.xgroup_create("x", "once", "0", mkstream=True, scope="ONCE") is True
    assert client.xgroup_create("x", "each", id="0", entries_read=3) is True
    pipe = client.pipeline(transaction=False)
    pipe.xgroup_create("x", "late", scope="EVERYWHERE")
    assert pipe.execute() == [True]
    found = {group["name"]: group.get("scope") for group in client.xinfo_groups("x")}
    assert found == {"each": None, "late": None, "once": "once"}
    with pytest.raises(redis.ResponseError, match="SCOPE must be EVERYWHERE or ONCE"):
        client.xgroup_create("x", "odd", scope="TWICE")


# Options of Redis 8.2 that these engines lack.


def test_xdelex_answers_for_each_id(opened: Opener, liberal: braidstream.Redis, engine: Engine) -> None:
    client = opened(engine.url, decode_responses=True)
    entries = [client.xadd("x", {"n": str(n)}) for n in range(3)]
    assert client.xdelex("x", entries[0], "9-9", entries[0]) == [1, -1, -1]
    for policy, entry in (("DELREF", entries[1]), ("ACKED", entries[2])):
        assert client.xdelex("x", entry, ref_policy=policy) == [1]
    assert client.xdelex("none", "1-1", "2-2") == [-1, -1]
    assert client.xlen("x") == 0
    client.set("plain", "1")
    for words, text in (
        (("x", "KEEPREF", "1-1", "2-2"), "syntax error"),
        (("x", "IDS", "0", "1-1"), "Number of IDs must be a positive integer"),
        (("x", "IDS", "x", "1-1"), "Number of IDs must be a positive integer"),
        (("x", "IDS", "2", "1-1"), "The `numids` parameter must match the number of arguments"),
        (("x", "IDS", "1", "nonsense"), "Invalid stream ID specified as stream command argument"),
        (("plain", "IDS", "1", "1-1"), "WRONGTYPE"),
        (("x", "IDS"), "wrong number of arguments for 'xdelex' command"),
    ):
        with pytest.raises(redis.ResponseError, match=text):
            client.execute_command("XDELEX", *words)
