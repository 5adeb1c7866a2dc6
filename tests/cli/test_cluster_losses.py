"""`braid` on a region that is a cluster, while one of its primaries is down."""

import json
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.support.cli import braid
from tests.support.cluster import Cluster, become_cluster

NAMES = [f"orders-{number}" for number in range(6)]


@pytest.fixture(scope="module")
def wounded() -> Iterator[tuple[Cluster, list[str]]]:
    """The cluster without its last primary, and the streams of the others."""
    with Cluster(args=["--cluster-require-full-coverage", "no"]) as cluster:
        become_cluster(cluster, region=1, name="us-east")
        with braidstream.RedisCluster.from_url(cluster.url) as client:
            for name in NAMES:
                client.xadd(name, {"order": name})
                client.xgroup_create(name, "billing", "0")
        lost = cluster.nodes[-1]
        kept = [name for name in NAMES if cluster.owner(key_slot(keys.meta(name.encode()))).port != lost.port]
        assert 0 < len(kept) < len(NAMES)
        lost.stop()
        yield cluster, kept


@pytest.mark.parametrize("verb", ["status", "doctor"])
def test_a_lost_primary_is_a_problem_in_the_report_and_no_line_of_a_log(
    wounded: tuple[Cluster, list[str]], verb: str
) -> None:
    cluster, _ = wounded
    found = braid(verb, "--url", cluster.url)
    assert (found.returncode, found.stderr) == (1, "")
    assert f"(127.0.0.1:{cluster.nodes[-1].port}): a primary cannot be used" in " ".join(found.stdout.split())


@pytest.mark.parametrize("verb", ["streams", "groups"])
def test_streams_of_the_other_primaries_are_listed_and_the_lost_one_is_named(
    wounded: tuple[Cluster, list[str]], verb: str
) -> None:
    cluster, kept = wounded
    lost = f"127.0.0.1:{cluster.nodes[-1].port}"
    found = braid(verb, "--url", cluster.url)
    assert found.returncode == 1
    assert sorted(line.split()[0] for line in found.stdout.splitlines()[1:]) == kept
    assert f"error the primary {lost} cannot be reached, its streams are not listed" in found.stderr
    facts = json.loads(braid(verb, "--url", cluster.url, "--json").stdout)
    assert sorted(each["name" if verb == "streams" else "stream"] for each in facts[verb]) == kept
    assert [*facts["unreachable"]] == [lost]
