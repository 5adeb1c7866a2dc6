"""Logs in several regions: one home gives out the offsets, every region has the same entries under them."""

import asyncio
import threading
from collections.abc import Callable

import pytest
import redis

from braidstream.model import keys
from braidstream.replication.heal import raising
from tests.support.matrix import on_every_engine
from tests.support.world import World

flavour = on_every_engine


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(3)


def offsets(world: World, region: int, name: str = "log") -> list[int | None]:
    return [row and row[0] for row in world[region].tread(name, 1, 1_000)]


def test_one_number_means_the_same_entry_in_every_region(world: World) -> None:
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(1, 301)])
    world.sync()
    rows = [(n, "t", f"{n}") for n in range(1, 301)]
    assert [world[number].tread("log", 1, 1_000) for number in world] == [rows] * 3
    assert [world[number].tread("log", 1, 0, withinfo=True)[0] for number in world] == [(1, 300)] * 3


def test_a_write_elsewhere_is_told_where_the_home_is(world: World) -> None:
    world[2].twrite("log", "t", "1")
    world.sync()
    for number in (1, 3):
        with pytest.raises(redis.ResponseError, match="HOME 2 log 'log' is written in region 2"):
            world[number].twrite("log", "t", "2")
    assert world[2].twrite("log", "t", "2") == 2


def test_a_log_that_has_not_arrived_is_no_stream(world: World) -> None:
    world[1].tcfgset("log", backlog=5)
    world.sync()
    with pytest.raises(redis.ResponseError, match="'log' is a log"):
        world[2].xadd("log", {"a": "1"})
    with pytest.raises(redis.ResponseError, match="HOME 1"):
        world[2].twrite("log", "t", "1")
    assert world[1].twrite("log", "t", "1") == 1
    world.sync()
    assert world[2].tread("log") == [(1, "t", "1")]


def test_evictions_and_deletions_of_entries_travel(world: World) -> None:
    world[1].twrite("log", entries=[("t", "x")] * 8)
    world.sync()
    assert world[2].tevict("log", 3) == 3
    world[3].xdel("log", "0-6")
    world.sync()
    expected = [None, None, None, 4, 5, None, 7, 8]
    assert [offsets(world, number) for number in world] == [expected] * 3
    assert world[1].twrite("log", "t", "9") == 9


@pytest.mark.parametrize("deleter", [1, 2])
def test_a_deleted_log_goes_on_after_its_last_offset(world: World, deleter: int) -> None:
    world[1].twrite("log", entries=[("t", "x")] * 4)
    world.sync()
    world[deleter].delete("log")
    world.sync()
    assert world.all("EXISTS", "log") == [0, 0, 0]
    assert [offsets(world, number) for number in world] == [[None] * 4] * 3
    assert world[1].twrite("log", "t", "5") == 5
    world.sync()
    assert [offsets(world, number) for number in world] == [[None] * 4 + [5]] * 3


def test_settings_travel_and_the_last_change_wins(world: World) -> None:
    world[1].twrite("log", "t", "1")
    world.sync()
    world[2].tcfgset("log", backlog=200)
    world.sync()
    world[3].tcfgset("log", pending=9)
    world.sync()
    for number in world:
        facts = world[number].xinfo_stream("log")
        assert (facts["backlog"], facts["pending-max"], facts["home"]) == (200, 9, 1)


def test_groups_on_a_log_follow_in_every_region(world: World) -> None:
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(1, 7)])
    world[1].xgroup_create("log", "jobs", "0")
    world[1].xreadgroup("jobs", "me", {"log": ">"}, count=4)
    world[1].xack("log", "jobs", "0-1", "0-2", "0-3")
    world.sync()
    [[_, rows]] = world[2].xreadgroup("jobs", "you", {"log": ">"}, count=10)
    assert [entry for entry, _ in rows] == ["0-4", "0-5", "0-6"]
    assert sorted(world[2].execute_command("KEYS", "*")) == ["log"]
    with world.engines[1].client() as operator:
        assert operator.exists("bs:1:s:{log}", "bs:2:s:{log}") == 0


def test_two_regions_that_make_one_log_apart_agree_on_one_home(world: World) -> None:
    world[1].twrite("log", entries=[("t", "one")] * 3)
    world[2].twrite("log", entries=[("t", "two")] * 2)
    world.sync()
    rows = [(1, "t", "two"), (2, "t", "two")]
    assert [world[number].tread("log", 1, 10) for number in world] == [rows] * 3
    with pytest.raises(redis.ResponseError, match="HOME 2"):
        world[1].twrite("log", "t", "one")
    assert world[2].twrite("log", "t", "two") == 3
    with world.engines[0].client() as operator:
        assert operator.execute_command("XINFO STREAM", "bs:1:t:{log}")["last-generated-id"] == b"1-0"
    # What region 1 wrote is kept, for stream commands.
    assert [fields["e"] for _, fields in world[3].xrange("log")].count("one") == 3


def test_a_stream_and_a_log_made_apart_become_a_log(world: World) -> None:
    world[1].twrite("log", "t", "1")
    world[2].xadd("log", {"a": "1"})
    world.sync()
    with pytest.raises(redis.ResponseError, match="'log' is a log"):
        world[3].xadd("log", {"a": "2"})
    assert [world[number].tread("log") for number in world] == [[(1, "t", "1")]] * 3
    assert world[1].twrite("log", "t", "2") == 2
    assert world.all("XLEN", "log") == [3, 2, 2]


def test_a_reader_in_another_region_is_woken(world: World) -> None:
    world[1].twrite("log", "t", "1")
    world.sync()
    timer = threading.Timer(0.2, lambda: (world[1].twrite("log", "t", "2"), world.ship(1, 2, "log")))
    timer.start()
    assert world[2].tread("log", 2, 5, block=5_000) == [(2, "t", "2")]
    timer.join()


def _roll_back(world: World, region: int, key: str) -> Callable[[], None]:
    """Remember the value of a key; what is returned brings it back, as a failover to a late replica does."""
    with world.engines[region - 1].client() as operator:
        dump = operator.dump(key)
    assert dump is not None

    def back() -> None:
        with world.engines[region - 1].client() as operator:
            operator.delete(key)
            operator.restore(key, 0, dump)

    return back


def _raise_offsets(world: World, known_by: int) -> None:
    home, peer = world.endpoints[1], world.endpoints[known_by]
    asyncio.run(raising.raise_above(home, peer, 1))


@pytest.mark.parametrize("where", [1, 2])
def test_a_key_in_place_of_a_registry_keeps_no_log_from_its_offsets(world: World, where: int) -> None:
    world[1].twrite("log", "t", "1")
    world.sync()
    world[1].xadd("stray", {"n": "1"})
    back = _roll_back(world, 1, "bs:1:t:{log}")
    world[1].twrite("log", "t", "2")
    world.ship(1, 2, "log")
    back()
    with world.engines[where - 1].client() as bare:
        bare.set(keys.meta(b"stray"), "no hash")
    _raise_offsets(world, 1)
    _raise_offsets(world, 2)
    assert world[1].twrite("log", "t", "3") == 3


@pytest.mark.parametrize("length", [3, 250])
def test_a_home_that_forgot_offsets_gives_none_of_them_again(world: World, length: int) -> None:
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(1, length + 1)])
    world[1].xgroup_create("log", "jobs", "0")
    world[1].xreadgroup("jobs", "me", {"log": ">"}, count=2)
    world.sync()
    back = _roll_back(world, 1, "bs:1:t:{log}")
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(length + 1, length + 4)])
    world.sync()
    back()
    _raise_offsets(world, 2)
    assert world[1].twrite("log", "t", f"{length + 4}") == length + 4
    world.links = {pair: world.link(*pair) for pair in world.links}
    world.sync()
    rows = [(n, "t", f"{n}") for n in range(1, length + 5)]
    assert [world[number].tread("log", 1, 1_000) for number in world] == [rows] * 3
    assert [row["message_id"] for row in world[1].xpending_range("log", "jobs", "-", "+", 10)] == [
        "0-1",
        "0-2",
    ]


def test_a_log_whose_key_was_lost_at_home_comes_back(world: World) -> None:
    world[1].twrite("log", entries=[("t", f"{n}") for n in range(1, 700)])
    world.sync()
    with world.engines[0].client() as operator:
        operator.delete("bs:1:t:{log}")
    later = world[1].twrite("log", "t", "later")
    assert later > 1_000_000
    world.links = {pair: world.link(*pair) for pair in world.links}
    world.sync()
    rows = [(n, "t", f"{n}") for n in range(1, 700)]
    assert [world[number].tread("log", 1, 699) for number in world] == [rows] * 3
    assert [world[number].tread("log", later, 1) for number in world] == [[(later, "t", "later")]] * 3
    assert world[1].tevict("log", 600) == 600
    assert world[1].tevict("log", later) == 100
    assert world[1].xlen("log") == 0


def test_a_deleted_log_becomes_no_stream_because_of_a_group_made_elsewhere(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    world[1].twrite("log", "t", "m")
    world.sync()
    world[2].tread("log", group="g")
    world[1].delete("log")
    world.sync()
    for region in (1, 2):
        assert world[region].tread("log", 0, 5) == [None]
    assert world[1].twrite("log", "t", "m") == 2
    world.sync()
    assert world[2].tread("log", 2, 1) == [(2, "t", "m")]
