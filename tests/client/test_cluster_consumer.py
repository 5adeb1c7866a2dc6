"""Consumers on a cluster: their streams, and the dead letters, may be in any slots."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

import braidstream
from braidstream import Message, Reject
from braidstream.consumers.dead_letters import DeadLetter, bury
from braidstream.model import keys
from tests.support.cluster import Cluster, become_cluster
from tests.support.consumers import Log, Runs, until_acknowledged
from tests.support.servers import Flavour
from tests.support.waiting import eventually

NAMES = ["orders", "payments", "returns"]
QUICK = ("--cluster-node-timeout", "1000")


@pytest.fixture
def region(cluster: Cluster) -> Iterator[Any]:
    become_cluster(cluster)
    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as client:
        yield client


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, cluster: Cluster, region: Any) -> Runs:
    return Runs(request.param, cluster.url, is_cluster=True)


def slot(name: str) -> int:
    return int(key_slot(keys.meta(name.encode())))


def test_entries_of_streams_on_all_nodes_are_handled_tried_again_and_acknowledged(
    runs: Runs, cluster: Cluster, region: Any
) -> None:
    assert len({cluster.owner(slot(name)).port for name in NAMES}) > 1
    entries = [(name, region.xadd(name, {"n": number})) for number in range(20) for name in NAMES]
    log = Log()

    def handle(message: Message) -> None:
        log((message.stream, message.id), message.attempt)
        if message["n"] == "7" and message.attempt == 1:
            raise ValueError("not yet")

    with runs(handle, NAMES):
        for name in NAMES:
            until_acknowledged(region, name)
        later = [(name, region.xadd(name, {"n": "later"})) for name in NAMES]
        for name in NAMES:
            until_acknowledged(region, name)
    handled = [entry for entry, attempt in log.seen if attempt == 1]
    assert sorted(handled) == sorted(entries + later)
    assert len(log.seen) == len(handled) + len(NAMES)


def test_entries_of_a_dead_consumer_are_taken_over(runs: Runs, region: Any) -> None:
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    entry, log = region.xadd("orders", {"n": "1"}), Log()
    region.xreadgroup("billing", "crashed", {"orders": ">"})
    with runs(lambda message: log(message.id), claim_after=0.3):
        until_acknowledged(region)
    assert log.firsts == [entry]


@pytest.mark.parametrize("where", ["orders.dead", "{orders}.dead"])
def test_a_dead_letter_may_be_in_another_slot(runs: Runs, region: Any, where: str) -> None:
    assert (slot(where) == slot("orders")) is where.startswith("{")
    entry = region.xadd("orders", {"n": "1"})

    def handle(message: Message) -> None:
        raise Reject("it is from last year")

    with runs(handle, dead_letter=where):
        until_acknowledged(region)
    [(_, letter)] = region.xrange(where)
    assert (letter["dead.id"], letter["dead.stream"], letter["n"]) == (entry, "orders", "1")


def test_a_dead_letter_in_another_slot_is_appended_once_if_its_consumer_ends_before_it_acknowledges(
    cluster: Cluster, region: Any
) -> None:
    """The next consumer finds the entry pending, and buries it again."""
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    entry = region.xadd("orders", {"n": "1"})
    region.xreadgroup("billing", "ann", {"orders": ">"})
    for consumer in ("ann", "bob"):
        region.xclaim("orders", "billing", consumer, 0, [entry], force=True)
        letter = DeadLetter("orders", entry, "billing", consumer, 5, "why", (b"n", b"1"))
        region.converse(lambda view_of, letter=letter: bury(view_of, [("orders.dead", letter)]))
        assert region.xpending("orders", "billing")["pending"] == 0
    [(_, found)] = region.xrange("orders.dead")
    assert found["dead.consumer"] == "ann"


def test_a_stream_of_dead_letters_that_refuses_does_not_hold_up_those_of_other_streams(region: Any) -> None:
    letters = list[tuple[str, DeadLetter]]()
    region.set("{orders}.dead", "a string")
    for name in ("orders", "payments"):
        region.xgroup_create(name, "billing", "0", mkstream=True)
        entry = region.xadd(name, {"n": "1"})
        region.xreadgroup("billing", "ann", {name: ">"})
        letters.append(
            (f"{{{name}}}.dead", DeadLetter(name, entry, "billing", "ann", 5, "why", (b"n", b"1")))
        )
    refused, _ = region.converse(lambda view_of: bury(view_of, letters))
    assert refused.error.code == "WRONGTYPE"
    assert region.xlen("{payments}.dead") == 1
    assert [region.xpending(name, "billing")["pending"] for name in ("orders", "payments")] == [1, 0]


def test_a_consumer_goes_on_after_a_failover(flavour: Flavour) -> None:
    with Cluster(flavour, args=QUICK) as cluster:
        become_cluster(cluster)
        cluster.add_replica(cluster.nodes[0])
        names = [f"s{number}" for number in range(6)]
        there = [name for name in names if cluster.owner(slot(name)) is cluster.nodes[0]]
        assert there
        log = Log()
        with (
            Runs("sync", cluster.nodes[1].url, is_cluster=True)(
                lambda message: log((message.stream, message["n"])), names, claim_after=2.0
            ),
            braidstream.RedisCluster.from_url(cluster.nodes[1].url, decode_responses=True) as client,
        ):
            for name in names:
                client.xadd(name, {"n": "before"})
                until_acknowledged(client, name)
            cluster.nodes[0].kill()
            for name in names:
                client.xadd(name, {"n": "after"})  # waits for the failover
            eventually(
                lambda: {(name, "after") for name in names} <= set(log.firsts),
                within_s=60,
                why="entries of all nodes should be handled",
            )
