"""Files and servers that do not belong together, and regions that come back after they were removed."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 30


@pytest.fixture
def regions(flavour: Flavour) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(3)]
        numbered(engines)
        yield engines


def remove(config: Path, name: str) -> "subprocess.CompletedProcess[str]":
    return braid("region", "remove", name, "--config", str(config))


def left(engine: Engine) -> list[str | None]:
    with engine.client(decode_responses=True) as client:
        return client.hmget("bs:config", "writers", "left")


def test_a_peer_that_is_another_region_than_the_file_says_gets_nothing(
    regions: list[Engine], tmp_path: Path
) -> None:
    one, two, three = regions
    swapped = write_config(tmp_path / "braid.toml", {1: one.url, 2: three.url, 3: two.url})
    with Daemon(swapped, 1) as daemon, client_of(one) as here:
        here.xadd("m", {"n": "1"})
        told = eventually(lambda: daemon.said("peer.misconfigured"), within_s=WITHIN_S, why="it is told")
        assert " ERROR " in told[0]
        assert "but the server says that it is region" in told[0]
        for engine in (two, three):
            with engine.client() as client:
                assert client.keys("bs:*m*") == []
        assert daemon.said("link.up") == []


def test_a_removal_with_a_wrong_file_changes_nothing(regions: list[Engine], tmp_path: Path) -> None:
    one, two, three = regions
    swapped = write_config(tmp_path / "braid.toml", {1: one.url, 2: three.url, 3: two.url})
    before, text = [left(engine) for engine in regions], swapped.read_text()
    done = remove(swapped, "region-3")
    assert done.returncode == 1
    assert "Nothing was changed" in " ".join(done.stderr.split())
    assert [left(engine) for engine in regions] == before
    assert swapped.read_text() == text


def test_a_removal_while_a_region_is_down_changes_nothing_and_can_be_repeated(
    regions: list[Engine], tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "braid.toml", {number: engine.url for number, engine in enumerate(regions, start=1)}
    )
    regions[1].kill()
    assert remove(config, "region-3").returncode == 1
    assert left(regions[0])[1] is None
    regions[1].start()
    numbered(regions[1:2], first=2)
    assert remove(config, "region-3").returncode == 0
    assert [left(engine)[1] for engine in regions[:2]] == ["3", "3"]


def test_a_removed_region_that_returns_with_its_old_file_is_refused(
    regions: list[Engine], tmp_path: Path
) -> None:
    one, two, three = regions
    urls = {number: engine.url for number, engine in enumerate(regions, start=1)}
    old = write_config(tmp_path / "old.toml", urls)
    new = write_config(tmp_path / "braid.toml", urls)
    with Daemon(new, 1), client_of(three) as away, client_of(one) as here:
        with Daemon(old, 3) as daemon:
            away.xadd("m", {"n": "1"})
            eventually(lambda: here.xlen("m") == 1, within_s=WITHIN_S, why="it is a region still")
        assert remove(new, "region-3").returncode == 0
        away.xadd("m", {"n": "after it was removed"})
        ups = len(daemon.said("link.up"))
        with Daemon(old, 3) as daemon:
            told = eventually(
                lambda: len(daemon.said("peer.misconfigured")) >= 2 and daemon.said("peer.misconfigured"),
                within_s=WITHIN_S,
                why="both peers refuse it",
            )
            assert "region 3 (region-3) was removed from region 1 (region-1) for good" in "".join(told)
            assert len(daemon.said("link.up")) == ups
        assert here.xlen("m") == 1


def test_a_removed_region_whose_daemon_runs_on_is_refused_within_seconds(
    regions: list[Engine], tmp_path: Path
) -> None:
    one, _, three = regions
    urls = {number: engine.url for number, engine in enumerate(regions, start=1)}
    old = write_config(tmp_path / "old.toml", urls)
    new = write_config(tmp_path / "braid.toml", urls)
    with Daemon(old, 3) as daemon, client_of(three) as away, client_of(one) as here:
        away.xadd("m", {"n": "1"})
        eventually(lambda: here.xlen("m") == 1, within_s=WITHIN_S, why="it is a region still")
        assert remove(new, "region-3").returncode == 0
        told = eventually(
            lambda: len(daemon.said("peer.misconfigured")) >= 2 and daemon.said("peer.misconfigured"),
            within_s=WITHIN_S,
            why="both peers refuse it",
        )
        assert "was removed from region" in "".join(told)
        away.xadd("m", {"n": "after it was removed"})
        here.delete("m")
        assert here.xlen("m") == 0


def test_of_two_servers_with_one_number_one_is_refused(regions: list[Engine], tmp_path: Path) -> None:
    """Two teams made a region 2 each, with a file of their own."""
    one, two, _ = regions
    with Engine(one.flavour) as double:
        numbered([double], first=2)
        here = write_config(tmp_path / "two.toml", {1: one.url, 2: two.url})
        there = write_config(tmp_path / "double.toml", {1: one.url, 2: double.url})
        with Daemon(here, 2) as daemon, client_of(one) as home:
            eventually(lambda: daemon.said("link.up"), within_s=WITHIN_S, why="the first is a region")
            with Daemon(there, 2) as second, client_of(double) as other, client_of(two) as right:
                other.xadd("m", {"by": "the double"})
                right.xadd("m", {"by": "the region"})
                told = eventually(
                    lambda: second.said("peer.misconfigured"), within_s=WITHIN_S, why="it is told"
                )
                assert "another server replicates to this peer as region 2 (region-2)" in told[0]
                eventually(lambda: home.xlen("m"), within_s=WITHIN_S, why="the region still replicates")
                assert [fields[b"by"] for _, fields in home.xrange("m")] == [b"the region"]
                assert second.said("link.up") == []
