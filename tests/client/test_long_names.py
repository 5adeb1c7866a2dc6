"""The name of a stream has a limit: daemons send it many times."""

import tracemalloc

import pytest
import redis

import braidstream
from braidstream.commands.keyspace import count_hidden
from braidstream.errors import RefusedError
from braidstream.model.keys import NAME_BYTES
from braidstream.operations.adoption import adopt
from tests.support.servers import Engine

LONGEST = "n" * NAME_BYTES


def test_the_longest_name_works(region: braidstream.Redis) -> None:
    entry = region.xadd(LONGEST, {"n": "1"})
    region.xgroup_create(LONGEST, "jobs", "0")
    assert [name for name, _ in region.xreadgroup("jobs", "ann", {LONGEST: ">"})] == [LONGEST]
    assert region.xrange(LONGEST)[0][0] == entry
    assert region.keys() == [LONGEST]


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("words", [("XADD", "*", "n", "1"), ("XADD", "5-1", "n", "1"), ("TWRITE", "t", "e")])
def test_a_longer_name_is_refused(region: braidstream.Redis, words: tuple[str, ...], pipelined: bool) -> None:
    line = (words[0], LONGEST + "n", *words[1:])
    with pytest.raises(redis.ResponseError, match="refused by braidstream: the name has 4,097 bytes"):
        region.pipeline().execute_command(*line).execute() if pipelined else region.execute_command(*line)
    assert region.dbsize() == 0


def test_messages_of_a_pipeline_create_no_longer_name(region: braidstream.Redis) -> None:
    """They share a call, which refused neither a longer name nor a key of our own."""
    for name in (LONGEST + "n", "bs:meta:{orders}"):
        pipe = region.pipeline(transaction=False)
        for number in range(2):
            pipe.execute_command("XADD", name, "IDMP", "p", number, "*", "n", "1")
        replies = pipe.execute(raise_on_error=False)
        assert ["refused by braidstream" in str(reply) for reply in replies] == [True, True]
    assert region.dbsize() == 0


def test_settings_create_no_log_of_a_longer_name(region: braidstream.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="the name has 4,097 bytes"):
        region.tcfgset(LONGEST + "n", pending=5)
    assert region.dbsize() == 0


def test_a_group_does_not_create_a_longer_name(region: braidstream.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="the name has 4,097 bytes"):
        region.xgroup_create(LONGEST + "n", "jobs", mkstream=True)


@pytest.mark.parametrize("words", [("RENAME",), ("RENAMENX",), ("COPY",), ("COPY", "REPLACE")])
def test_no_stream_gets_a_longer_name(region: braidstream.Redis, words: tuple[str, ...]) -> None:
    region.xadd("orders", {"n": "1"})
    with pytest.raises(redis.ResponseError, match="the name has 4,097 bytes"):
        region.execute_command(words[0], "orders", LONGEST + "n", *words[1:])
    assert region.keys() == ["orders"]
    assert region.xlen("orders") == 1


def test_a_dump_does_not_create_a_longer_name(region: braidstream.Redis) -> None:
    region.xadd("orders", {"n": "1"})
    dumped = region.dump("orders")
    assert dumped
    with pytest.raises(redis.ResponseError, match="the name has 4,097 bytes"):
        region.restore(LONGEST + "n", 0, dumped)
    assert region.keys() == ["orders"]


def test_a_native_stream_with_a_longer_name_is_not_adopted(region: braidstream.Redis, engine: Engine) -> None:
    with engine.client() as native:
        native.xadd(LONGEST + "n", {"n": "1"})
        with pytest.raises(RefusedError, match="the name has 4,097 bytes"):
            region.run_plan(adopt(LONGEST.encode() + b"n"))
        assert native.xlen(LONGEST + "n") == 1


def test_a_plain_key_may_have_a_longer_name(region: braidstream.Redis) -> None:
    region.set(LONGEST + "n", "1")
    assert region.exists(LONGEST + "n") == 1
    assert region.delete(LONGEST + "n") == 1


def test_counting_keys_holds_few_long_names(region: braidstream.Redis, engine: Engine) -> None:
    """Hidden keys with names of 500 kB, as a tenant can make them. All of them were held, three times."""
    region.xadd("a", {"n": "1"})
    before = region.dbsize()
    with engine.client() as tenant:
        for number in range(200):
            tenant.hset(b"bs:meta:{a}" + b"%0500000d" % number, "s1", "0:+:0-0")
        tracemalloc.start()
        try:
            found = region.run_plan(count_hidden(expiring=True))
            assert tracemalloc.get_traced_memory()[1] < 40_000_000
            assert region.dbsize() == before
        finally:
            tracemalloc.stop()
    assert (found.keys > 200, found.streams, found.expiring) == (True, 1, 0)
