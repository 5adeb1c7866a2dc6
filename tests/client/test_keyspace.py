"""FLUSHDB, FLUSHALL, KEYS, SCAN, RANDOMKEY, TOUCH: what users see of our keys."""

import pytest
import redis

import braidstream
from tests.support.clients import Opener
from tests.support.servers import Engine

FAR = 99_999_999_999_999


@pytest.mark.parametrize("flush", ["FLUSHDB", "FLUSHDB SYNC", "FLUSHALL", "FLUSHALL ASYNC"])
def test_flushing_deletes_streams_and_plain_keys_and_the_region_stays(
    region: braidstream.Redis, flush: str
) -> None:
    before = region.xadd("x", {"n": "1"}, id=str(FAR))
    region.set("plain", "1")
    assert region.execute_command(*flush.split()) in (True, "OK")
    assert (region.keys(), region.exists("x", "plain")) == ([], 0)
    assert region.xadd("x", {"n": "2"}) == f"{FAR}-1025" > before


def test_flushall_takes_other_databases_along_unless_one_is_a_region_that_holds_keys(
    region: braidstream.Redis, engine: Engine
) -> None:
    entry = region.xadd("x", {"n": "1"})
    with redis.Redis.from_url(engine.url.replace("/0", "/3")) as other:
        other.hset("bs:config", "region", "2")
        other.set("of another region", "1")
        with pytest.raises(redis.ResponseError, match="FLUSHALL refused by braidstream: db3 .*Use FLUSHDB"):
            region.flushall()
        assert (region.xrange("x"), other.dbsize()) == ([(entry, {"n": "1"})], 2)
        other.delete("of another region")
        region.flushall()
        assert (region.xlen("x"), other.dbsize()) == (0, 1)
        other.delete("bs:config")
        other.set("plain", "1")
        region.flushall()
        assert other.dbsize() == 0


def test_a_wrong_flush_is_a_syntax_error(region: braidstream.Redis) -> None:
    region.xadd("x", {"n": "1"})
    with pytest.raises(redis.ResponseError, match="syntax error"):
        region.execute_command("FLUSHDB", "NOW")
    assert region.xlen("x") == 1


def test_randomkey_and_touch_know_streams_and_never_show_our_keys(liberal: braidstream.Redis) -> None:
    assert liberal.randomkey() is None
    for n in range(20):
        liberal.xadd(f"gone:{n}", {"n": "1"})
        liberal.delete(f"gone:{n}")
    assert liberal.randomkey() is None
    liberal.xadd("orders", {"n": "1"})
    assert liberal.randomkey() == "orders"
    liberal.set("plain", "1")
    assert {liberal.randomkey() for _ in range(10)} <= {"orders", "plain"}
    assert liberal.touch("orders", "plain", "none", "orders") == 3


def test_keys_and_scan_show_streams_by_their_names_and_hide_our_keys(liberal: braidstream.Redis) -> None:
    names = ["orders:1", "orders:2", "", "}x", "{a}b", "bs:mine", "é"]
    for name in names:
        liberal.xadd(name, {"n": "1"})
    liberal.xadd("orders:1", {"n": "2"}, id=f"{FAR}-1")
    liberal.xadd("deleted", {"n": "1"})
    liberal.delete("deleted")
    liberal.set("orders:plain", "1")
    everything = sorted([*names, "orders:plain"])
    assert sorted(liberal.keys("*")) == sorted(liberal.scan_iter(count=3)) == everything
    assert (
        sorted(liberal.keys("orders:?")) == sorted(liberal.scan_iter("orders:?")) == ["orders:1", "orders:2"]
    )
    assert sorted(liberal.keys("bs:*")) == sorted(liberal.scan_iter("bs:*")) == ["bs:mine"]
    assert sorted(liberal.scan_iter(_type="stream")) == sorted(names)
    assert list(liberal.scan_iter(_type="string")) == ["orders:plain"]


@pytest.mark.parametrize("name", ["x", b"x"])
def test_set_replaces_a_stream_that_this_client_has_only_appended_to(
    region: braidstream.Redis, opened: Opener, engine: Engine, name: str | bytes
) -> None:
    region.xadd("x", {"n": 1})
    client = opened(engine.url, decode_responses=True)
    client.xadd(name, {"n": 2})
    client.set(name, "v")
    assert (client.get("x"), client.type("x"), client.exists("x")) == ("v", "string", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.xlen("x")
