"""A region is one server for now: how clients and commands refuse a node of a cluster."""

import json
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.support.cli import braid
from tests.support.cluster import Cluster
from tests.support.regions import become, client_of
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


def test_every_verb_that_makes_or_serves_a_region_says_that_it_is_one_server(
    cluster: Cluster, tmp_path: Path
) -> None:
    url, config = _owner(cluster, keys.CONFIG).url, tmp_path / "braid.toml"
    config.write_text(f'[[region]]\nid = 1\nname = "one"\nurl = "{url}"\n')
    for words in (
        ("init", "--url", url, "--region", "1", "--name", "one"),
        ("gateway", "--url", url, "--listen", "127.0.0.1:0"),
        ("replicate", "--config", str(config), "--region", "one"),
    ):
        code, told = _braid(*words)
        assert (code, told["code"]) == (1, "CLUSTER"), (words, told)
        assert "A region is one server" in told["error"]
    with redis.Redis.from_url(url) as bare:
        assert bare.exists("bs:config") == 0


def test_what_covers_all_keys_is_refused_on_a_node(cluster: Cluster) -> None:
    node = _owner(cluster, keys.CONFIG)
    become(node)
    with client_of(node, decode_responses=True) as client:
        for command in WHOLE:
            with pytest.raises(braidstream.RefusedError, match="this server is a node of a cluster"):
                client.execute_command(*command)
        assert client.hget("bs:config", "region") == "1"


def test_a_node_that_does_not_hold_the_config_is_told_as_what_it_is(cluster: Cluster) -> None:
    other = next(node for node in cluster.nodes if node is not _owner(cluster, keys.CONFIG))
    with client_of(other) as client, pytest.raises(braidstream.BraidError, match="node of a cluster"):
        client.xadd("x", {"n": "1"})
