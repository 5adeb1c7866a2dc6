"""After another process took over, missing entries count as lost, not as trimmed, until a link has looked."""

import pytest

from braidstream.errors import ReplyError
from braidstream.operations.membership import part, show_alive
from tests.support.rolling_back import (
    Make,
    assert_alike,
    bring_back,
    ids,
    meet_again,
    roll_back,
    served_by,
    snapshot,
)
from tests.support.world import World

MODES = pytest.mark.parametrize("mode", ["strict", "liberal"])


def restart(world: World, process: str) -> None:
    served_by(world, 1, process)
    meet_again(world)


def add(world: World, mode: str, *numbers: int) -> list[str]:
    return [world[1].xadd("x", {"n": n}, id=f"{n}-1" if mode == "liberal" else "*") for n in numbers]


@MODES
def test_a_trim_while_the_link_was_down_is_no_loss_after_an_old_restart(
    make_world: Make, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    world = make_world(2, id_mode=mode)
    restart(world, "first")
    restart(world, "second")
    add(world, mode, 1, 2, 3)
    world.sync()
    world[1].xtrim("x", maxlen=0, approximate=False)
    later = add(world, mode, 4)
    meet_again(world)
    assert_alike(world, later)
    assert "region.lost_tail" not in caplog.text


def test_what_a_log_evicted_while_the_link_was_down_is_no_loss_after_an_old_restart(make_world: Make) -> None:
    world = make_world(2)
    restart(world, "first")
    restart(world, "second")
    world[1].run_plan(show_alive(raised=True))  # by the process that writers are connected to
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(1, 21)])
    world.sync()
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(21, 31)])
    world[1].tevict("log", 25)
    meet_again(world)
    world.sync()
    assert [world[region].xlen("log") for region in world] == [5, 5]


@MODES
def test_a_trim_between_the_restart_and_the_first_look_is_undone(make_world: Make, mode: str) -> None:
    """The entries may as well be lost."""
    world = make_world(2, id_mode=mode)
    restart(world, "first")
    entries = add(world, mode, 1, 2, 3)
    world.sync()
    world[1].xtrim("x", maxlen=0, approximate=False)
    restart(world, "second")
    assert_alike(world, entries)


@MODES
def test_a_look_before_the_loss_proves_nothing(make_world: Make, mode: str) -> None:
    world = make_world(2, id_mode=mode)
    restart(world, "first")
    restart(world, "second")
    before = add(world, mode, 1, 2)
    world.sync()
    world[1].xdel("x", *before)
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = add(world, mode, 3, 4)
    world.sync()
    roll_back(world, 1, earlier)
    restart(world, "third")
    assert_alike(world, lost + add(world, mode, 5))


@MODES
def test_a_look_in_one_region_proves_nothing_about_what_another_one_relays(
    make_world: Make, mode: str
) -> None:
    """Only region 3 has the lost entry. Region 2 receives it from there, after region 1 has looked."""
    world = make_world(3, id_mode=mode)
    restart(world, "first")
    before = add(world, mode, 1, 2)
    world.sync()
    earlier = snapshot(world.engines[0])
    [lost] = add(world, mode, 3)
    world.ship(1, 3, "x")
    bring_back(world.engines[0], earlier)
    restart(world, "second")
    world.ship(1, 2, "x")
    world.ship(3, 2, "x", relay=True)
    assert ids(world, 2) == [*before, lost]
    for region in (1, 2):
        world[region].run_plan(part([3]))
    world[1].xdel("x", *before)
    later = add(world, mode, 4)
    meet_again(world)
    world.sync([1, 2])
    assert ids(world, 1) == ids(world, 2) == [lost, *later]


@MODES
def test_what_a_process_lost_that_refused_writes_at_first_comes_back(make_world: Make, mode: str) -> None:
    """It could not note that another process serves the region, until the link had come up."""
    world = make_world(2, id_mode=mode)
    restart(world, "first")
    restart(world, "second")
    before = add(world, mode, 1, 2)
    world.sync()
    earlier = snapshot(world.engines[0])
    [lost] = add(world, mode, 3)
    world.sync()
    bring_back(world.engines[0], earlier)
    with world.engines[0].client() as engine:
        engine.config_set("min-replicas-to-write", 1)
        try:
            world[1].run_plan(show_alive())
            meet_again(world)
            with pytest.raises(ReplyError, match="NOREPLICAS"):
                world.ship(1, 2, "x")
        finally:
            engine.config_set("min-replicas-to-write", 0)
    world[1].run_plan(show_alive())
    world[1].xdel("x", *before)
    assert_alike(world, [lost, *add(world, mode, 4)])
