"""A primary is killed while clients write: they continue with its replica, and no write is sent twice."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest
import redis
from redis.crc import key_slot

import braidstream
from braidstream.commands.xreadgroup import read_group
from braidstream.model import keys
from braidstream.model.strand import Strand
from braidstream.plan.plan import Batch, altered
from braidstream.plan.view import Carriage
from tests.support.clients import Opener
from tests.support.cluster import Cluster, become_cluster
from tests.support.servers import Flavour
from tests.support.waiting import eventually

NAMES = [f"s{number}" for number in range(12)]
QUICK = ("--cluster-node-timeout", "1000")


@pytest.mark.parametrize(("kind", "idempotent"), [("asyncio", False), ("sync", True)])
def test_clients_continue_after_a_failover_and_send_no_write_twice(
    flavour: Flavour, kind: str, idempotent: bool
) -> None:
    with Cluster(flavour, args=QUICK) as cluster:
        become_cluster(cluster)
        cluster.add_replica(cluster.nodes[0])
        with ExitStack() as stack:
            opened = Opener(kind, stack, "RedisCluster")
            client = opened(cluster.nodes[1].url, decode_responses=True, idempotent=idempotent)
            stop, sent, lost, told = threading.Event(), list[str](), list[str](), list[str]()
            slowest = {name: 0.0 for name in NAMES}

            def write(names: list[str]) -> None:
                number = 0
                while not stop.is_set():
                    name = names[number % len(names)]
                    began = time.monotonic()
                    value = f"{name} {number}"
                    try:
                        client.xadd(name, {"n": value})
                        sent.append(value)
                    except redis.ConnectionError as error:
                        lost.append(value)
                        told.append(str(error))
                    slowest[name] = max(slowest[name], time.monotonic() - began)
                    number += 1

            there = [name for name in NAMES if cluster.owner(_slot(name)) is cluster.nodes[0]]
            elsewhere = [name for name in NAMES if name not in there]
            with ThreadPoolExecutor(2) as pool:
                writing = [pool.submit(write, some) for some in (there, elsewhere)]
                try:
                    eventually(lambda: len(sent) > 200, within_s=20, why="both should write")
                    cluster.nodes[0].kill()
                    killed = len(sent)
                    eventually(
                        lambda: any(value.split()[0] in there for value in sent[killed + 5 :]),
                        within_s=30,
                        why="streams of the killed primary should be written again",
                    )
                finally:
                    stop.set()
                for each in writing:
                    each.result()
            stored = [fields["n"] for name in NAMES for _, fields in client.xrange(name)]
            assert len(stored) == len(set(stored))
            assert set(stored) <= {*sent, *lost}
            assert {value for value in sent if value.split()[0] in elsewhere} <= set(stored)
            assert len(lost) <= (0 if idempotent else 1), told
            assert all("may or may not have been applied" in text for text in told)
            assert max(slowest[name] for name in elsewhere) < 10


def test_a_primary_without_functions_gets_them_although_another_is_gone(flavour: Flavour) -> None:
    with Cluster(flavour, args=("--cluster-require-full-coverage", "no")) as cluster:
        become_cluster(cluster)
        with braidstream.RedisCluster.from_url(cluster.url, require_full_coverage=False) as client:
            order = [node.port for node in client.get_primaries()]
            gone, lacking, _ = sorted(cluster.nodes, key=lambda node: order.index(node.port))
            with lacking.client() as added:
                added.function_flush("SYNC")
            gone.kill()
            name = next(each for each in NAMES if cluster.owner(_slot(each)) is lacking)
            client.xadd(name, {"n": "1"})
            assert client.xlen(name) == 1


def test_a_node_that_is_gone_for_good_is_told_as_a_lost_connection(flavour: Flavour) -> None:
    with Cluster(flavour, args=("--cluster-require-full-coverage", "no")) as cluster:
        become_cluster(cluster)
        with ExitStack() as stack:
            clients = list[Any]()
            for kind in ("sync", "asyncio"):
                opened = Opener(kind, stack, "RedisCluster")
                options = {"require_full_coverage": False, **opened.retry(0)}
                clients.append(opened(cluster.nodes[1].url, **options))
            for client, name in product(clients, NAMES):
                client.xadd(name, {"n": "1"})
            cluster.nodes[0].kill()
            for client, name in product(clients, NAMES):
                if cluster.owner(_slot(name)) is cluster.nodes[0]:
                    with pytest.raises(redis.ConnectionError):
                        client.xadd(name, {"n": "2"})
                else:
                    assert client.xadd(name, {"n": "2"})


def _slot(name: str) -> int:
    return int(key_slot(keys.meta(name.encode())))


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_flush_that_waits_for_one_node_is_not_sent_to_the_others_again(flavour: Flavour, kind: str) -> None:
    with Cluster(flavour, args=("--cluster-require-full-coverage", "no")) as cluster, ExitStack() as stack:
        become_cluster(cluster)
        client = Opener(kind, stack, "RedisCluster")(cluster.nodes[0].url, require_full_coverage=False)
        for name in NAMES:
            client.set(name, "before")
        order = [node.port for node in client.get_primaries()]
        first, *_, last = sorted(cluster.nodes, key=lambda node: order.index(node.port))
        name = next(each for each in NAMES if cluster.owner(key_slot(each.encode())) is first)
        operator = stack.enter_context(first.client())
        last.kill()
        with ThreadPoolExecutor(1) as pool:
            flushing = pool.submit(client.flushall)
            eventually(lambda: operator.dbsize() == 0, within_s=20, why="the first node should be flushed")
            operator.set(name, "after")
            last.start()
            flushing.result()
        assert operator.get(name) == b"after"


def test_what_a_group_read_has_delivered_is_returned_if_the_next_node_is_lost(cluster: Cluster) -> None:
    """Else it would stay pending until another consumer claims it."""
    become_cluster(cluster)
    first, lost = (
        next(name for name in NAMES if cluster.owner(_slot(name)) is cluster.nodes[at]) for at in (0, 1)
    )
    words = [b"XREADGROUP", b"GROUP", b"jobs", b"ann", b"STREAMS", first.encode(), lost.encode(), b">", b">"]

    def cut(batch: Batch) -> Batch:
        if any(Strand(lost.encode(), "s", 1).key in command for command in batch.commands):
            with cluster.nodes[1].client() as admin:
                admin.client_kill_filter(_type="normal", skipme=True)
        return batch

    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as client:
        for name in (first, lost):
            client.xgroup_create(name, "jobs", "0", mkstream=True)
            client.xadd(name, {"n": name})
        [[name, entries]] = client.converse(
            lambda view_of: altered(read_group(view_of(Carriage.ALONE), words), cut)
        )
        assert (name.decode(), len(entries)) == (first, 1)
        assert client.xlen(lost) == 1, "the client goes on"
