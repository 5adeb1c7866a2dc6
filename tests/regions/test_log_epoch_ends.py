"""An epoch of a log ends where the next one begins, for whatever handles its strand."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

import braidstream
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.replication.heal import raising
from braidstream.replication.link.link import Link
from tests.support.log_homes import bodies, end_epoch, rescue, write
from tests.support.matrix import on_every_engine
from tests.support.rolling_back import Interrupted, meet_again, roll_back, snapshot
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


def test_a_group_is_not_given_again_what_it_got_beyond_the_epoch(world: World) -> None:
    soon = (1, 600_000)
    write(world[1], "1")
    world.sync()
    write(world[1], "late 2", "late 3")
    rows = world[1].tread("log", count=9, group="g", retry=soon)
    assert [row[2] for row in rows] == ["1", "late 2", "late 3"]
    world[1].tack("log", "g", 1)
    end_epoch(world, 2, force=True)
    write(world[2], "2")
    world.sync()
    world[1].tread("log", count=0, withinfo=True)  # reads the registry again
    found = list[tuple[int, str, str]]()

    def got_all() -> bool:
        found.extend(world[1].tread("log", count=9, group="g", retry=soon))
        return world[1].xpending("log", "g")["pending"] == 1

    eventually(got_all, within_s=5, why="what is not part of the log should not be pending")
    assert {row[2] for row in found} == {"2"}


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


@pytest.mark.parametrize("offsets", [[2, 3], range(1, 4)])
def test_tack_right_after_a_move_acknowledges_all(world: World, offsets: list[int] | range) -> None:
    write(world[1], "1", "2")
    world.sync()
    with braidstream.Redis.from_url(world.engines[1].url, decode_responses=True) as late:
        late.tread("log", count=0, withinfo=True)  # caches that region 1 is the home
        end_epoch(world, 2)
        world.ship(1, 2, "log")
        write(world[2], "3")
        rows = world[2].tread("log", count=9, group="g", retry=LONG)
        assert [row[0] for row in rows] == [1, 2, 3]
        acked = late.tack("log", "g", *([offsets] if isinstance(offsets, range) else offsets))
        assert acked == len(offsets)


def test_stream_commands_know_where_a_moved_log_ends(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "late 3")
    end_epoch(world, 2, force=True)
    world.sync()
    assert [world[number].xinfo_stream("log")["last-generated-id"] for number in world] == ["0-2"] * 3
    found = list[object]()
    reader = threading.Thread(target=lambda: found.extend(world[3].xread({"log": "$"}, block=0)), daemon=True)
    reader.start()
    _wait_for_a_blocked_client(world, 3)
    write(world[2], "3")
    world.sync()
    reader.join(8)
    assert found == [["log", [("0-3", {"t": "t", "e": "3"})]]]
    assert [world[number].xinfo_stream("log")["last-generated-id"] for number in world] == ["0-3"] * 3


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


def test_a_home_that_forgot_that_it_became_the_home_gives_no_offset_again(world: World) -> None:
    write(world[1], "1")
    world.sync()
    end_epoch(world, 2)
    world.sync()
    write(world[2], "2")
    world.sync()
    earlier = snapshot(world.engines[0])
    end_epoch(world, 1, home=2)
    world.sync()
    write(world[1], "3", "4")
    world.sync()
    roll_back(world, 1, earlier)
    asyncio.run(raising.raise_above(world.endpoints[1], world.endpoints[2], 1))
    given = list[int]()
    # It knows again that it is the home, and has not got its entries back yet.
    home = Interrupted(world, 1, lambda: given.extend(write(world[1], "5")), before="bs_strand_apply")
    link = Link(world.endpoints[2], home, here=world.region(2), there=world.region(1))
    with suppress(ReplyError):
        asyncio.run(link.sync(b"log", relay=True))
    assert given == [5]
    meet_again(world)
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4", "5"]] * 3


def test_an_empty_home_that_forgot_its_writes_gives_no_offset_again(world: World) -> None:
    world[1].tcfgset("log", backlog=1_000)
    world.sync()
    earlier = snapshot(world.engines[0])
    write(world[1], "1", "2")
    world.sync()
    roll_back(world, 1, earlier)
    asyncio.run(raising.raise_above(world.endpoints[1], world.endpoints[2], 1))
    assert write(world[1], "3") == [3]
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3"]] * 3


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_deleted_log_whose_home_forgot_its_writes_gives_no_offset_again(
    world: World, writes_first: bool
) -> None:
    write(world[1], "1", "2")
    world.sync()
    world[1].delete("log")
    world.sync()
    earlier = snapshot(world.engines[0])
    write(world[1], "3", "4")
    world.sync()
    roll_back(world, 1, earlier)
    asyncio.run(raising.raise_above(world.endpoints[1], world.endpoints[2], 1))
    if not writes_first:
        world.sync()
        assert [bodies(world, number) for number in world] == [[None, None, "3", "4"]] * 3
    assert write(world[1], "5") == [5]
    world.sync()
    assert [bodies(world, number) for number in world] == [[None, None, "3", "4", "5"]] * 3


# Eviction, and entries that wait for their rescue


def force_with_a_tail(world: World) -> None:
    """Region 1 wrote 3 entries that count, and 2 after region 2 had become the home."""
    write(world[1], "1", "2", "3")
    world.sync()
    write(world[1], "late 4", "late 5")
    end_epoch(world, 2, force=True)
    write(world[2], "4", "5", "6")
    world.sync()


@pytest.mark.parametrize("limit", [{"offset": 5}, {"keep": 0}])
def test_eviction_leaves_what_waits_for_its_rescue(world: World, limit: dict[str, int]) -> None:
    force_with_a_tail(world)
    world[2].tevict("log", **limit)
    world.sync()
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number)[-2:] for number in world] == [["late 4", "late 5"]] * 3


def test_eviction_by_age_leaves_what_waits_for_its_rescue(world: World) -> None:
    force_with_a_tail(world)
    with world.engines[1].client() as operator:
        operator.delete("bs:tick:{log}")
        operator.xadd("bs:tick:{log}", {"o": 6, "t": "2:t.1"}, id="1000-0")  # all of them are old
    world[2].twrite("log", entries=[("t", "7")], maxage=60_000)
    world.sync()
    expected = [None] * 6 + ["7"]
    assert [bodies(world, number) for number in world] == [expected] * 3
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [[*expected, "late 4", "late 5"]] * 3


def test_a_home_that_comes_back_does_not_take_new_entries_for_old_ones(world: World) -> None:
    force_with_a_tail(world)
    rescue(world, 1, 2)
    with world.engines[0].client() as operator:
        operator.delete("bs:tick:{log}")
        operator.xadd("bs:tick:{log}", {"o": 5, "t": "1:t"}, id="1000-0")  # before the forced move
    end_epoch(world, 1, home=2)
    world.sync()
    kept = ["1", "2", "3", "4", "5", "6", "late 4", "late 5"]
    assert world[1].tevict("log", older=60_000) == 0
    world[1].twrite("log", entries=[("t", "9")], maxage=60_000)
    world[1].twrite("log", entries=[("t", "10")], maxage=60_000)
    assert bodies(world, 1) == [*kept, "9", "10"]


def test_what_is_restored_after_the_rescue_of_later_entries_is_rescued_too(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    earlier = snapshot(world.engines[0])
    write(world[1], "late 3", "late 4")
    world.ship(1, 3, "log")
    end_epoch(world, 2, force=True)
    roll_back(world, 1, earlier)
    asyncio.run(raising.raise_above(world.endpoints[1], world.endpoints[3], 1))
    assert write(world[1], "late 5") == [5]
    world.ship(2, 1, "log")
    assert rescue(world, 1, 2) == 1
    world.sync()  # region 3 gives back what region 1 lost
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "late 5", "late 3", "late 4"]] * 3


def test_malformed_notes_of_rescued_offsets_count_nowhere(world: World) -> None:
    notes = {"r:t0.1:x": "5", "r:t0.1:0": "9" * 5_000, "r:t0.1:1": "later", "r:t0.1": "007"}
    write(world[1], "1", "2")
    world.sync()
    end_epoch(world, 2, force=True)
    write(world[1], "late 3", "late 4")
    for engine in world.engines[:2]:
        with engine.client() as bare:
            bare.hset(keys.meta(b"log"), mapping=notes)
    world.ship(2, 1, "log")
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "late 3", "late 4"]] * 3
    with world.engines[2].client() as bare:
        assert bare.hmget(keys.meta(b"log"), [*notes]) == [None] * 4


def test_keep_counts_the_entries_of_the_log_only(world: World) -> None:
    write(world[1], *(f"{number}" for number in range(1, 301)))
    world.sync()
    write(world[1], *(f"late {number}" for number in range(100)))
    end_epoch(world, 2, force=True)
    write(world[2], "301")
    world.sync()
    world[2].tevict("log", keep=250)
    world.sync()
    assert [len(world[number].tread("log", 52, 1_000, skip=True)) for number in world] == [250] * 3
    assert rescue(world, 1, 2) == 100
    world.sync()
    assert world[2].tevict("log", keep=250) > 0


def test_a_rescue_on_each_side_of_a_partition_loses_nothing(make_world: Callable[..., World]) -> None:
    world = make_world(4)
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3", "4")
    world.ship(1, 3, "log")
    write(world[1], "5", "6")
    assert end_epoch(world, 3, force=True) == 5
    world.sync([1, 3])
    assert rescue(world, 1, 3) == 2
    world.sync([1, 3])
    assert bodies(world, 3) == ["1", "2", "3", "4", "5", "6"]
    assert end_epoch(world, 2, force=True) == 3
    world.sync([2, 4])
    end_epoch(world, 4, home=2)
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2"]] * 4
    assert [rescue(world, old, 4) for old in world] == [2, 0, 2, 0]
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4", "5", "6"]] * 4


def test_a_forced_home_begins_where_an_earlier_epoch_is_incomplete(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3", "4")
    end_epoch(world, 2)
    world.ship(1, 2, "log")
    write(world[2], "5")
    world.ship(2, 3, "log")
    assert end_epoch(world, 3, force=True) == 3
    assert write(world[3], "x") == [3]
    assert world[3].tread("log", 1, 9, withinfo=True) == (
        (1, 3),
        [(1, "t", "1"), (2, "t", "2"), (3, "t", "x")],
    )
    world.sync()
    assert [rescue(world, old, 3) for old in (1, 2)] == [2, 1]
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "x", "3", "4", "5"]] * 3


def test_a_home_can_be_forced_on_if_the_old_one_died_before_its_last_entries_arrived(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3", "4")
    end_epoch(world, 2)
    with world.engines[0].client() as old, world.engines[1].client() as new:
        new.hset(keys.meta(b"log"), "home", old.hget(keys.meta(b"log"), "home"))  # and then region 1 is lost
    assert write(world[2], "5") == [5]
    assert end_epoch(world, 2, force=True) == 3
    assert rescue(world, 2, 2) == 1
    write(world[2], "6")
    assert bodies(world, 2) == ["1", "2", "5", "6"]
    assert end_epoch(world, 2, force=True) == 3  # nothing is missing now
    world.sync()  # region 1 is back
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "5", "6", "3", "4"]] * 3


def test_an_epoch_that_was_forced_and_planned_and_never_wrote_is_not_waited_for(world: World) -> None:
    write(world[1], "1")
    end_epoch(world, 2)
    world.sync()
    write(world[2], "2", "3")
    assert end_epoch(world, 1, home=2) == 4
    assert end_epoch(world, 2, force=True) == 4
    write(world[2], "4")
    assert end_epoch(world, 1, force=True) == 2  # nothing of 2 and 3 has arrived here
    world.sync()
    assert rescue(world, 2, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", None, None, "4", "2", "3"]] * 3
