"""What does not work on a cluster yet says so, and leaves the cluster alone."""

import pytest
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.support.cluster import Cluster
from tests.support.regions import client_of
from tests.support.servers import Engine

pytestmark = pytest.mark.long

WHOLE = (("KEYS", "*"), ("SCAN", 0), ("DBSIZE",), ("RANDOMKEY",), ("FLUSHDB",), ("FLUSHALL",))


def _owner(cluster: Cluster, key: bytes) -> Engine:
    slot = key_slot(key)
    return next(
        node
        for (first, last), node in zip(cluster.SLOTS, cluster.nodes, strict=True)
        if first <= slot <= last
    )


def test_a_client_of_one_server_refuses_a_node_even_if_it_has_a_config(cluster: Cluster) -> None:
    node = _owner(cluster, keys.CONFIG)
    with node.client() as bare:
        bare.hset("bs:config", mapping={"region": 1, "name": "one", "writer": 1, "id-mode": "strict"})
    with client_of(node, decode_responses=True) as client:
        for command in (*WHOLE, ("XADD", "x", "*", "n", "1")):
            with pytest.raises(braidstream.BraidError, match="this server is a node of a cluster"):
                client.execute_command(*command)
        assert client.hget("bs:config", "region") == "1"


def test_a_node_that_does_not_hold_the_config_is_told_as_what_it_is(cluster: Cluster) -> None:
    other = next(node for node in cluster.nodes if node is not _owner(cluster, keys.CONFIG))
    with client_of(other) as client, pytest.raises(braidstream.BraidError, match="node of a cluster"):
        client.xadd("x", {"n": "1"})
