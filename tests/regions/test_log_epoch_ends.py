"""An epoch of a log ends where the next one begins, for whatever handles its strand."""

import asyncio
import threading
from collections.abc import Callable

import pytest
import redis

from braidstream.replication import raising
from tests.support.log_homes import bodies, end_epoch, rescue, write
from tests.support.matrix import on_every_engine
from tests.support.rolling_back import roll_back, snapshot
from tests.support.waiting import eventually
from tests.support.world import World

flavour = on_every_engine

LONG = (60_000, 600_000)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(3)


def _wait_for_a_blocked_client(world: World, region: int) -> None:
    with world.engines[region - 1].client() as operator:
        eventually(
            lambda: operator.info("clients")["blocked_clients"] == 1, within_s=5, why="nobody is blocked"
        )


# Readers


@pytest.mark.parametrize("retry", [None, LONG])
def test_a_reader_of_a_group_that_waits_goes_on_at_the_new_home(
    world: World, retry: tuple[int, int] | None
) -> None:
    write(world[1], "1")
    world.sync()
    assert world[3].tread("log", group="g", retry=retry) == [(1, "t", "1")]
    found = list[tuple[int, str, str]]()
    reader = threading.Thread(
        target=lambda: found.extend(world[3].tread("log", group="g", retry=retry, block=0)), daemon=True
    )
    reader.start()
    _wait_for_a_blocked_client(world, 3)
    end_epoch(world, 2)
    world.ship(1, 2, "log")
    write(world[2], "2")
    world.ship(1, 3, "log")
    world.ship(2, 3, "log")
    reader.join(8)
    assert found == [(2, "t", "2")]


@pytest.mark.parametrize("retry", [None, LONG])
@pytest.mark.parametrize("block", [None, 300])
def test_a_group_gets_nothing_beyond_the_epoch_before_the_new_home_has_written(
    world: World, retry: tuple[int, int] | None, block: int | None
) -> None:
    write(world[1], "1")
    world.sync()
    write(world[1], "late 2", "late 3")
    end_epoch(world, 2, force=True)
    world.sync()
    found = list[tuple[int, str, str]]()
    for _ in range(3):
        found += world[3].tread("log", count=2, group="g", retry=retry, block=block)
    assert found == [(1, "t", "1")]
    write(world[2], "2")
    world.sync()
    world[3].tread("log", count=0, withinfo=True)  # reads the registry again
    assert world[3].tread("log", count=2, group="g", retry=retry, block=block) == [(2, "t", "2")]


def test_a_waiting_reader_of_a_group_gets_nothing_beyond_the_epoch(world: World) -> None:
    write(world[1], "1")
    world.sync()
    assert world[2].tread("log", group="g", retry=LONG) == [(1, "t", "1")]
    write(world[1], "late 2")
    end_epoch(world, 2, force=True)
    found = list[tuple[int, str, str]]()
    reader = threading.Thread(
        target=lambda: found.extend(world[2].tread("log", group="g", retry=LONG, block=0)), daemon=True
    )
    reader.start()
    _wait_for_a_blocked_client(world, 2)
    world.sync()
    write(world[2], "2")
    reader.join(8)
    assert found == [(2, "t", "2")]
    assert world[2].xpending("log", "g")["pending"] == 2


@pytest.mark.parametrize("arrived", [False, True])
def test_skip_waits_for_entries_of_an_earlier_epoch_that_have_not_arrived(
    world: World, arrived: bool
) -> None:
    write(world[1], "1", "2")
    if arrived:
        world.ship(1, 3, "log")
    write(world[1], "3", "4")
    end_epoch(world, 2)
    world.ship(1, 2, "log")
    write(world[2], "5", "6", "7")
    world.ship(2, 3, "log")
    known = [(1, "t", "1"), (2, "t", "2")] if arrived else []
    assert world[3].tread("log", 1, 3, skip=True) == known
    world.ship(1, 3, "log")
    assert [row[0] for row in world[3].tread("log", 2, 4, skip=True)] == [2, 3, 4, 5]
    assert [row[0] for row in world[3].tread("log", 5, 2, skip=True)] == [5, 6]


# A home that lost its last writes


def test_a_former_home_that_forgot_the_move_gives_no_offset_again(world: World) -> None:
    write(world[1], "1", "2", "3")
    world.sync()
    earlier = snapshot(world.engines[0])
    write(world[1], "4", "5")
    end_epoch(world, 2)
    world.sync()
    roll_back(world, 1, earlier)
    asyncio.run(raising.raise_above(world.endpoints[1], world.endpoints[2], 1))
    with pytest.raises(redis.ResponseError, match="SEALED"):
        write(world[1], "4'")
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4", "5"]] * 3
    assert rescue(world, 1, 2) == 0
