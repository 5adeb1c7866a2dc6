"""XADD: a plain append, the creation of its strand, its refusals."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

import braidstream
from braidstream.model.strand import Strand
from tests.support.clients import Opener
from tests.support.gateways import Served
from tests.support.matrix import on_every_engine
from tests.support.proxy import Proxy
from tests.support.regions import apply
from tests.support.servers import Engine

flavour = on_every_engine


def test_an_id_carries_the_region_and_ids_ascend(region: braidstream.Redis) -> None:
    found = [region.xadd("messages", {"text": f"hello {n}"}) for n in range(100)]
    sequences = [int(entry.split("-")[1]) for entry in found]
    assert all(sequence % 1024 == 1 for sequence in sequences)
    assert [entry for entry, _ in region.xrange("messages")] == found


def test_a_plain_key_of_the_name_is_the_wrong_type(region: braidstream.Redis) -> None:
    region.set("messages", "not a stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.xadd("messages", {"text": "hello"})
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.xrange("messages")


def _two_strands(region: braidstream.Redis) -> None:
    region.xadd("messages", {"text": "first"})
    region.run_plan(apply(Strand(b"messages", "s", 2), [((1, 0), [b"text", b"from region 2"])]))


@contextmanager
def _behind_a_proxy(
    region: braidstream.Redis, engine: Engine
) -> Iterator[tuple[redis.Redis, Proxy, ThreadPoolExecutor, braidstream.Redis]]:
    """A stream of two strands, and a client whose commands a proxy can stall."""
    _two_strands(region)
    with (
        engine.client() as operator,
        Proxy(engine.port) as proxy,
        ThreadPoolExecutor(1) as pool,
        braidstream.Redis.from_url(proxy.url, decode_responses=True) as client,
    ):
        yield operator, proxy, pool, client


@pytest.mark.parametrize("message", [(), ("IDMP", "till", "1")])
def test_an_append_is_told_as_done_where_its_cap_is_refused(
    region: braidstream.Redis, engine: Engine, message: tuple[str, ...]
) -> None:
    """The cap of several strands comes after the append, and the engine may take no writes by then."""
    with _behind_a_proxy(region, engine) as (operator, proxy, pool, client):
        proxy.stall(b"\r\nXTRIM")
        words = ("XADD", "messages", *message, "MAXLEN", "1", "*", "text", "second")
        added = pool.submit(client.execute_command, *words)
        try:
            assert proxy.stalled.wait(5)
            operator.config_set("min-replicas-to-write", "1")
            proxy.stall(b"nothing more")
            proxy.go_on()
            assert added.result(5) == region.xrevrange("messages")[0][0]
        finally:
            operator.config_set("min-replicas-to-write", "0")


@pytest.mark.parametrize("word", [b"XLEN", b"XRANGE", b"XTRIM"])
@pytest.mark.parametrize("message", [(), ("IDMP", "till", "1")])
def test_an_append_is_told_as_done_where_the_connection_is_lost_in_its_cap(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, message: tuple[str, ...], word: bytes
) -> None:
    _two_strands(region)
    client = opened(proxy.url, decode_responses=True)
    _cap_is_lost(client, proxy, region, ("XADD", "messages", *message, "MAXLEN", "1", "*", "n", "2"), word)


@pytest.mark.parametrize("word", [b"XLEN", b"XTRIM"])
def test_a_gateway_tells_an_append_as_done_where_the_connection_is_lost_in_its_cap(
    proxy: Proxy, region: braidstream.Redis, word: bytes
) -> None:
    _two_strands(region)
    with Served(proxy.url) as gateway, redis.Redis(port=gateway.port, decode_responses=True) as client:
        _cap_is_lost(client, proxy, region, ("XADD", "messages", "MAXLEN", "1", "*", "n", "2"), word)


def _cap_is_lost(
    client: Any, proxy: Proxy, region: braidstream.Redis, words: tuple[str, ...], word: bytes
) -> None:
    client.xlen("messages")
    proxy.lose_replies(b"\r\n" + word, times=1)
    added = client.execute_command(*words)
    assert proxy.lost == 1
    assert region.xrevrange("messages")[0][0] == added
    assert [fields.get("n") for _, fields in region.xrange("messages")].count("2") == 1
    client.execute_command(*words[:2], "MAXLEN", "1", "*", "n", "3")
    assert [fields["n"] for _, fields in region.xrange("messages")] == ["3"]


def test_an_append_is_told_as_done_where_the_user_may_not_trim(
    region: braidstream.Redis, engine: Engine
) -> None:
    _two_strands(region)
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "writer", "reset", "on", ">secret", "~*", "+@all", "-xack")
    url = engine.url.replace("//", "//writer:secret@")
    with braidstream.Redis.from_url(url, decode_responses=True) as client:
        added = client.xadd("messages", {"n": 2}, maxlen=1, approximate=False, ref_policy="DELREF")
        assert region.xrevrange("messages")[0][0] == added


def test_an_append_that_fills_the_memory_is_capped_and_told_as_done(
    region: braidstream.Redis, engine: Engine
) -> None:
    """The cap of several strands comes after the append, and full memory refuses every MULTI."""
    with _behind_a_proxy(region, engine) as (operator, proxy, pool, client):
        proxy.stall(b"\r\nXLEN")
        added = pool.submit(client.xadd, "messages", {"text": "second"}, maxlen=1, approximate=False)
        try:
            assert proxy.stalled.wait(5)
            operator.config_set("maxmemory", "1")
            proxy.stall(b"nothing more")
            proxy.go_on()
            assert [added.result(5)] == [entry for entry, _ in region.xrange("messages")]
        finally:
            operator.config_set("maxmemory", "0")


def test_a_command_in_one_string_appends_as_redis_py_does(region: braidstream.Redis) -> None:
    region.execute_command("XADD orders * f v")
    region.execute_command("XADD orders", "*", "f", "v")
    region.execute_command("XADD", "*", "*", "f", "v")
    assert (region.xlen("orders"), region.xlen("*")) == (2, 1)


@pytest.mark.parametrize("entry", ["5", "5-*"])
def test_an_append_after_a_refused_one_in_a_pipeline_creates_no_stream(
    region: braidstream.Redis, entry: str
) -> None:
    """The refused append has created the strand; it must be gone before the next command runs."""
    region.xadd("messages", {"text": "first"})
    region.delete("messages")
    pipe = region.pipeline(transaction=False)
    pipe.execute_command("XADD", "messages", entry, "text", "refused")
    pipe.execute_command("XADD", "messages", "NOMKSTREAM", "*", "text", "second")
    refused, second = pipe.execute(raise_on_error=False)
    assert isinstance(refused, redis.ResponseError)
    assert second is None
    assert not region.exists("messages")
