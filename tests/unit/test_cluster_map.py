"""The nodes of a cluster, as CLUSTER NODES and CLUSTER SLOTS describe them."""

import pytest

from braidstream.clusters.bulk import Server
from braidstream.operations.cluster_map import ClusterNode, parse_nodes, place_text, spans_text, unserved

TEXT = b"""\
a 10.0.0.1:7000@17000 master - 0 1 3 connected 0-99 200
b ::1:7001@17001,host-b,shard-id=1 myself,slave a 0 1 3 connected
c :7002@17002 master,fail - 0 1 3 disconnected 300-16383 [301->-a] [302-<-a]
d :0@0 slave,noaddr a 0 1 3 disconnected
e 10.0.0.5:7005@17005 handshake - 0 1 0 connected
"""


def test_addresses_roles_and_slots_are_read() -> None:
    a, b, c = parse_nodes(TEXT, "seed", {"b": ("host-b", 7001)})
    assert (a.name, a.is_primary, a.slots) == ("10.0.0.1:7000", True, ((0, 99), (200, 200)))
    assert (b.name, b.is_primary, b.slots) == ("host-b:7001", False, ())
    assert (c.name, c.has_failed, c.moving) == ("seed:7002", True, (301, 302))
    [_, bare, _] = parse_nodes(TEXT, "seed", {})
    assert (bare.host, bare.port) == ("::1", 7001)


def test_slots_that_nobody_serves_are_named() -> None:
    nodes = parse_nodes(TEXT, "seed", {})
    assert spans_text(unserved(nodes)) == "100-199, 201-16383"
    whole = [ClusterNode("a", "h", 1, frozenset(), ((0, 8_000), (8_001, 16_383)))]
    assert unserved(whole) == []
    assert unserved([]) == [(0, 16_383)]


def test_many_nodes_are_not_all_named() -> None:
    assert place_text("us-east", ()) == "us-east"
    assert place_text("us-east", [*"abcdefg"]) == "us-east (a, b, c, d, e and 2 more)"


@pytest.mark.parametrize(("option", "wanted"), [("true", True), ("false", False)])
def test_whether_a_server_is_a_cluster_is_not_asked_if_an_option_says_it(option: str, wanted: bool) -> None:
    assert Server("redis://127.0.0.1:1", {"cluster": option}).is_cluster is wanted
