"""An engine that comes back without what it wrote last (a crash, a promotion) gets it from its peers."""

import logging
from collections.abc import Callable

import pytest

from tests.support.world import World

Make = Callable[..., World]


def written(world: World, count: int) -> list[str]:
    return [world[1].xadd("x", {"n": str(number)}) for number in range(count)]


def test_a_region_that_lost_its_last_entries_gets_them_back(
    make_world: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "braidstream")
    world = make_world(2)
    written(world, 5)
    with world.engines[0].client() as engine:
        earlier = engine.execute_command("DUMP", "bs:1:s:{x}")
        written(world, 5)
        world.sync()
        engine.execute_command("RESTORE", "bs:1:s:{x}", 0, earlier, "REPLACE")
    assert world[1].xlen("x") == 5
    assert "peer.lost_tail" not in caplog.text
    world.ship(2, 1, "x", relay=True)
    assert world[1].xrange("x") == world[2].xrange("x")
    assert world[1].xlen("x") == 10
    [logged] = [line for line in caplog.messages if "peer.lost_tail" in line]
    assert "entries=5" in logged
    again = written(world, 1)[0]
    world.sync()
    world.ship(2, 1, "x", relay=True)
    assert caplog.text.count("peer.lost_tail") == 1
    assert world[2].xrange("x")[-1][0] == again


def test_a_region_that_lost_its_strand_gets_it_back(make_world: Make) -> None:
    world = make_world(2)
    before = written(world, 5)
    world[2].xadd("x", {"n": "other"})
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:1:s:{x}")
    world.ship(2, 1, "x", relay=True)
    assert set(before) < {entry for entry, _ in world[1].xrange("x")}
    assert world[1].xrange("x") == world[2].xrange("x")


def test_what_was_lost_here_is_not_deleted_elsewhere(make_world: Make) -> None:
    """Written again before it was healed: the peers keep what they have."""
    world = make_world(2)
    before = written(world, 5)
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:1:s:{x}")
    later = written(world, 1)
    world.sync()
    assert [entry for entry, _ in world[2].xrange("x")] == before + later


def test_what_was_lost_here_is_not_deleted_at_a_peer_that_is_compared(make_world: Make) -> None:
    """The peer is too far behind for the journal. What was deleted goes there too, what was lost stays."""
    world = make_world(2)
    before = written(world, 5)
    with world.engines[0].client() as engine:
        world.sync()
        earlier = engine.execute_command("DUMP", "bs:1:s:{x}")
        lost = written(world, 5)
        world.sync()
        engine.execute_command("RESTORE", "bs:1:s:{x}", 0, earlier, "REPLACE")
        later = written(world, 1)
        world.sync()
        world[1].xdel("x", before[2])
        engine.xtrim("bs:1:j:{x}", maxlen=0)
    world.sync()
    assert [entry for entry, _ in world[2].xrange("x")] == before[:2] + before[3:] + lost + later


def test_a_region_that_lost_a_stream_and_its_registry_deletes_nothing_elsewhere(make_world: Make) -> None:
    """FLUSHALL, an empty server, a replica that never had the stream: then the application writes on."""
    world = make_world(3)
    before = written(world, 5)
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete(*engine.keys("bs:*{x}*"))
    later = written(world, 1)
    for target in (2, 3):
        world.ship(1, target, "x")
    assert [entry for entry, _ in world[2].xrange("x")] == before + later
    assert [entry for entry, _ in world[3].xrange("x")] == before + later


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_region_that_lost_only_its_registry_sees_all_strands_again(make_world: Make, goes_on: bool) -> None:
    world = make_world(3, id_mode="semi-strict")
    expected = written(world, 3)
    for region in (2, 3):
        expected.append(world[region].xadd("x", {"n": "other"}))
    expected.append(world[2].xadd("x", {"n": "chosen"}, id="99999999999999-7"))
    world[1].xgroup_create("x", "jobs", id="0")
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:meta:{x}")
    if goes_on:
        expected += written(world, 1)
    world.sync()
    for region in world:
        assert sorted(entry for entry, _ in world[region].xrange("x")) == sorted(expected)
        assert [group["name"] for group in world[region].xinfo_groups("x")] == ["jobs"]
