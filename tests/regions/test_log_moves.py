"""The home of a log moves to another region: planned, forced, and what the old home wrote meanwhile."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

import braidstream
from braidstream.model import keys
from braidstream.operations import log_upkeep
from tests.support.log_homes import bodies, end_epoch, rescue, write
from tests.support.matrix import on_every_engine
from tests.support.waiting import eventually
from tests.support.world import World

flavour = on_every_engine

LONG = (60_000, 600_000)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(3)


def test_offsets_continue_at_the_new_home(world: World) -> None:
    write(world[1], "1", "2", "3")
    world.sync()
    write(world[1], "4", "5")
    assert end_epoch(world, 2) == 6
    assert end_epoch(world, 2) == 6  # again
    with pytest.raises(redis.ResponseError, match="HOME 2 log 'log' is written in region 2"):
        write(world[1], "x")
    world.ship(1, 2, "log")
    assert write(world[2], "6", "7") == [6, 7]
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4", "5", "6", "7"]] * 3
    assert [world[number].tread("log", 5, 2) for number in world] == [[(5, "t", "5"), (6, "t", "6")]] * 3
    assert world[3].tread("log", 1, 0, withinfo=True)[0] == (1, 7)
    facts = world[3].xinfo_stream("log")
    assert (facts["home"], facts["epoch"], facts["last-offset"], facts["length"]) == (2, 1, 7, 7)


@pytest.mark.parametrize("force", [False, True])
def test_a_message_is_known_at_the_new_home(world: World, force: bool) -> None:
    assert world[1].twrite("log", "t", "1", idmp=("p", "a")) == 1
    assert world[1].twrite("log", entries=[("t", "2"), ("t", "3")], idmp=("p", "b")) == [2, 3]
    world.sync()
    end_epoch(world, 2, force=force)
    world.ship(1, 2, "log")
    for _ in range(2):
        assert world[2].twrite("log", entries=[("t", "2"), ("t", "3")], idmp=("p", "b")) == [2, 3]
        assert world[2].twrite("log", "t", "4", idmp=("p", "c")) == 4
    world.sync()
    end_epoch(world, 3, home=2)
    world.ship(2, 3, "log")
    assert world[3].twrite("log", "t", "1", idmp=("p", "a")) == 1
    assert world[3].twrite("log", "t", "4", idmp=("p", "c")) == 4
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4"]] * 3


def test_a_message_sent_again_before_the_journal_has_arrived_waits_for_it(world: World) -> None:
    assert world[1].twrite("log", "t", "1", idmp=("p", "a")) == 1
    world.sync()
    assert world[1].twrite("log", "t", "2", idmp=("p", "b")) == 2
    end_epoch(world, 2)
    world.ship(1, 3, "log")
    world.ship(3, 2, "log")  # region 2 learns that it is the home, and not yet what region 1 accepted
    assert world[2].twrite("log", "t", "1", idmp=("p", "a")) == 1
    with pytest.raises(redis.ResponseError, match="SEALED log 'log' has just moved here"):
        world[2].twrite("log", "t", "2", idmp=("p", "b"))
    assert world[2].twrite("log", "t", "3") == 3
    end_epoch(world, 3, home=2)
    world.ship(2, 3, "log")
    world.ship(1, 2, "log")
    assert world[3].twrite("log", "t", "2", idmp=("p", "b")) == 2
    assert world[3].twrite("log", "t", "4", idmp=("p", "c")) == 4
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4"]] * 3


def test_messages_wait_as_long_as_they_count(world: World) -> None:
    """The old home is lost in the middle of a move, with its journal."""
    world[1].tcfgset("log", pending=1)
    world[1].xcfgset("log", idmp_duration=1)
    world[1].twrite("log", "t", "1", idmp=("p", "a"))
    end_epoch(world, 2)
    world.ship(1, 3, "log")
    world.ship(3, 2, "log")

    def write_again() -> bool:
        with suppress(redis.ResponseError):
            return bool(world[2].twrite("log", "t", "again", idmp=("p", "a")) == 2)
        return False

    assert not write_again()
    eventually(write_again, within_s=5, why="the ID has expired")


def test_messages_do_not_wait_after_a_forced_move(world: World) -> None:
    world[1].twrite("log", "t", "1", idmp=("p", "a"))
    world.sync()
    world[1].twrite("log", "t", "2", idmp=("p", "b"))
    end_epoch(world, 2)
    world.ship(1, 3, "log")
    world.ship(3, 2, "log", relay=True)
    with world.engines[1].client() as bare:
        bare.delete(keys.journal(b"log", 1))
    with pytest.raises(redis.ResponseError, match="SEALED"):
        world[2].twrite("log", "t", "3", idmp=("p", "c"))
    end_epoch(world, 2, force=True)
    assert world[2].twrite("log", "t", "3", idmp=("p", "c")) == 3


def test_and_back_again(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    for home, to, entries in ((1, 2, "34"), (2, 3, "56"), (3, 1, "78"), (1, 3, "9")):
        end_epoch(world, to, home=home)
        world.ship(home, to, "log")
        write(world[to], *entries)
        world.sync()
    assert [bodies(world, number) for number in world] == [list("123456789")] * 3
    assert world[2].tevict("log", 4) == 4
    assert world[2].tevict("log", keep=2) >= 0
    world.sync()
    assert [bodies(world, number)[-2:] for number in world] == [["8", "9"]] * 3


def test_entries_of_a_new_epoch_that_arrive_early_are_not_shown_before_the_rest(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3")
    end_epoch(world, 2)
    world.ship(1, 2, "log")
    write(world[2], "4")
    world.ship(2, 3, "log")
    assert bodies(world, 3) == ["1", "2"]
    assert world[3].tread("log", 1, 0, withinfo=True)[0] == (1, 2)
    timer = threading.Timer(0.2, lambda: world.ship(1, 3, "log"))
    timer.start()
    assert world[3].tread("log", 3, 5, block=5_000)[0] == (3, "t", "3")
    timer.join()
    assert bodies(world, 3) == ["1", "2", "3", "4"]


def test_a_reader_that_waits_goes_on_at_the_new_home(world: World) -> None:
    write(world[1], "1")
    world.sync()

    def move() -> None:
        end_epoch(world, 2)
        world.ship(1, 2, "log")
        write(world[2], "2")

    timer = threading.Timer(0.2, move)
    timer.start()
    began = time.monotonic()
    assert world[2].tread("log", 2, 5, block=5_000) == [(2, "t", "2")]
    assert time.monotonic() - began < 2
    timer.join()


@pytest.mark.parametrize("retry", [None, LONG])
def test_a_group_reads_on_over_the_epochs(world: World, retry: tuple[int, int] | None) -> None:
    write(world[1], "1", "2", "3")
    assert [row[0] for row in world[1].tread("log", count=1, group="g", retry=retry)] == [1]
    world[1].xack("log", "g", "0-1")
    world.sync()
    end_epoch(world, 2)
    world.ship(1, 2, "log")
    write(world[2], "4", "5")
    world.sync()
    found = list[int]()
    while rows := world[2].tread("log", count=2, group="g", retry=retry):
        found += [row[0] for row in rows]
    assert found == [2, 3, 4, 5]
    if retry:
        assert world[2].tack("log", "g", 2, 5) == 2
        assert world[2].tack("log", "g", range(1, 100)) == 2


def test_a_deleted_log_moves_too(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    world[1].delete("log")
    assert end_epoch(world, 2) == 3
    world.sync()
    assert write(world[2], "3") == [3]
    world.sync()
    assert [bodies(world, number) for number in world] == [[None, None, "3"]] * 3


def test_a_forced_move_and_the_rescue_of_what_the_old_home_wrote(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "late 3", "late 4")  # acknowledged, and nobody else has it
    assert end_epoch(world, 2, force=True) == 3
    assert write(world[2], "3") == [3]
    write(world[1], "late 5")  # it does not know yet
    world.sync()
    with pytest.raises(redis.ResponseError, match="HOME 2"):
        write(world[1], "x")
    assert [bodies(world, number) for number in world] == [["1", "2", "3"]] * 3
    assert rescue(world, 1, 2) == 3
    assert rescue(world, 1, 2) == 0
    world.sync()
    whole = ["1", "2", "3", "late 3", "late 4", "late 5"]
    assert [bodies(world, number) for number in world] == [whole] * 3
    assert world.all("XLEN", "log") == [6, 6, 6]


def test_a_rescue_that_was_killed_is_finished_at_the_next_home(world: World) -> None:
    write(world[1], "1")
    world.sync()
    write(world[1], "late 2")
    end_epoch(world, 2, force=True)
    world.sync()
    registry = world[2].run_plan(log_upkeep.read_log(b"log"))
    [(strand, end)] = log_upkeep.lost_tails(b"log", registry, 1)
    entries = world[1].run_plan(log_upkeep.read_tail(strand, end))
    assert world[2].run_plan(log_upkeep.append_tail(b"log", (strand, end), entries)) == 1
    # Killed here: region 1 still has the entry. Then the home moves on.
    end_epoch(world, 3, home=2)
    world.ship(2, 3, "log")
    assert rescue(world, 1, 3) == 0
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "late 2"]] * 3
    assert world.all("XLEN", "log") == [2, 2, 2]


def test_a_move_that_was_planned_and_then_forced_begins_where_the_new_home_did(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "late 3", "late 4")
    assert end_epoch(world, 2) == 5  # and then region 1 is lost, before region 2 learns of it
    assert end_epoch(world, 2, force=True) == 3
    assert write(world[2], "3") == [3]
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3"]] * 3
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "late 3", "late 4"]] * 3
    assert write(world[2], "6") == [6]


@pytest.mark.parametrize("retry", [None, LONG])
def test_a_group_does_not_get_what_is_not_part_of_the_log(
    world: World, retry: tuple[int, int] | None
) -> None:
    write(world[1], "1")
    world.sync()
    write(world[1], "late 2", "late 3")
    end_epoch(world, 2, force=True)
    write(world[2], "2")
    world.sync()
    found = list[tuple[int, str, str]]()
    for _ in range(4):
        found += world[3].tread("log", count=2, group="g", retry=retry)
    assert found == [(1, "t", "1"), (2, "t", "2")]


def test_two_regions_that_made_one_log_apart_are_rescued(world: World) -> None:
    write(world[1], "one", "two")
    write(world[2], "1")
    world.sync()
    assert rescue(world, 1, 2) == 2
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "one", "two"]] * 3


def test_of_two_forced_moves_the_higher_region_stays_the_home(world: World) -> None:
    write(world[1], "1")
    world.sync()
    end_epoch(world, 2, force=True)
    end_epoch(world, 3, force=True)
    write(world[2], "by 2")
    write(world[3], "by 3")
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "by 3"]] * 3
    assert rescue(world, 2, 3) == 1
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "by 3", "by 2"]] * 3


def test_writers_under_way_lose_nothing_in_a_planned_move(world: World) -> None:
    told, stop, pauses, refused = dict[int, str](), threading.Event(), list[float](), set[str]()
    world[1].twrite("log", "t", "0")
    world.sync()

    def write_on(who: int) -> None:
        clients = {
            number: braidstream.Redis.from_url(world.engines[number - 1].url, decode_responses=True)
            for number in (1, 2)
        }
        at, number = 1, 0
        since = time.monotonic()
        while not stop.is_set():
            try:
                told[clients[at].twrite("log", "t", f"{who}.{number}")] = f"{who}.{number}"
                pauses.append(time.monotonic() - since)
                number, since = number + 1, time.monotonic()
            except redis.ResponseError as error:
                refused.add(str(error).split()[0])
                at = 2
        for client in clients.values():
            client.close()

    threads = [threading.Thread(target=write_on, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    end_epoch(world, 2)
    world.ship(1, 2, "log")
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    world.sync()
    print(f"{len(told)} entries, the longest write took {1000 * max(pauses):.0f} ms")
    assert refused == {"HOME"}
    rows = [(n, "t", told.get(n, "0")) for n in range(1, len(told) + 2)]
    assert [world[number].tread("log", 1, 100_000) for number in world] == [rows] * 3


def test_an_epoch_ends_where_any_later_one_begins(world: World) -> None:
    """Two regions are declared the home at once, and the one that stays has fewer entries than the other."""
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3", "4", "5")
    world.ship(1, 2, "log")
    assert end_epoch(world, 2, force=True) == 6
    write(world[2], "6")
    assert end_epoch(world, 3, force=True) == 3
    write(world[3], "x")
    world.sync()
    assert [bodies(world, region) for region in (1, 2, 3)] == [["1", "2", "x"]] * 3
    assert rescue(world, 1, 3) == 3
    assert rescue(world, 2, 3) == 1
    world.sync()
    assert [bodies(world, region) for region in (1, 2, 3)] == [["1", "2", "x", "3", "4", "5", "6"]] * 3


def test_two_regions_that_begin_the_next_epoch_at_once(world: World) -> None:
    """The one that the log does not go through never writes: nobody waits for its offsets."""
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3")
    world.ship(1, 3, "log")
    assert end_epoch(world, 2, force=True) == 3  # region 1 does not answer; 3 has not arrived here
    assert end_epoch(world, 3) == 4  # region 1 has not heard of that
    world.sync()
    assert write(world[3], "4") == [4]
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4"]] * 3
    assert [rescue(world, old, 3) for old in (1, 2)] == [0, 0]
    assert [world[number].tread("log", 1, 0, withinfo=True)[0] for number in world] == [(1, 4)] * 3


def test_what_was_written_in_an_epoch_that_does_not_count_is_rescued(world: World) -> None:
    write(world[1], "1", "2")
    world.sync()
    write(world[1], "3")
    world.ship(1, 3, "log")
    end_epoch(world, 2, force=True)
    assert write(world[2], "beside") == [3]
    end_epoch(world, 3)
    world.sync()
    assert write(world[3], "4") == [4]
    assert rescue(world, 2, 3) == 1
    world.sync()
    assert [bodies(world, number) for number in world] == [["1", "2", "3", "4", "beside"]] * 3
