"""Two changes of a cluster's facts at once, because a failover lost their lock: none of them is lost."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from braidstream.cli.regions import add_writers
from braidstream.clusters.bulk import Server
from braidstream.errors import ConfigError
from braidstream.lua.cluster_facts import Facts, put_facts
from braidstream.model.fields import ConfigField
from braidstream.operations.membership import initialise_cluster
from braidstream.plan.plan import Batch, Plan, Replies, run
from braidstream.replication import region_facts
from braidstream.replication.region_facts import Completion, change_facts, region_of
from tests.regions.test_cluster_facts import facts_at, leave_old, reached
from tests.support.cluster import Cluster, become_cluster


def newer(facts: Facts, changed: Facts, by: int = 1) -> Facts:
    return {**facts, **changed, ConfigField.TOPOLOGY: b"%d" % (int(facts[ConfigField.TOPOLOGY]) + by)}


def change_elsewhere(cluster: Cluster, changed: Facts, by: int = 1) -> None:
    """What another process stores, which did not wait for ours."""
    for node in cluster.nodes:
        leave_old(node, newer(facts_at(node), changed, by))


class Meanwhile:
    """Calls something once, at its first use."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def __call__(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


def change(cluster: Cluster, changed: Facts, meanwhile: Callable[[], None]) -> None:
    def step(facts: Facts) -> Facts:
        meanwhile()
        return {**facts, **changed}

    async def work() -> None:
        async with reached(cluster) as endpoint:
            await change_facts(endpoint, step)

    asyncio.run(work())


@pytest.mark.parametrize(
    "lasting",
    [{ConfigField.MET: b"1234"}, {ConfigField.ADOPTED: b"1"}, {ConfigField.FENCED: b"1"}],
    ids=lambda lasting: next(iter(lasting)).decode(),
)
def test_a_change_of_the_id_mode_keeps_what_another_change_has_stored(
    cluster: Cluster, lasting: Facts
) -> None:
    become_cluster(cluster)
    meanwhile = Meanwhile(lambda: change_elsewhere(cluster, lasting))
    change(cluster, {ConfigField.ID_MODE: b"liberal"}, meanwhile)
    for node in cluster.nodes:
        facts = facts_at(node)
        assert facts[ConfigField.ID_MODE] == b"liberal"
        assert {field: facts.get(field) for field in lasting} == lasting


def test_a_fence_that_was_taken_down_stays_down_at_a_node_that_missed_it(cluster: Cluster) -> None:
    become_cluster(cluster)

    async def work() -> None:
        async with reached(cluster) as endpoint:
            await region_facts.put_up(endpoint)
            before = facts_at(cluster.nodes[2])
            await region_facts.take_down(endpoint)
            leave_old(cluster.nodes[2], before)
            await Completion(endpoint).look()
            assert not (await region_of(endpoint)).fenced

    asyncio.run(work())
    assert [ConfigField.FENCED in facts_at(node) for node in cluster.nodes] == [False] * 3


def test_a_change_that_newer_facts_overtake_is_made_again(cluster: Cluster) -> None:
    become_cluster(cluster)
    meanwhile = Meanwhile(lambda: change_elsewhere(cluster, {ConfigField.WRITERS: b"1 2"}, by=3))
    change(cluster, {ConfigField.ID_MODE: b"liberal"}, meanwhile)
    for node in cluster.nodes:
        facts = facts_at(node)
        assert (facts[ConfigField.ID_MODE], facts[ConfigField.WRITERS]) == (b"liberal", b"1 2")


def test_facts_that_were_stored_between_read_and_write_are_kept(cluster: Cluster) -> None:
    become_cluster(cluster)
    add_writers(cluster.url, [2, 3])
    node = cluster.nodes[0]
    before = facts_at(node)
    removed = newer(before, {ConfigField.WRITERS: b"1 2", ConfigField.LEFT: b"3"})
    meanwhile = Meanwhile(lambda: leave_old(node, removed))

    with closing(Server(cluster.url, {"cluster": True})) as server:
        [run_here, *_] = [each for each in server.each_primary() if _port(each) == node.port]

        def send(batch: Batch) -> Replies:
            if any("LOAD" in command for command in batch.commands):
                meanwhile()
            return list(run_here(_relayed(batch)))

        run(put_facts(newer(before, {ConfigField.WRITERS: b"1 2 3 4"})), send)
    facts = facts_at(node)
    assert (facts[ConfigField.WRITERS], facts[ConfigField.LEFT]) == (b"1 2 4", b"3")


def _relayed(batch: Batch) -> Plan[Replies]:
    return (yield batch)


def _port(run_here: Callable[[Plan[Any]], Any]) -> int:
    [[_, port]] = run_here(_relayed(Batch([("CONFIG", "GET", "port")])))
    return int(port)


def test_init_of_a_cluster_that_lost_a_primary_keeps_a_removal_that_runs_at_the_same_time(
    cluster: Cluster,
) -> None:
    become_cluster(cluster)
    add_writers(cluster.url, [2, 3])
    cluster.nodes[2].flush()
    left = {ConfigField.WRITERS: b"1 2", ConfigField.LEFT: b"3"}

    def remove() -> None:
        for node in cluster.nodes[:2]:
            leave_old(node, newer(facts_at(node), left))

    meanwhile = Meanwhile(remove)

    def between(run_here: Callable[[Plan[Any]], Any]) -> Callable[[Plan[Any]], Any]:
        def send(batch: Batch) -> Replies:
            if any("LOAD" in command for command in batch.commands):
                meanwhile()
            return list(run_here(_relayed(batch)))

        return lambda plan: run(plan, send)

    with closing(Server(cluster.url, {"cluster": True})) as server:
        initialise_cluster([between(each) for each in server.each_primary()], 1, "us-east", fenced=True)
    for node in cluster.nodes:
        facts = facts_at(node)
        assert facts[ConfigField.FENCED] == b"1"
        assert {field: facts.get(field) for field in left} == left


@pytest.mark.parametrize("by", [-1, 7])
def test_a_node_of_another_region_does_not_change_which_region_the_cluster_is(
    cluster: Cluster, by: int, caplog: pytest.LogCaptureFixture
) -> None:
    become_cluster(cluster)
    add_writers(cluster.url, [2])
    facts = facts_at(cluster.nodes[0])
    other = {ConfigField.REGION: b"5", ConfigField.NAME: b"old", ConfigField.WRITER: b"5"}
    leave_old(cluster.nodes[2], newer(facts, other, by))

    async def work() -> None:
        async with reached(cluster) as endpoint:
            with pytest.raises(ConfigError, match=r"region 1 \(us-east\) and region 5 \(old\)"):
                await region_of(endpoint)
            await Completion(endpoint).look()
            with cluster.nodes[2].client() as client:
                client.execute_command("FUNCTION", "DELETE", "braidstream_region")
            await Completion(endpoint).look()
            assert (await region_of(endpoint)).name == "us-east"

    asyncio.run(work())
    assert [facts_at(node) for node in cluster.nodes] == [facts] * 3
    assert "node.incomplete" in caplog.text
