"""Eviction of entries by age: MAXAGE and OLDER. And plain keys that replace a log."""

import asyncio

import pytest
import redis

import braidstream
import braidstream.asyncio
from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually

HOUR = 3_600_000


def extent(client: braidstream.Redis) -> tuple[int, int]:
    (first, last), _ = client.tread("log", count=0, withinfo=True)
    return first, last


def test_writes_evict_what_is_too_old(region: braidstream.Redis) -> None:
    region.twrite("log", entries=[("t", "old")] * 250)
    region.tcfgset("log", maxage=1)

    def evicted() -> bool:
        region.twrite("log", "t", "new")
        return extent(region)[0] > 250

    eventually(evicted, within_s=30, why="old entries should go")
    region.tcfgset("log", maxage=HOUR)
    region.twrite("log", "t", "kept")
    first, last = extent(region)
    assert first <= last
    assert region.tread("log", last, 1) == [(last, "t", "kept")]
    assert region.xinfo_stream("log")["max-age"] == HOUR


def test_nothing_is_evicted_early(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")
    region.tcfgset("log", maxage=HOUR)
    region.twrite("log", "t", "2")
    region.twrite("log", "t", "3", maxage=HOUR)
    assert extent(region) == (1, 3)
    assert region.twrite("log", entries=[("t", "4")], maxage=0) == [4]
    assert extent(region) == (1, 4)


def test_a_write_may_say_the_age_itself(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")

    def evicted() -> bool:
        region.twrite("log", "t", "new", maxage=1)
        return extent(region)[0] > 1

    eventually(evicted, within_s=30, why="old entries should go")


def test_tevict_takes_an_age(region: braidstream.Redis, engine: Engine) -> None:
    region.twrite("log", "t", "1")
    region.twrite("log", "t", "2")  # notes how far the log has come
    assert region.tevict("log", older=HOUR) == 0
    assert region.tevict("log", older=0) == 2
    assert extent(region) == (3, 2)
    assert region.twrite("log", "t", "3") == 3
    with engine.client() as operator:
        assert operator.pttl("bs:tick:{log}") > 0
    region.delete("log")
    assert region.tevict("log", older=0) == 0
    assert region.keys("*") == []
    for words in (
        ("TEVICT", "log", "OLDER", "x"),
        ("TEVICT", "log", "YOUNGER", "1"),
        ("TCFGSET", "log", "MAXAGE", "-1"),
    ):
        with pytest.raises(redis.ResponseError, match="syntax error|out of range"):
            region.execute_command(*words)


def test_a_log_that_others_deleted_is_noted_in_pipelines_too(region: braidstream.Redis) -> None:
    region.twrite("log", "t", "1")
    with region.pipeline(transaction=False) as pipe:
        assert pipe.twrite("log", "t", "2").twrite("log", "t", "3").execute() == [2, 3]
    assert region.tevict("log", older=0) >= 2
    with region.pipeline() as pipe:
        assert pipe.twrite("log", "t", "4").twrite("log", "t", "5").execute() == [4, 5]


@pytest.mark.parametrize("name", ["log", "stream"])
def test_set_replaces_a_log_or_a_stream(region: braidstream.Redis, engine: Engine, name: str) -> None:
    def write(client: braidstream.Redis) -> None:
        client.twrite("log", "t", "1") if name == "log" else client.xadd("stream", {"a": "1"})

    async def replace() -> None:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            await (client.twrite("log", "t", "3") if name == "log" else client.xadd("stream", {"a": "1"}))
            assert await client.set(name, "3") is True

    write(region)
    region.session.cache.expire_region()
    assert region.exists("other") == 0  # reads the region again
    assert region.set(name, "value", nx=True) is None
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.set(name, "value", get=True)
    assert region.set(name, "value", ex=100) is True
    assert (region.get(name), region.type(name), region.exists(name)) == ("value", "string", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        write(region)
    region.delete(name)
    write(region)
    assert region.execute_command("SETEX", name, 100, "2") is True
    assert (region.get(name), region.type(name)) == ("2", "string")
    region.delete(name)
    asyncio.run(replace())
    assert (region.get(name), region.type(name)) == ("3", "string")
    region.delete(name)
    if name == "log":
        assert region.twrite("log", "t", "4") == 4


def test_set_replaces_a_log_at_the_gateway(engine: Engine) -> None:
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        assert line.say("TWRITE log t 1") == b":1\r\n"
        assert line.say("SET log x") == b"+OK\r\n"
        assert line.say("TYPE log") == b"+string\r\n"
        assert line.say("DEL log") == b":1\r\n"
        assert line.say("TWRITE log t 2") == b":2\r\n"
