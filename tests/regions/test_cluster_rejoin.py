"""A cluster that lost its data rejoins, and a region moves from one server to a cluster."""

import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import braidstream
from tests.regions.test_cluster_regions import (
    NAMES,
    WITHIN_S,
    become_equal,
    clients_of,
    numbered,
    slot,
    state_of,
)
from tests.support.cli import braid
from tests.support.cluster import Cluster, facts_of
from tests.support.daemons import Daemon, all_replicating, write_config
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

GUIDE = Path(__file__).parents[2] / "docs/guides/clusters.md"


def run(*words: str) -> str:
    done = braid(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lose_all(cluster: Cluster) -> None:
    """As if its nodes were replaced by empty ones."""
    for node in cluster.nodes:
        node.flush()


def fill(one: Any, two: Any) -> None:
    for number in range(90):
        for client in (one, two):
            client.xadd(NAMES[number % 9], {"n": str(number)})
    one.xgroup_create("s1", "jobs", "0")
    one.xdel("s3", *(entry for entry, _ in one.xrange("s3")[::2]))
    one.twrite("log", entries=[("t", "1"), ("t", "2")])


def test_a_cluster_that_lost_everything_is_refused_until_it_rejoined(
    flavour: Flavour, cluster: Cluster, tmp_path: Path
) -> None:
    with Engine(flavour) as server:
        urls = numbered(cluster, server)
        with clients_of(cluster, server) as clients:
            one, two = clients
            with all_replicating(tmp_path, urls):
                fill(one, two)
                become_equal(clients)
                eventually(lambda: two.exists("log"), within_s=WITHIN_S, why="the log should arrive")
                before = {name: state_of(one, name) for name in NAMES}
            config = tmp_path / "braid.toml"
            lose_all(cluster)
            refused = braid("replicate", "--config", str(config), "--region", "region-1")
            assert refused.returncode == 1
            assert "this cluster lost the data of region 1 (region-1)" in refused.stderr
            assert "braid region rejoin region-1" in refused.stderr

            assert "region 1 (region-1) has 10 streams again" in run(
                "region", "rejoin", "region-1", "--config", str(config)
            )
        with clients_of(cluster, server) as clients, all_replicating(tmp_path, urls):
            one, two = clients
            assert {name: state_of(one, name) for name in NAMES} == before
            assert one.twrite("log", "t", "3") == 3
            for client in clients:
                client.xadd("s1", {"n": "after"})
            become_equal(clients)
            assert {name: state_of(two, name) for name in NAMES if name != "s1"} == {
                name: before[name] for name in NAMES if name != "s1"
            }
            eventually(lambda: len(two.tread("log")) == 3, within_s=WITHIN_S, why="the log should arrive")
        log = [*two.tread("log")]
        with cluster.owner(slot("log")).client() as bare:
            bare.flushall()
        with clients_of(cluster) as [one]:
            assert one.twrite("log", "t", "new") == 1, "an offset that it had before"
            run("region", "rejoin", "region-1", "--config", str(config))
            assert one.tread("log")[:3] == log
            assert [each[2] for each in one.tread("log")[3:]] == ["new"]


def test_a_fenced_cluster_refuses_clients_and_its_daemon(
    flavour: Flavour, cluster: Cluster, tmp_path: Path
) -> None:
    """A rejoin was broken off. The next one restores the rest, and admits clients."""
    with Engine(flavour) as server:
        config = write_config(tmp_path / "braid.toml", numbered(cluster, server))
        with clients_of(server) as [two]:
            for name in NAMES:
                two.xadd(name, {"n": "1"})
            facts_of(cluster, {b"fenced": b"1"})
            with (
                braidstream.RedisCluster.from_url(cluster.url, retry=Retry(NoBackoff(), 0)) as client,
                pytest.raises(redis.ConnectionError, match="braid region rejoin"),
            ):
                client.xadd("s1", {"n": "2"})
            refused = braid("replicate", "--config", str(config), "--region", "region-1")
            assert "it is fenced" in refused.stderr
            rejoin = ("region", "rejoin", "region-1", "--config", str(config))
            assert "9 entries were restored" in run(*rejoin)
            with clients_of(cluster) as [one]:
                become_equal([one, two])
                with cluster.nodes[0].client() as bare:
                    bare.flushall()  # the functions stay
                assert any(not one.exists(name) for name in NAMES)
                run(*rejoin)
                become_equal([one, two])
                assert one.xadd("s1", {"n": "3"})


def typed(section: str) -> list[list[str]]:
    """The commands of `braid` in a section of the guide, as words."""
    text = GUIDE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_a_region_moves_from_a_server_to_a_cluster_as_the_guide_says(
    flavour: Flavour, cluster: Cluster, tmp_path: Path
) -> None:
    add, old, new, move_log, status, remove = typed("Move a region from one server to a cluster")
    config = tmp_path / "braid.toml"
    with Engine(flavour) as server, ExitStack() as stack:
        become(server, region=1, name="us-east")
        places = {"redis://node-1.us-east:7000": cluster.url, "braid.toml": str(config)}
        config.write_text(f'[[region]]\nid = 1\nname = "us-east"\nurl = "{server.url}"\n')

        def here(words: list[str]) -> list[str]:
            return [places.get(word, word) for word in words]

        with clients_of(server) as [one]:
            for number in range(90):
                one.xadd(NAMES[number % 9], {"n": str(number)})
            one.xgroup_create("s1", "jobs", "0")
            one.xreadgroup("jobs", "ann", {"s1": ">"}, count=6)
            entries = [entry for entry, _ in one.xrange("s1")]
            one.xack("s1", "jobs", *entries[:4])
            one.twrite("ledger", entries=[("t", "1"), ("t", "2")])

            assert "92 entries were copied" in run(*here(add))
            for words in (old, new):
                assert words[0] == "replicate"
                stack.enter_context(Daemon(config, words[-1])).tells("daemon.ready")
            with clients_of(cluster) as [two]:
                two.xadd("s2", {"n": "at the cluster"})
                one.xadd("s3", {"n": "at the server"})
                become_equal([one, two], [name for name in NAMES if name != "s1"])
                assert "from offset 3 on" in run(*here(move_log))
                assert two.twrite("ledger", "t", "3") == 3
                [[_, left]] = two.xreadgroup("jobs", "ann", {"s1": ">"})
                assert [entry for entry, _ in left] == entries[4:]

                eventually(
                    lambda: lags(here(status)) == [0, 0],
                    within_s=WITHIN_S,
                    why="both should have everything",
                )
                run(*here(remove))
    assert re.findall(r'name = "(.*)"', config.read_text()) == ["us-east-cluster"]
    with clients_of(cluster) as [two]:
        assert sum(two.xlen(name) for name in NAMES) == 92
        assert two.tread("ledger")[-1][2] == "3"
        assert two.xadd("s1", {"n": "alone"})


def lags(status: list[str]) -> list[int | None]:
    """By how many entries each peer is behind."""
    return [each.get("lag_entries") for each in json.loads(braid(*status, "--json").stdout)["links"]]
