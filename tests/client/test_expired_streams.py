"""A stream whose deadline is over, before a command notices it: for operators, Spark, native streams."""

from collections.abc import Iterator

import pytest
import redis

import braidstream
from braidstream.model.ids import native
from braidstream.operations.adoption import adopt, find_native
from braidstream.operations.streams import follow, read_stream
from braidstream.replication.daemon.reporting import with_groups
from braidstream.spark.source.survey import look
from tests.support.regions import position
from tests.support.servers import Engine
from tests.support.waiting import eventually


@pytest.fixture
def operator(engine: Engine) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(engine.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def expired(region: braidstream.Redis, operator: redis.Redis) -> str:
    """The last ID of stream x, which has expired."""
    entry = str(region.xadd("x", {"n": "1"}))
    region.xgroup_create("x", "g", 0)
    region.pexpire("x", 20)
    eventually(lambda: not operator.exists("bs:1:s:{x}"), within_s=30, why="the strand should expire")
    return entry


def test_operators_see_no_stream(region: braidstream.Redis, expired: str) -> None:
    assert region.run_plan(read_stream(b"x")) is None
    assert region.run_plan(follow(b"x", {}, 1)) is None
    assert region.run_plan(with_groups([b"x"])) == ([], [])


def test_spark_takes_it_for_deleted(region: braidstream.Redis, expired: str) -> None:
    [info] = region.run_plan(look(b"x")).values()
    assert not info.there
    assert info.cut >= native(expired.encode())


def test_a_native_stream_of_the_name_is_one(
    region: braidstream.Redis, operator: redis.Redis, expired: str
) -> None:
    operator.xadd("x", {"n": "2"}, id="5-5")
    assert region.xlen("x") == 1
    assert region.xrange("x") == [("5-5", {"n": "2"})]
    assert region.type("x") == "stream"


def test_a_native_stream_of_the_name_is_adopted(
    region: braidstream.Redis, operator: redis.Redis, expired: str
) -> None:
    operator.xadd("x", {"n": "2"}, id="5-5")
    [found] = region.run_plan(find_native([b"x"]))
    assert not found.is_stray
    assert not region.run_plan(adopt(b"x")).problem
    entry = str(region.xadd("x", {"n": "3"}))
    assert [fields["n"] for _, fields in region.xrange("x")] == ["2", "3"]
    assert position(entry) > position(expired)
    assert region.ttl("x") == -1


def test_a_stream_can_be_restored_under_the_name(
    region: braidstream.Redis, operator: redis.Redis, expired: str
) -> None:
    operator.xadd("source", {"n": "2"}, id="1-1")
    payload = operator.execute_command("DUMP", "source", NEVER_DECODE=True)
    region.restore("x", 0, payload)
    assert region.xrange("x") == [("1-1", {"n": "2"})]
    assert region.ttl("x") == -1


def test_a_copy_with_a_deadline_that_is_over_is_no_stream(
    region: braidstream.Redis, operator: redis.Redis
) -> None:
    region.xadd("x", {"n": "0"})
    operator.xadd("source", {"n": "1"}, id="1-1")
    payload = operator.execute_command("DUMP", "source", NEVER_DECODE=True)
    for name in ("new", "x"):
        region.restore(name, 1_500_000_000_000, payload, absttl=True, replace=name == "x")
        assert (region.exists(name), region.ttl(name)) == (0, -2)
        region.restore(name, 3_600_000, payload)
        assert 3_500_000 < region.pttl(name) <= 3_600_000
        assert region.xrange(name) == [("1-1", {"n": "1"})]
