"""What the views of regions mean together: problems that `braid status` and `braid doctor` show."""

import asyncio
import json
from dataclasses import asdict, replace

import pytest

from braidstream.admin.daemon_status import DaemonStatus, LinkStatus
from braidstream.admin.region_status import View, overview
from braidstream.lua import VERSION
from braidstream.model.region_config import Region
from braidstream.net.address import parse_address
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.peer import Peer

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


@pytest.mark.parametrize(
    ("code", "kind"),
    [("NOREGION", "noregion"), ("LOADING", "loading"), ("NOPERM", "rights"), ("CONFIG", "config"),
     ("CLUSTER", "cluster"), ("WRONGPASS", "unreachable"), ("LOST", "unreachable")],
)  # fmt: skip
def test_a_server_that_cannot_be_read_is_told_by_its_error(code: str, kind: str) -> None:
    assert kinds(View(1, "us-east", error="some text", code=code)) == [(kind, "us-east")]


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


def test_a_link_that_starts_has_done_so_since_now() -> None:
    async def since_ms() -> int:
        peer = Peer(2, "eu-west", Endpoint(parse_address("redis://127.0.0.1:1")))
        return peer.status(NOW_MS).since_ms

    assert NOW_MS - 1_000 < asyncio.run(since_ms()) <= NOW_MS
