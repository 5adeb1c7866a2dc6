"""What clients skip: work for replies that arrived together, and for registries that have not changed."""

import asyncio
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream.model.registry import Registry
from braidstream.model.strand import Strand
from tests.support.cluster import Cluster, become_cluster
from tests.support.regions import become
from tests.support.servers import Engine, Flavour

ROUNDS = 20


@pytest.fixture
def region(engine: Engine) -> Engine:
    become(engine)
    return engine


def queue(pipe: Any) -> None:
    """The engine sends a push after each SET: the connection has read the key before."""
    for n in range(ROUNDS):
        pipe.get("k")
        pipe.set("k", n)
        pipe.xadd("x", {"n": n})
        pipe.lpush("k", n)


def check(found: list[Any], length: int) -> None:
    assert length == ROUNDS
    for n in range(ROUNDS):
        read, was_set, entry, refused = found[4 * n : 4 * n + 4]
        assert read == (b"%d" % (n - 1) if n else None)
        assert was_set is True
        assert b"-" in entry
        assert isinstance(refused, redis.ResponseError)
        assert "wrong kind" in str(refused)


def test_pushes_between_replies_are_no_replies(region: Engine) -> None:
    with braidstream.Redis(port=region.port, protocol=3) as client:
        client.execute_command("CLIENT", "TRACKING", "ON")
        pipe = client.pipeline(transaction=False)
        queue(pipe)
        check(pipe.execute(raise_on_error=False), client.xlen("x"))


def test_pushes_between_replies_are_no_replies_in_asyncio(region: Engine) -> None:
    async def story() -> None:
        async with braidstream.asyncio.Redis(port=region.port, protocol=3) as client:
            await client.execute_command("CLIENT", "TRACKING", "ON")
            pipe = client.pipeline(transaction=False)
            queue(pipe)
            check(await pipe.execute(raise_on_error=False), await client.xlen("x"))

    asyncio.run(story())


def test_a_stream_that_changes_between_two_reads_is_read_anew(region: Engine) -> None:
    """A client parses the registry again only if it has changed."""
    with braidstream.Redis(port=region.port) as client, braidstream.Redis(port=region.port) as other:
        client.xadd("x", {"n": 1})
        assert [client.xlen("x") for _ in range(3)] == [1, 1, 1]
        other.delete("x")
        assert client.xlen("x") == 0
        other.xadd("x", {"n": 2})
        other.xadd("x", {"n": 3})
        assert client.xlen("x") == 2


def test_a_registry_that_a_pipeline_predicted_is_parsed_again() -> None:
    reply = [b"s1", b"0:-:7-3"]
    known = Registry.parse(b"x", reply)
    predicted = known.with_strand(Strand(b"x", "c", 1))
    assert known.parsed_again(b"x", reply) is known
    assert predicted.parsed_again(b"x", reply) == known != predicted


@pytest.mark.parametrize("flavour", ["redis-7.0"])
def test_reads_before_an_xadd_in_a_pipeline_do_not_see_it(flavour: Flavour) -> None:
    with Cluster(flavour) as cluster:
        become_cluster(cluster, id_mode="liberal")
        with braidstream.RedisCluster.from_url(cluster.url) as client:
            client.xadd("x", {"n": 1}, id="1-2")
            client.delete("x")
            pipe = client.pipeline()
            pipe.xrange("x")
            pipe.xadd("x", {"n": 2}, id="1-2")
            assert pipe.execute() == [[], b"1-2"]
