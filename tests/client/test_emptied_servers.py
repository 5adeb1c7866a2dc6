"""FLUSHALL at the server: clients still remember the region for a second, and their next write is refused.

The server has forgotten its IDs. If they were ahead of the clock, groups in other regions are past new ones.
"""

from collections.abc import Callable

import pytest

import braidstream
from tests.support.regions import client_of
from tests.support.servers import Engine

ENTRY = {"n": "1"}


def _piped(client: braidstream.Redis, names: list[str], *, multi: bool) -> None:
    with client.pipeline(transaction=multi) as pipe:
        for name in names:
            pipe.xadd(name, ENTRY).xadd(name, ENTRY)
        pipe.execute()


def _messages(client: braidstream.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.xadd("x", ENTRY, idmp=("p", b"1")).xadd("x", ENTRY, idmp=("p", b"2"))
        pipe.execute()


def _group(client: braidstream.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.xgroup_create("x", "g", "0", mkstream=True)
        pipe.execute()


WAYS: dict[str, Callable[[braidstream.Redis], object]] = {
    "XADD": lambda client: client.xadd("x", ENTRY),
    "XADD with a cap": lambda client: client.xadd("x", ENTRY, maxlen=10),
    "a chosen ID": lambda client: client.xadd("x", ENTRY, id="5-5"),
    "a message": lambda client: client.xadd("x", ENTRY, idmp=("p", b"1")),
    "messages": _messages,
    "a pipeline": lambda client: _piped(client, ["x"], multi=False),
    "MULTI": lambda client: _piped(client, ["x"], multi=True),
    "a MULTI of two streams": lambda client: _piped(client, ["x", "y"], multi=True),
    "XGROUP CREATE": lambda client: client.xgroup_create("x", "g", "0", mkstream=True),
    "XGROUP CREATE in a pipeline": _group,
    "TWRITE": lambda client: client.twrite("log", "tag", "entry"),
    "TCFGSET": lambda client: client.execute_command("TCFGSET", "log", "BACKLOG", 10),
}


def _write_everything(client: braidstream.Redis) -> None:
    for name in ("x", "y"):
        client.xadd(name, ENTRY)
    client.twrite("log", "tag", "entry")


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_was_emptied_takes_no_write(
    liberal: braidstream.Redis, engine: Engine, way: str, known: bool
) -> None:
    """known: the client has written to the stream. Else it knows the region only."""
    if known:
        _write_everything(liberal)
    else:
        liberal.xlen("x")
    with engine.client() as operator:
        operator.flushall()
        with pytest.raises(braidstream.NotARegionError, match="braid region rejoin"):
            WAYS[way](liberal)
        assert operator.keys("*") == []


def test_a_server_that_was_emptied_takes_no_stream_from_a_dump(
    liberal: braidstream.Redis, engine: Engine
) -> None:
    liberal.xadd("x", ENTRY)
    payload = liberal.dump("x")
    with engine.client() as operator:
        operator.flushall()
        with pytest.raises(braidstream.NotARegionError):
            liberal.restore("y", 0, payload)
        assert operator.keys("*") == []


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_whose_registry_was_lost_is_written_on(
    liberal: braidstream.Redis, engine: Engine, way: str
) -> None:
    """Evicted, say, with its strands. The server is still the region."""
    _write_everything(liberal)
    with engine.client() as operator:
        operator.delete(*(key for key in operator.keys("bs:*") if key != b"bs:config"))
    WAYS[way](liberal)
    with client_of(engine) as other:
        name = "log" if way.startswith("T") else "x"
        assert other.exists(name) == 1
