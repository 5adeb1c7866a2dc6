"""When memory is full the engine takes no more entries, and everything that reads or takes away still works.

Redis refuses every command between MULTI and EXEC then, and a stream with several strands is asked by MULTI.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import braidstream
from braidstream.model.strand import Strand
from tests.support.regions import apply
from tests.support.servers import Engine

pytestmark = pytest.mark.every_engine

Work = Callable[[Any, str], Any]

WORK: dict[str, Work] = {
    "XLEN": lambda client, name: client.xlen(name),
    "XRANGE": lambda client, name: client.xrange(name),
    "XREVRANGE": lambda client, name: client.xrevrange(name, count=2),
    "XREAD": lambda client, name: client.xread({name: "0"}),
    "XINFO STREAM": lambda client, name: client.xinfo_stream(name)["length"],
    "XINFO GROUPS": lambda client, name: client.xinfo_groups(name)[0]["name"],
    "XPENDING": lambda client, name: client.xpending(name, "g")["pending"],
    "XPENDING a range": lambda client, name: len(client.xpending_range(name, "g", "-", "+", 10)),
    "XREADGROUP": lambda client, name: client.xreadgroup("g", "a", {name: ">"}, count=3),
    "XREADGROUP BLOCK": lambda client, name: client.xreadgroup("g", "a", {name: ">"}, count=3, block=10),
    "XREADGROUP of the past": lambda client, name: client.xreadgroup("g", "a", {name: "0"}),
    "XACK": lambda client, name: client.xack(name, "g", "1-1", "2-2"),
    "XAUTOCLAIM": lambda client, name: client.xautoclaim(name, "g", "b", 0, count=3),
    "XCLAIM": lambda client, name: client.xclaim(name, "g", "b", 0, ["1-1", "2-2"]),
    "XDEL": lambda client, name: client.xdel(name, "1-1", "2-2"),
    "XTRIM MAXLEN": lambda client, name: client.xtrim(name, maxlen=2, approximate=False),
    "XTRIM MINID": lambda client, name: client.xtrim(name, minid="3-0", approximate=False),
    "XGROUP DESTROY": lambda client, name: client.xgroup_destroy(name, "g"),
    "DEL": lambda client, name: client.delete(name),
    "a pipeline": lambda client, name: (
        client.pipeline(transaction=False).xlen(name).xrange(name).xtrim(name, maxlen=1).execute()
    ),
}


@pytest.fixture
def both(region: braidstream.Redis, engine: Engine) -> Iterator[dict[str, Any]]:
    """The same entries as a plain stream and as one of two strands, and then no memory is left."""
    with engine.client(decode_responses=True) as bare:
        for ms in range(1, 7):
            writer = 1 + (ms - 1) % 2
            strand = Strand(b"woven", "s", writer)
            before = (ms - 2, 0) if ms > 2 else (0, 0)
            region.run_plan(apply(strand, [((ms, 0), [b"n", b"%d" % ms])], after=before))
            bare.xadd("plain", {"n": str(ms)}, id=f"{ms}-{writer}")
        for client, name in ((bare, "plain"), (region, "woven")):
            client.xgroup_create(name, "g", "0")
            client.xreadgroup("g", "a", {name: ">"}, count=2)
        bare.config_set("maxmemory", "1")
        try:
            yield {"plain": bare, "woven": region}
        finally:
            bare.config_set("maxmemory", "0")


@pytest.mark.parametrize("work", WORK)
def test_full_memory_refuses_nothing_that_the_bare_engine_takes(both: dict[str, Any], work: str) -> None:
    plain, woven = (WORK[work](client, name) for name, client in both.items())
    assert str(woven).replace("woven", "plain") == str(plain)


def test_full_memory_refuses_an_append(both: dict[str, Any]) -> None:
    for name, client in both.items():
        with pytest.raises(redis.OutOfMemoryError):
            client.xadd(name, {"n": "7"})
        assert client.xlen(name) == 6


def test_full_memory_does_not_end_a_watch(both: dict[str, Any]) -> None:
    for name, client in both.items():
        both["plain"].config_set("maxmemory", "0")
        client.set("k", "before")
        both["plain"].config_set("maxmemory", "1")
        pipe = client.pipeline()
        pipe.watch("k")
        assert both["plain"].delete("k") == 1
        pipe.multi()
        pipe.xdel(name, "1-1", "2-2")
        with pytest.raises((redis.WatchError, redis.OutOfMemoryError)):  # newer engines queue it
            pipe.execute()
        assert client.xlen(name) == 6
