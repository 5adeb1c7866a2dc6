"""`braid log`: where a log is written, its home moved, its settings, its entries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braidstream.operations import log_upkeep
from tests.support.cli import braid
from tests.support.world import World


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(2)


@pytest.fixture
def toml(world: World, tmp_path: Path) -> Path:
    return _written(world, tmp_path)


def _written(world: World, tmp_path: Path) -> Path:
    path = tmp_path / "braid.toml"
    parts = [
        f'[[region]]\nid = {number}\nname = "region-{number}"\nurl = "{engine.url}"\n'
        for number, engine in enumerate(world.engines, 1)
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def log(toml: Path, verb: str, *words: str) -> Any:
    done = braid("log", verb, "ledger", *words, "--config", str(toml), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()][-1]


def test_a_log_is_created_moved_set_evicted_and_followed(world: World, toml: Path) -> None:
    assert log(toml, "create", "--home", "region-2") == {"log": "ledger", "home": 2}
    assert log(toml, "create", "--home", "region-2") == {"log": "ledger", "home": 2}
    empty = braid("log", "info", "ledger", "--config", str(toml)).stdout
    assert "region-2: no entries; the next offset is 1" in empty
    world[2].twrite("ledger", entries=[("t", str(n)) for n in range(1, 6)])
    assert log(toml, "move", "--to", "region-1") == {"log": "ledger", "home": "region-1", "first": 6}
    assert log(toml, "move", "--to", "region-1")["first"] == 6
    assert world[1].twrite("ledger", "t", "6") == 6
    found = log(toml, "info")
    assert found["home"] == "region-1"
    for engine in world.engines:
        listed = json.loads(braid("streams", "--url", engine.url, "--json").stdout)["streams"]
        assert [each["last_offset"] for each in listed] == [6 if engine is world.engines[0] else 5]
    assert found["epochs"] == [
        {"epoch": 0, "region": 2, "first": 1},
        {"epoch": 1, "region": 1, "first": 6},
    ]
    assert found["regions"][0] == {"region": "region-1", "first": 1, "last": 6}
    now = {"log": "ledger", "pending": 1000, "backlog": 500, "max_age_ms": 3_600_000}
    assert log(toml, "set", "--backlog", "500", "--max-age", "1h") == now
    assert log(toml, "evict", "--older", "1h") == {"log": "ledger", "evicted": 0}
    assert log(toml, "evict", "--before", "3") == {"log": "ledger", "evicted": 2}
    assert log(toml, "tail", "--from", "1", "--count", "2") == {"offset": 4, "tag": "t", "entry": "4"}
    assert "home region-1" in braid("log", "info", "ledger", "--config", str(toml)).stdout


def test_a_lost_home_is_replaced_and_its_entries_are_rescued(world: World, toml: Path) -> None:
    world[1].twrite("ledger", entries=[("t", "1"), ("t", "2")])
    world.sync()
    world[1].twrite("ledger", "t", "late")
    cut_off = toml.with_name("cut-off.toml")
    cut_off.write_text(toml.read_text().replace(world.engines[0].url, "redis://127.0.0.1:1"))
    assert log(cut_off, "move", "--to", "region-2", "--force")["first"] == 3
    assert world[2].twrite("ledger", "t", "3") == 3
    assert world[1].twrite("ledger", "t", "later") == 4  # it does not know yet
    assert log(toml, "rescue") == {"log": "ledger", "rescued": 2}
    assert log(toml, "rescue") == {"log": "ledger", "rescued": 0}
    assert [row[2] for row in world[2].tread("ledger")] == ["1", "2", "3", "late", "later"]
    world.sync()
    assert world[1].tread("ledger") == world[2].tread("ledger")


def _without(toml: Path, region: int) -> Path:
    """The configuration after a region was removed."""
    path = toml.with_name("without.toml")
    parts = toml.read_text().split("[[region]]")
    path.write_text("[[region]]".join(part for part in parts if f"id = {region}\n" not in part))
    return path


@pytest.fixture
def three(make_world: Callable[..., World]) -> World:
    return make_world(3)


def test_entries_of_a_home_that_never_comes_back_are_rescued_from_copies(
    three: World, tmp_path: Path
) -> None:
    world, toml = three, _written(three, tmp_path)
    world[1].twrite("ledger", entries=[("t", "1"), ("t", "2")])
    world.sync()
    registry = world[2].run_plan(log_upkeep.read_log(b"ledger"))
    world[2].run_plan(log_upkeep.end_epoch(b"ledger", log_upkeep.home_of(registry), 2, force=True))
    world[1].twrite("ledger", entries=[("t", "late"), ("t", "later")])
    world.ship(1, 3, "ledger")
    assert world[2].twrite("ledger", "t", "3") == 3
    lost = toml.with_name("lost.toml")
    lost.write_text(toml.read_text().replace(world.engines[0].url, "redis://127.0.0.1:1"))
    done = braid("log", "rescue", "ledger", "--config", str(lost))
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "0 entries of ledger have new offsets.")
    assert "region-1 was left out" in done.stdout
    assert log(_without(toml, 1), "rescue") == {"log": "ledger", "rescued": 2}
    assert log(_without(toml, 1), "rescue") == {"log": "ledger", "rescued": 0}
    assert [row[2] for row in world[2].tread("ledger")] == ["1", "2", "3", "late", "later"]


def test_a_forced_move_continues_after_what_any_region_has(three: World, tmp_path: Path) -> None:
    world, toml = three, _written(three, tmp_path)
    world[1].twrite("ledger", "t", "1")
    world.sync()
    world[1].twrite("ledger", "t", "2")
    world.ship(1, 3, "ledger")
    lost = toml.with_name("lost.toml")
    lost.write_text(toml.read_text().replace(world.engines[0].url, "redis://127.0.0.1:1"))
    assert log(lost, "move", "--to", "region-2", "--force")["first"] == 3
    assert [row[2] for row in world[2].tread("ledger")] == ["1", "2"]


def test_a_region_that_is_the_home_of_logs_is_removed_by_force_only(three: World, tmp_path: Path) -> None:
    world, toml = three, _written(three, tmp_path)
    world[1].twrite("ledger", entries=[("t", "1"), ("t", "2")])
    world[1].twrite("gone", "t", "1")
    world[2].twrite("diary", "t", "1")
    world.sync()
    world[1].delete("gone")
    world[1].twrite("ledger", "t", "3")
    world.ship(1, 3, "ledger")
    world.ship(1, 3, "gone")
    world.ship(1, 2, "gone")
    remove, before = ("region", "remove", "region-1", "--config", str(toml)), toml.read_text()
    refused = braid(*remove)
    assert refused.returncode == 1
    assert "region-1 is the home of ledger." in refused.stderr
    assert "braid log move ledger --to region-2" in refused.stderr
    assert toml.read_text() == before
    assert world[2].hget("bs:config", "writers") == "1 2 3"

    done = json.loads(braid(*remove, "--force", "--json").stdout)
    assert (done["removed"], done["logs"]) == ("region-1", ["ledger"])
    assert "(not in the file)" in log(toml, "info")["home"]
    lost = braid("log", "set", "ledger", "--backlog", "5", "--config", str(toml))
    assert "braid log move ledger --to region-2 --force" in lost.stderr
    assert log(toml, "move", "--to", "region-2", "--force")["first"] == 4
    assert world[2].twrite("ledger", "t", "4") == 4
    world.ship(2, 3, "ledger")
    for region in (2, 3):
        assert [row[2] for row in world[region].tread("ledger")] == ["1", "2", "3", "4"]


def test_a_rescue_leaves_what_stays_local(world: World, toml: Path) -> None:
    for region, entry in ((1, "one"), (2, "1")):
        world[region].twrite("ledger", "t", entry)
    url = f'url = "{world.engines[0].url}"\n'
    local = toml.with_name("local.toml")
    local.write_text(toml.read_text().replace(url, url + 'exclude = ["ledger"]\n'))
    assert log(local, "rescue") == {"log": "ledger", "rescued": 0}
    assert [world[region].tread("ledger")[0][2] for region in world] == ["one", "1"]


def _with_another_ledger_in_3(world: World, tmp_path: Path) -> Path:
    """Regions 1 and 2 share the log, with its home in 1. Region 3 has another of that name, a local one."""
    world[1].twrite("ledger", entries=[("a", "1"), ("a", "2"), ("b", "3")])
    world.ship(1, 2, "ledger")
    world[3].twrite("ledger", entries=[("x", "other"), ("x", "another")])
    toml = _written(world, tmp_path)
    url = f'url = "{world.engines[2].url}"\n'
    toml.write_text(toml.read_text().replace(url, url + 'exclude = ["ledger", "diary"]\n'))
    return toml


def test_verbs_leave_a_log_of_that_name_that_stays_local(three: World, tmp_path: Path) -> None:
    world, toml = three, _with_another_ledger_in_3(three, tmp_path)
    found = log(toml, "info")
    assert found["home"] == "region-1"
    assert "not exchanged" in found["regions"][2]["error"]
    assert log(toml, "compact")["deleted"] == 1
    assert log(toml, "set", "--backlog", "9")["backlog"] == 9
    for region in (1, 2):
        assert [row[2] for row in world[region].tread("ledger") if row] == ["2", "3"]
    assert world[3].xinfo_stream("ledger")["backlog"] == 0
    assert log(toml, "evict", "--before", "3") == {"log": "ledger", "evicted": 1}
    assert [row[2] for row in world[3].tread("ledger")] == ["other", "another"]
    assert world[1].twrite("ledger", "a", "4") == 4
    assert world[3].twrite("ledger", "x", "more") == 3
    assert [epoch["region"] for epoch in log(toml, "info")["epochs"]] == [1]


def test_a_log_that_stays_local_is_chosen_by_its_region(three: World, tmp_path: Path) -> None:
    world, toml = three, _with_another_ledger_in_3(three, tmp_path)
    there = ("--region", "region-3")
    assert log(toml, "info", *there)["home"] == "region-3"
    done = log(toml, "compact", *there)
    assert (done["deleted"], list(done["memory"])) == (1, ["region-3"])
    assert log(toml, "set", "--backlog", "7", *there)["backlog"] == 7
    assert log(toml, "evict", "--before", "3", *there) == {"log": "ledger", "evicted": 1}
    assert [row[2] for row in world[1].tread("ledger")] == ["1", "2", "3"]
    world[3].twrite("diary", "t", "1")
    refused = braid("log", "info", "diary", "--config", str(toml))
    assert refused.returncode == 1
    assert "region-3: it stays local there" in " ".join(refused.stderr.split())


def test_a_forced_move_collects_nothing_that_stays_local(three: World, tmp_path: Path) -> None:
    world, toml = three, _with_another_ledger_in_3(three, tmp_path)
    toml.write_text(toml.read_text().replace(world.engines[0].url, "redis://127.0.0.1:1"))
    assert log(toml, "move", "--to", "region-2", "--force")["first"] == 4
    assert world[2].twrite("ledger", "a", "4") == 4
    assert [row[2] for row in world[2].tread("ledger")] == ["1", "2", "3", "4"]


def test_what_the_home_itself_wrote_late_is_rescued_too(world: World, toml: Path) -> None:
    world[1].twrite("ledger", "t", "1")
    world.sync()
    cut_off = toml.with_name("cut-off.toml")
    cut_off.write_text(toml.read_text().replace(world.engines[0].url, "redis://127.0.0.1:1"))
    assert log(cut_off, "move", "--to", "region-2", "--force")["first"] == 2
    assert world[1].twrite("ledger", entries=[("t", "late"), ("t", "later")]) == [2, 3]  # does not know yet
    assert world[2].twrite("ledger", "t", "2") == 2
    assert log(toml, "move", "--to", "region-1")["first"] == 3
    assert log(toml, "rescue") == {"log": "ledger", "rescued": 2}
    assert log(toml, "rescue") == {"log": "ledger", "rescued": 0}
    assert [row[2] for row in world[1].tread("ledger")] == ["1", "2", "late", "later"]
    world.sync()
    assert world[1].tread("ledger") == world[2].tread("ledger")
    assert world.all("XLEN", "ledger") == [4, 4]


def test_a_compacted_log_keeps_the_last_entry_of_each_tag_everywhere(world: World, toml: Path) -> None:
    written = [(f"own {n}" if n % 10 == 0 else f"tag {n % 50}", f"{n:040}") for n in range(1, 6_001)]
    written += [("", "untagged"), ("", "also"), ("tag 1", "last")]
    for first in range(0, len(written), 1_000):
        world[1].twrite("ledger", entries=written[first : first + 1_000])
    assert len(world[1].tread("ledger", count=40, group="readers", retry=(60_000, 600_000))) == 40
    world.sync()
    held = log(toml, "compact")
    assert (held["deleted"], held["kept"]) == (0, 6_003)  # a group has not acknowledged them
    while world[1].tread("ledger", count=1_000, group="readers"):
        pass
    world[1].tack("ledger", "readers", range(1, 41))
    world.sync()
    done = log(toml, "compact")
    last = {tag: offset for offset, (tag, _) in enumerate(written, 1) if tag}
    stay = sorted([*last.values(), 6_001, 6_002])
    assert (done["deleted"], done["kept"]) == (len(written) - len(stay), len(stay))
    for memory in done["memory"].values():
        assert memory["after"] < memory["before"] / 4, done
    for region in (1, 2):
        rows = world[region].tread("ledger", count=10_000)
        assert [row for row in rows if row] == [(offset, *written[offset - 1]) for offset in stay]
        assert len(rows) == 6_003
    assert world[1].twrite("ledger", "tag 1", "new") == 6_004
    assert [row[0] for row in world[1].tread("ledger", group="readers")] == [6_004]
    world.sync()
    assert world[2].tread("ledger", 6_004)[0][2] == "new"


def test_what_is_no_log_is_said(world: World, toml: Path) -> None:
    world[1].xadd("stream", {"a": "1"})
    for name in ("stream", "missing"):
        done = braid("log", "info", name, "--config", str(toml))
        assert done.returncode == 1
        assert f"'{name}' is not a log" in done.stderr
    assert braid("log", "evict", "stream", "--config", str(toml)).returncode == 2
