"""The jobs of `braid spark` with a region that is a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import braidstream
from braidstream.cli.main import app
from braidstream.model import keys
from braidstream.spark.jobs.archive import Archive, Archiver, Round
from braidstream.spark.jobs.audit import Auditor
from braidstream.spark.jobs.repair import repair
from braidstream.spark.jobs.replay import append
from braidstream.spark.jobs.stats import lag_of
from braidstream.spark.options import Servers
from tests.spark.test_moving_slots import fill, slot
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.daemons import write_config
from tests.support.microbatch import rows_at_once
from tests.support.regions import client_of
from tests.support.servers import Engine

NAMES = ["orders-1", "orders-2", "orders-3", "orders-4"]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Any]:
    become_cluster(cluster, id_mode="liberal")
    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as opened:
        yield opened


def archive(cluster: Cluster, lake: str, *, trim: bool = False) -> Round:
    """One round, without Spark."""
    what = Archive(lake, Servers((cluster.url,), {}), pattern=b"orders-*", trim=trim, keep_s=0)
    archiver = Archiver(None, what)
    try:
        return archiver.round()
    finally:
        archiver.close()


def archived(lake: str) -> list[int]:
    rows = rows_at_once({"lake": lake, "streamPattern": "orders-*"})
    return sorted(int(row["fields"]["n"]) for row in rows)


def test_an_archive_takes_each_entry_once_and_follows_deletions_trims_and_slots_that_move(
    cluster: Cluster, client: Any, lake: str
) -> None:
    assert len({cluster.owner(slot(name)).port for name in NAMES}) == 3
    wanted = fill(client, *NAMES)
    assert archive(cluster, lake).entries == len(wanted)
    client.xdel("orders-1", client.xrange("orders-1")[10][0])
    left = [number for number in wanted if number != 10]
    with SlotMove(cluster, slot("orders-2")) as move:
        client.xadd("orders-2", {"n": 1000})
        move.move()  # its keys are at the target already: ASK
        done = archive(cluster, lake)
        assert (done.entries, done.deleted) == (1, 1)
    assert archived(lake) == [*left, 1000]
    assert archive(cluster, lake, trim=True).trimmed == len(wanted)
    assert [client.xlen(name) for name in NAMES] == [0, 0, 0, 0]
    assert archived(lake) == [*left, 1000]


def test_replayed_entries_keep_their_ids_and_stats_know_the_lag_of_groups(
    cluster: Cluster, client: Any
) -> None:
    """What replay and stats do without Spark's source and sink."""
    entries = [(f"5-{n}", [("n", b"%d" % n)]) for n in range(1, 4)]
    for name in NAMES:
        for _ in range(2):  # Spark may run a task again
            assert append(cluster.nodes[1].url, name, iter(entries)) == 3
        assert client.xrange(name) == [(entry, {"n": value.decode()}) for entry, [(_, value)] in entries]
        client.xgroup_create(name, "billing", "0")
    assert lag_of(cluster.url, NAMES) == [
        {"stream": name, "group": "billing", "lag": 3, "pending": 0} for name in NAMES
    ]


def test_an_audit_finds_and_repairs_what_a_cluster_and_its_peer_lost(
    cluster: Cluster, client: Any, engine: Engine, tmp_path: Path
) -> None:
    fill(client, *NAMES, count=5)
    config = write_config(tmp_path / "braid.toml", {1: cluster.url})
    config.write_text(config.read_text().replace("region-1", "us-east"))
    about = ("--id", "2", "--name", "eu-west", "--url", engine.url, "--config", str(config))
    told = CliRunner().invoke(app, ["region", "add", *about])
    assert told.exit_code == 0, told.output
    before = {name: client.xrange(name) for name in NAMES}
    for number, place in enumerate((cluster.owner(slot("orders-1")), engine), start=1):
        with place.client() as bare:
            key = keys.strand(b"orders-%d" % number, "s", 1)
            bare.xdel(key, bare.xrange(key)[2][0])

    regions = {1: Servers((cluster.url,), {}), 2: Servers((engine.url,), {})}
    auditor = Auditor(None, regions, pattern=b"orders-*", settle_s=0.0)
    try:
        found = auditor.run().anomalies
        assert [(each.stream, each.region) for each in found] == [("orders-1", 1), ("orders-2", 2)]
        assert len(repair(auditor, found)) == 2
        assert auditor.run().anomalies == []
    finally:
        auditor.close()
    with client_of(engine, decode_responses=True) as other:
        for name in NAMES:
            assert client.xrange(name) == other.xrange(name) == before[name]
