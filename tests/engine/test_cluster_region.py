"""`braid init` on a cluster: every primary knows which region it is, and has the functions."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from braidstream import lua as functions
from tests.support.cli import braid
from tests.support.cluster import Cluster, become_cluster
from tests.support.servers import Engine

pytestmark = pytest.mark.long


def _init(url: str, region: int = 1, name: str = "us-east") -> tuple[int, dict[str, Any]]:
    done = braid("init", "--url", url, "--region", str(region), "--name", name, "--json")
    return done.returncode, json.loads(done.stdout)


def _facts(node: Engine) -> dict[bytes, bytes]:
    with node.client() as client:
        reply = client.fcall_ro("bs_region", 0)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _version(node: Engine) -> int:
    with node.client() as client:
        return int(client.fcall_ro("bs_version", 0))


def test_every_primary_becomes_the_region_whichever_node_is_named(cluster: Cluster) -> None:
    code, told = _init(cluster.nodes[1].url)
    assert (code, told["region"], told["name"], told["primaries"]) == (0, 1, "us-east", 3), told
    assert told["functions"] == {"version": functions.VERSION, "was": 0}
    first = _facts(cluster.nodes[0])
    assert (first[b"region"], first[b"name"], first[b"writer"]) == (b"1", b"us-east", b"1")
    for node in cluster.nodes:
        assert _facts(node) == first
        assert _version(node) == functions.VERSION
    code, told = _init(cluster.nodes[2].url)
    assert (code, told["functions"]["was"]) == (0, functions.VERSION)
    assert [_facts(node) for node in cluster.nodes] == [first] * 3


def test_another_region_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    become_cluster(cluster)
    before = [_facts(node) for node in cluster.nodes]
    for region, name in ((2, "us-east"), (1, "eu-west")):
        code, told = _init(cluster.url, region, name)
        assert (code, told["code"]) == (1, "REGIONTAKEN"), told
    assert [_facts(node) for node in cluster.nodes] == before


def test_of_two_different_regions_at_once_one_wins(cluster: Cluster) -> None:
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(_init, cluster.nodes[at].url, at + 1, f"r{at + 1}") for at in range(2)]
    codes = [call.result()[0] for call in calls]
    assert sorted(codes) == [0, 1], [call.result() for call in calls]
    [winner] = {_facts(node)[b"region"] for node in cluster.nodes}
    assert int(winner) == codes.index(0) + 1


def test_a_primary_without_the_functions_gets_them_by_another_call(cluster: Cluster) -> None:
    become_cluster(cluster)
    with cluster.nodes[2].client() as added:
        added.function_flush("SYNC")
    code, told = _init(cluster.url)
    assert (code, told["functions"]["was"]) == (0, 0)
    assert _facts(cluster.nodes[2]) == _facts(cluster.nodes[0])
    assert _version(cluster.nodes[2]) == functions.VERSION


def test_a_node_of_another_region_is_found_and_named(cluster: Cluster) -> None:
    become_cluster(cluster)
    with cluster.nodes[2].client() as added:
        added.function_flush("SYNC")
        code = functions_of(cluster.nodes[0]).replace(r"\117\115\045\101\097\115\116", r"\120")
        added.function_load(code)
    code_, told = _init(cluster.url)
    assert code_ == 1
    assert "region 1 (us-east) and region 1 (x)" in told["error"]
    assert "FUNCTION DELETE braidstream_region" in told["error"]


def functions_of(node: Engine) -> str:
    with node.client(protocol=2) as client:
        client.response_callbacks.clear()
        [row] = client.execute_command("FUNCTION LIST", "LIBRARYNAME", "braidstream_region", "WITHCODE")
    return bytes(row[row.index(b"library_code") + 1]).decode()


def test_a_newer_library_is_kept(cluster: Cluster) -> None:
    become_cluster(cluster)
    newer = functions.source(functions.VERSION + 1)
    with cluster.nodes[1].client() as client:
        client.function_load(newer, replace=True)
    code, told = _init(cluster.url)
    assert (code, told["code"]) == (1, "LIBRARY")
    assert _version(cluster.nodes[1]) == functions.VERSION + 1


def test_a_name_may_hold_any_character(cluster: Cluster) -> None:
    name = 'l\'été\\n "x" ]]'
    assert _init(cluster.url, 7, name)[0] == 0
    assert _facts(cluster.nodes[0])[b"name"] == name.encode()


def test_a_cluster_that_evicts_any_key_is_refused(cluster: Cluster) -> None:
    with cluster.nodes[2].client() as node:
        node.config_set("maxmemory-policy", "allkeys-lru")
        try:
            code, told = _init(cluster.url)
        finally:
            node.config_set("maxmemory-policy", "noeviction")
        assert (code, "evicts any key" in told["error"]) == (1, True)
        assert node.function_list() == []
