"""Every primary of a cluster has the functions and the same facts, also after a change that broke off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.crc import key_slot

from braidstream import lua
from braidstream.cli.regions import add_writers, prepare_cluster
from braidstream.engine.address import parse_address
from braidstream.errors import BraidError, LostError
from braidstream.lua.cluster_facts import Facts, facts_library
from braidstream.model.fields import ConfigField
from braidstream.model.keys import FACTS_LOCK
from braidstream.replication import region_facts
from braidstream.replication.endpoint import Endpoint, Node
from braidstream.replication.region_facts import Completion, change_facts
from tests.support.cluster import Cluster, become_cluster
from tests.support.servers import Engine

pytestmark = pytest.mark.long


def facts_at(node: Engine) -> Facts:
    with node.client() as client:
        reply = client.fcall_ro("bs_region", 0)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def writers_of(cluster: Cluster) -> list[bytes]:
    return [facts_at(node)[ConfigField.WRITERS] for node in cluster.nodes]


def leave_old(node: Engine, facts: Facts) -> None:
    """As if a change had not reached this node."""
    with node.client() as client:
        client.execute_command("FUNCTION", "LOAD", "REPLACE", facts_library(facts))


@asynccontextmanager
async def reached(cluster: Cluster) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(parse_address(cluster.url))
    await endpoint.connect()
    try:
        yield endpoint
    finally:
        endpoint.close()


def endpoint_of(node: Engine, cluster: Endpoint) -> Node:
    return next(each for each in cluster.nodes if each.address.port == node.port)


async def reconnect(node: Engine, cluster: Endpoint) -> None:
    endpoint = endpoint_of(node, cluster)
    endpoint.close()
    await endpoint.connect()


def test_a_command_completes_a_change_that_was_broken_off(cluster: Cluster) -> None:
    become_cluster(cluster)
    before = facts_at(cluster.nodes[2])
    add_writers(cluster.url, [2])
    leave_old(cluster.nodes[2], before)
    add_writers(cluster.url, [2])
    assert writers_of(cluster) == [b"1 2"] * 3


def test_a_primary_that_was_lost_gets_what_it_missed_from_the_daemon(cluster: Cluster) -> None:
    become_cluster(cluster)
    before = facts_at(cluster.nodes[2])
    add_writers(cluster.url, [2])

    async def run() -> None:
        async with reached(cluster) as endpoint:
            completion = Completion(endpoint)
            await completion.look()
            leave_old(cluster.nodes[2], before)
            await reconnect(cluster.nodes[2], endpoint)
            await completion.look()
            assert writers_of(cluster) == [b"1 2"] * 3

            with cluster.nodes[2].client() as client:  # it restarted without a copy on its disk
                client.function_flush()
            endpoint_of(cluster.nodes[0], endpoint).close()  # another one is lost now
            await reconnect(cluster.nodes[2], endpoint)
            await completion.look()
            assert writers_of(cluster) == [b"1 2"] * 3
            with cluster.nodes[2].client() as client:
                assert client.fcall_ro("bs_version", 0) == lua.VERSION

    asyncio.run(run())


def test_a_removal_that_reached_some_primaries_wins_over_a_later_change_of_the_others(
    cluster: Cluster,
) -> None:
    become_cluster(cluster)
    add_writers(cluster.url, [2, 3])
    before = facts_at(cluster.nodes[0])
    newer = b"%d" % (int(before[ConfigField.TOPOLOGY]) + 2)
    removed = {**before, ConfigField.WRITERS: b"1 2", ConfigField.LEFT: b"3"}
    for node in cluster.nodes[1:]:
        leave_old(node, removed)
    leave_old(cluster.nodes[0], {**before, ConfigField.WRITERS: b"1 2 3 4", ConfigField.TOPOLOGY: newer})

    async def run() -> None:
        async with reached(cluster) as endpoint:
            await Completion(endpoint).look()

    asyncio.run(run())
    assert writers_of(cluster) == [b"1 2 4"] * 3
    assert [facts_at(node)[ConfigField.LEFT] for node in cluster.nodes] == [b"3"] * 3


def test_a_node_of_another_cluster_of_that_name_removes_no_region(cluster: Cluster) -> None:
    become_cluster(cluster)
    add_writers(cluster.url, [2, 3])
    facts = facts_at(cluster.nodes[0])
    lower = b"%d" % (int(facts[ConfigField.TOPOLOGY]) - 1)
    other = {ConfigField.IDENTITY: b"f" * 40, ConfigField.LEFT: b"2", ConfigField.TOPOLOGY: lower}
    leave_old(cluster.nodes[2], {**facts, **other})

    async def run() -> None:
        async with reached(cluster) as endpoint:
            await Completion(endpoint).look()

    asyncio.run(run())
    assert [facts_at(node) for node in cluster.nodes] == [facts] * 3


def test_a_change_that_lost_its_key_does_not_undo_a_removal(cluster: Cluster) -> None:
    become_cluster(cluster)
    add_writers(cluster.url, [2, 3])

    def remove_meanwhile() -> None:
        """A failover lost the key, so `braid region remove` did not wait."""
        for node in cluster.nodes:
            facts = facts_at(node)
            topology = b"%d" % (int(facts[ConfigField.TOPOLOGY]) + 1)
            left = {ConfigField.WRITERS: b"1 2", ConfigField.LEFT: b"3", ConfigField.TOPOLOGY: topology}
            leave_old(node, {**facts, **left})

    def add(facts: Facts) -> Facts:
        if ConfigField.LEFT not in facts:
            remove_meanwhile()
        return {**facts, ConfigField.WRITERS: facts[ConfigField.WRITERS].rstrip(b" 4") + b" 4"}

    async def run() -> None:
        async with reached(cluster) as endpoint:
            await change_facts(endpoint, add)

    asyncio.run(run())
    assert writers_of(cluster) == [b"1 2 4"] * 3
    assert [facts_at(node)[ConfigField.LEFT] for node in cluster.nodes] == [b"3"] * 3


def test_facts_are_compared_again_without_a_reason(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    become_cluster(cluster)
    before = facts_at(cluster.nodes[2])
    add_writers(cluster.url, [2])
    monkeypatch.setattr(region_facts, "COMPARE_S", 0.0)

    async def run() -> None:
        async with reached(cluster) as endpoint:
            completion = Completion(endpoint)
            await completion.look()
            leave_old(cluster.nodes[2], before)
            await completion.look()

    asyncio.run(run())
    assert writers_of(cluster) == [b"1 2"] * 3


def test_rejoin_fences_a_primary_that_came_back_empty_before_clients_can_write(
    cluster: Cluster,
) -> None:
    become_cluster(cluster)
    cluster.nodes[2].flush()
    prepare_cluster(cluster.url, 1, "us-east", fenced=True)
    assert [facts_at(node).get(ConfigField.FENCED) for node in cluster.nodes] == [b"1"] * 3


def test_a_primary_that_goes_in_the_middle_of_a_change_is_an_error(cluster: Cluster) -> None:
    become_cluster(cluster)

    async def run() -> None:
        async with reached(cluster) as endpoint:

            def change(facts: Facts) -> Facts:
                endpoint._nodes.popitem()[1].close("it serves no slots now")
                return {**facts, ConfigField.WRITERS: b"1 2"}

            with pytest.raises(LostError):
                await change_facts(endpoint, change)

    asyncio.run(run())
    add_writers(cluster.url, [2])
    assert writers_of(cluster) == [b"1 2"] * 3


def test_a_change_ends_before_another_one_can_begin(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_cluster(cluster)
    monkeypatch.setattr(region_facts, "LOCK_S", 1)
    slow = next(node for node in cluster.nodes if node is not cluster.owner(key_slot(FACTS_LOCK)))

    async def run() -> None:
        async with reached(cluster) as endpoint:
            with slow.paused(), pytest.raises(BraidError, match="answers too slowly"):
                await change_facts(endpoint, lambda facts: {**facts, ConfigField.WRITERS: b"1 2"})

    asyncio.run(run())
    assert writers_of(cluster) == [b"1"] * 3
