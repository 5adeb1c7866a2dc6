"""What does not work on a cluster yet says so, and leaves the cluster alone."""

import json
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.support.cli import braid
from tests.support.cluster import Cluster, become_cluster
from tests.support.regions import client_of
from tests.support.servers import Engine

WHOLE = (("KEYS", "*"), ("SCAN", 0), ("DBSIZE",), ("RANDOMKEY",), ("FLUSHDB",), ("FLUSHALL",))


def _owner(cluster: Cluster, key: bytes) -> Engine:
    slot = key_slot(key)
    return next(
        node
        for (first, last), node in zip(cluster.SLOTS, cluster.nodes, strict=True)
        if first <= slot <= last
    )


def _braid(*words: str) -> tuple[int, dict[str, str]]:
    done = braid(*words, "--json")
    return done.returncode, json.loads(done.stdout)


def test_every_verb_that_does_not_work_on_a_cluster_says_so(cluster: Cluster, tmp_path: Path) -> None:
    become_cluster(cluster)
    url, other, config = _owner(cluster, keys.CONFIG).url, cluster.nodes[0].url, tmp_path / "braid.toml"
    assert url != other
    config.write_text(f'[[region]]\nid = 1\nname = "us-east"\nurl = "{url}"\n')
    for words in (
        ("gateway", "--url", url, "--listen", "127.0.0.1:0"),
        ("replicate", "--config", str(config), "--region", "us-east"),
        ("adopt", "orders", "--url", url),
        ("tune", "id-mode", "liberal", "--url", other),
        ("streams", "--url", other),
        ("group", "list", "--url", url),
        ("log", "create", "payments", "--home", "us-east", "--config", str(config)),
        ("log", "info", "payments", "--config", str(config)),
        ("log", "set", "payments", "--pending", "5", "--config", str(config)),
    ):
        code, told = _braid(*words)
        assert (code, told["code"]) == (1, "CLUSTER"), (words, told)
        assert "braidstream.asyncio.RedisCluster work so far" in told["error"]
    for verb in ("doctor", "status"):
        done = braid(verb, "--config", str(config), "--json")
        assert done.returncode == 1, done.stdout
        assert "this server is a node of a cluster" in done.stdout
    with redis.Redis.from_url(_owner(cluster, keys.CONFIG).url) as bare:
        assert bare.exists("bs:config") == 0


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
