"""What the views of regions mean together: problems that `braid status` and `braid doctor` show."""

import asyncio
import json
from dataclasses import asdict, replace

import pytest

from braidstream.engine.address import parse_address
from braidstream.lua import VERSION
from braidstream.model.region import Region
from braidstream.operations.doctor import Setup, diagnose
from braidstream.operations.status import DaemonStatus, LinkStatus, View, overview
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.endpoint import Endpoint

NOW_MS = 1_800_000_000_000
NAMES = {1: "us-east", 2: "eu-west"}


def daemon(*peers: str, pid: int = 7) -> DaemonStatus:
    up = LinkStatus("up", since_ms=NOW_MS, lag_entries=0, lag_ms=0)
    return DaemonStatus(NOW_MS, NOW_MS, "host", pid, "0.1.0", links=dict.fromkeys(peers, up))


def view(number: int, *daemons: DaemonStatus) -> View:
    region = Region(number, NAMES[number], number, library=VERSION)
    return View(number, NAMES[number], region=region, now_ms=NOW_MS, daemons=daemons)


def kinds(*views: View) -> list[tuple[str, str]]:
    return [(each.kind, each.where) for each in overview(views).problems]


@pytest.mark.parametrize("daemons", [[daemon()], [daemon("eu-west"), daemon(pid=8)]])
def test_a_daemon_with_an_old_file_is_named(daemons: list[DaemonStatus]) -> None:
    found = overview([view(1, *daemons), view(2, daemon("us-east"))]).problems
    assert [(each.kind, each.where) for each in found] == [("unlinked", "us-east -> eu-west")]
    assert f"process {daemons[-1].pid} on host" in found[0].text


def test_a_region_without_peers_needs_no_daemon() -> None:
    alone = view(1)
    assert alone.region is not None
    assert kinds(alone) == []
    assert kinds(replace(alone, region=replace(alone.region, writers=(1,)))) == []
    assert kinds(replace(alone, region=replace(alone.region, writers=(1, 2)))) == [("daemon", "us-east")]
    assert ("daemon", "us-east") in kinds(alone, view(2, daemon("us-east")))


def test_a_region_that_was_read_alone_has_the_links_of_its_daemons() -> None:
    down = replace(daemon("ap-south"), links={"eu-west": LinkStatus("down", since_ms=NOW_MS)}, pid=8)
    found = overview([view(1, daemon("ap-south"), down)], has_file=False)
    assert [(link.target, link.status and link.status.state) for link in found.links] == [
        ("ap-south", "up"),
        ("eu-west", "down"),
    ]
    assert [(each.kind, each.where) for each in found.problems] == [("link", "us-east -> eu-west")]
    assert overview([view(1, down)]).links == (), "the console draws no link to a region without a box"


@pytest.mark.parametrize(
    ("code", "kind"),
    [("NOREGION", "noregion"), ("LOADING", "loading"), ("NOPERM", "rights"), ("CONFIG", "config"),
     ("CLUSTER", "cluster"), ("WRONGPASS", "unreachable"), ("LOST", "unreachable")],
)  # fmt: skip
def test_a_server_that_cannot_be_read_is_told_by_its_error(code: str, kind: str) -> None:
    assert kinds(View(1, "us-east", error="some text", code=code)) == [(kind, "us-east")]


def test_a_new_server_is_initialized_and_one_that_lost_its_data_rejoins() -> None:
    empty = View(1, "us-east", error="some text", code="NOREGION")
    stranger = view(2, daemon("us-east"))
    assert stranger.region is not None
    friend = replace(stranger, region=replace(stranger.region, writers=(1, 2)))
    unreachable = View(2, "eu-west", error="no answer", code="LOST")
    init, rejoin = "braid init --url URL --region 1 --name us-east", "braid region rejoin us-east"
    wanted = {
        f"Restore a backup; or begin empty: {init}": (empty,),
        f"Run: {init}": (empty, stranger),
        f"Run: {rejoin}": (empty, friend),
        empty.trouble[1]: (empty, unreachable),
    }
    for fix, views in wanted.items():
        [problem] = [each for each in overview(views).problems if each.kind == "noregion"]
        assert problem.fix == fix


@pytest.mark.parametrize(("writers", "peers"), [((1,), False), ((1, 2), True)])
def test_a_region_without_peers_is_not_told_of_peers(writers: tuple[int, ...], peers: bool) -> None:
    region = Region(1, "us-east", 1, writers=writers)
    setup = Setup("us-east", region, {b"redis_version": b"8.10.2"}, {b"appendonly": b"no", b"save": b""})
    found = {each.check: f"{each.text} {each.fix}" for each in diagnose([setup], None, {})}
    assert ("rejoin" in found["persistence"]) == peers
    assert ("peer" in found["replicas"]) == ("durability" in found["replicas"]) == peers


def test_functions_of_a_newer_release_are_no_problem() -> None:
    newer = view(1, daemon())
    assert newer.region is not None
    for version, wanted in ((VERSION + 1, []), (VERSION - 1, [("version", "us-east")])):
        assert kinds(replace(newer, region=replace(newer.region, library=version))) == wanted


def test_a_status_of_a_newer_release_is_read_without_its_new_fields() -> None:
    found = asdict(daemon("eu-west"))
    found["new"] = found["links"]["eu-west"]["new"] = {"more": 1}
    assert DaemonStatus.parse(json.dumps(found).encode()) == daemon("eu-west")


@pytest.mark.parametrize("odd", [{"at_ms": "x"}, {"pid": None}, {"taken": {"2": "x"}}, {"taken": 1}])
def test_a_status_with_odd_values_is_ignored(odd: dict[str, object]) -> None:
    assert DaemonStatus.parse(json.dumps(asdict(daemon("eu-west")) | odd).encode()) is None


def test_a_link_that_starts_is_said_to_connect() -> None:
    starting = replace(daemon(), links={"eu-west": LinkStatus(since_ms=NOW_MS - 1_000)})
    [found] = overview([view(1, starting), view(2, daemon("us-east"))]).problems
    assert (found.where, found.text) == ("us-east -> eu-west", "the daemon has been connecting for 1 s")


def test_a_link_that_starts_has_done_so_since_now() -> None:
    async def since_ms() -> int:
        peer = Peer(2, "eu-west", Endpoint(parse_address("redis://127.0.0.1:1")))
        return peer.status(NOW_MS).since_ms

    assert NOW_MS - 1_000 < asyncio.run(since_ms()) <= NOW_MS
