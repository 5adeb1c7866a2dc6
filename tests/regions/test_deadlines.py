"""EXPIRE between regions: the deadline travels, and each region deletes what it wrote before it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from braidstream.errors import ReplyError
from braidstream.operations.membership import part
from tests.support.daemons import all_replicating, numbered, replicating
from tests.support.expiring import FAR_MS, WAITS, due, entries, now_ms, pass_time, settle
from tests.support.matrix import on_every_engine
from tests.support.regions import position
from tests.support.waiting import eventually
from tests.support.world import World

flavour = on_every_engine


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(2)


def test_a_deadline_travels_and_persist_too(world: World) -> None:
    world[1].xadd("x", {"n": "1"})
    assert world[1].pexpireat("x", FAR_MS)
    world.sync()
    assert [world[region].pexpiretime("x") for region in world] == [FAR_MS] * 2
    assert [world[region].expiretime("x") for region in world] == [FAR_MS // 1000] * 2
    assert all(0 < world[region].ttl("x") < FAR_MS // 1000 for region in world)
    assert due(world, 1) == 0
    assert not world[2].pexpireat("x", FAR_MS + 1, nx=True)
    assert not world[2].pexpireat("x", FAR_MS - 1, gt=True)
    assert world[2].pexpireat("x", FAR_MS - 1, lt=True)
    world.sync()
    assert [world[region].pexpiretime("x") for region in world] == [FAR_MS - 1] * 2
    assert world[2].persist("x")
    assert not world[2].persist("x")
    world.sync()
    assert [world[region].ttl("x") for region in world] == [-1] * 2


def test_of_two_concurrent_deadlines_the_later_one_wins(world: World) -> None:
    world[1].xadd("x", {"n": "1"})
    world.sync()
    world[1].pexpireat("x", FAR_MS + 5)
    world[2].pexpireat("x", FAR_MS)
    world.sync()
    assert [world[region].pexpiretime("x") for region in world] == [FAR_MS + 5] * 2


def test_a_stream_expires_in_all_regions_and_starts_over(world: World) -> None:
    first = [world[region].xadd("x", {"n": "1"}) for region in world]
    world[1].xgroup_create("x", "g", 0)
    world[1].pexpire("x", 300)
    world.sync()
    pass_time(world)
    assert due(world, 1) == WAITS  # region 2 has not deleted its entries yet
    settle(world)
    assert [world[region].exists("x") for region in world] == [0, 0]
    assert [due(world, region) for region in world] == [0, 0]
    added = world[2].xadd("x", {"n": "2"})
    settle(world)
    for region in world:
        assert (entries(world[region]), world[region].ttl("x")) == ([added], -1)
        assert world[region].xinfo_groups("x") == []
    assert added > max(first)


def test_what_was_extended_survives_a_region_that_was_cut_off(world: World) -> None:
    world[1].xadd("x", {"n": "1"})
    kept = world[2].xadd("x", {"n": "2"})
    world[1].pexpire("x", 300)
    world.sync()
    pass_time(world)
    assert world[2].pexpireat("x", FAR_MS)  # region 1 does not hear of it in time
    assert due(world, 1) == WAITS
    new = world[1].xadd("x", {"n": "3"})
    settle(world)
    for region in world:
        assert sorted(entries(world[region])) == sorted([kept, new])
        assert world[region].pexpiretime("x") == FAR_MS


def test_a_region_that_never_heard_of_the_deadline_keeps_what_it_wrote_later(world: World) -> None:
    world[1].xadd("x", {"n": "1"})
    world[2].xadd("x", {"n": "2"})
    world.sync()
    world[1].pexpire("x", 20)
    until = world[1].pexpiretime("x")
    while now_ms(world[1]) <= until or now_ms(world[2]) <= until:
        pass
    due(world, 1)
    later = world[2].xadd("x", {"n": "3"})
    settle(world)
    assert [entries(world[region]) for region in world] == [[later]] * 2


def test_a_deleted_stream_takes_its_deadline_along(world: World) -> None:
    world[1].xadd("x", {"n": "1"})
    world[1].pexpireat("x", FAR_MS)
    world.sync()
    assert world[2].delete("x")
    world[2].xadd("x", {"n": "2"})
    world.sync()
    assert [world[region].ttl("x") for region in world] == [-1] * 2
    world[1].pexpireat("x", FAR_MS)
    world[1].rename("x", "y")
    world.sync()
    assert [world[region].pexpiretime("y") for region in world] == [FAR_MS] * 2
    assert world[2].expire("y", 0)
    world.sync()
    assert [world[region].exists("y") for region in world] == [0, 0]


def expire_in_the_first_region(world: World) -> None:
    """All entries are gone in both regions, and region 1 has deleted the stream."""
    world[1].pexpire("x", 300)
    world.sync()
    pass_time(world)
    assert [due(world, region) for region in world] == [WAITS] * 2
    world.sync()
    assert due(world, 1) == 1
    assert [world[region].exists("x") for region in world] == [0, 1]


@pytest.mark.parametrize("heard", [False, True])
def test_a_group_created_after_the_deadline_stays_when_the_next_region_carries_it_out(
    world: World, heard: bool
) -> None:
    for region in world:
        world[region].xadd("x", {"n": "old"})
    world[2].xgroup_create("x", "old", 0)
    expire_in_the_first_region(world)
    world[1].xgroup_create("x", "new", "$", mkstream=True)
    if heard:
        world.ship(1, 2, "x")
    assert due(world, 2) == 1
    assert world[2].exists("x") == heard
    settle(world)
    assert [[group["name"] for group in world[region].xinfo_groups("x")] for region in world] == [["new"]] * 2


def test_a_message_accepted_after_the_deadline_stays_known_when_the_next_region_carries_it_out(
    world: World,
) -> None:
    for region in world:
        world[region].xadd("x", {"n": "old"}, idmp=("p", b"%d" % region))
    expire_in_the_first_region(world)
    world.ship(1, 2, "x")
    accepted = world[1].xadd("x", {"n": "new"}, idmp=("p", b"1"))
    assert due(world, 2) == 1
    settle(world)
    assert [world[region].xadd("x", {"n": "new"}, idmp=("p", b"1")) for region in world] == [accepted] * 2
    assert [entries(world[region]) for region in world] == [[accepted]] * 2


def test_each_of_two_deadlines_ends_the_groups_that_were_there(world: World) -> None:
    """Both have version 1, and region 1 carries its own out before it hears of the other."""
    world[1].xadd("x", {"n": "1"})
    world.sync()
    world[1].pexpire("x", 20)
    until = world[1].pexpiretime("x")
    world[2].pexpireat("x", until + 1_500)
    while now_ms(world[1]) <= until:
        pass
    assert due(world, 1) == 1
    world[1].xgroup_create("x", "g", "$", mkstream=True)
    world.sync()
    pass_time(world)
    assert due(world, 1) == 1
    settle(world)
    assert [world[region].exists("x") for region in world] == [0, 0]


def test_a_group_created_after_the_later_of_two_deadlines_stays(world: World) -> None:
    """Both have version 1. Region 2 has not heard of the earlier one, which region 1 has carried out."""
    world[1].xgroup_create("x", "old", "$", mkstream=True)
    world.sync()
    world[1].pexpire("x", 300)
    world[2].pexpireat("x", world[1].pexpiretime("x") + 20)
    pass_time(world)
    assert [due(world, region) for region in world] == [1, 1]
    world[2].xgroup_create("x", "new", "$", mkstream=True)
    settle(world)
    assert [[group["name"] for group in world[region].xinfo_groups("x")] for region in world] == [["new"]] * 2


@pytest.mark.parametrize("verb", ["rename", "renamenx", "copy"])
def test_rename_and_copy_keep_what_was_written_after_the_deadline(world: World, verb: str) -> None:
    world[1].xadd("x", {"n": "early"})
    world[1].pexpire("x", 20)
    pass_time(world)
    late = world[1].xadd("x", {"n": "late"})  # and no daemon has come yet
    assert getattr(world[1], verb)("x", "y")
    assert entries(world[1], "y") == [late]
    settle(world)
    assert [(entries(world[region], "y"), world[region].ttl("y")) for region in world] == [([late], -1)] * 2


def test_rename_and_copy_find_no_stream_after_the_deadline(world: World) -> None:
    world[1].xadd("x", {"n": "early"})
    world[1].pexpire("x", 20)
    pass_time(world)
    assert not world[1].copy("x", "y")
    with pytest.raises(redis.ResponseError, match="no such key"):
        world[1].rename("x", "y")
    assert world[1].exists("x", "y") == 0


def test_what_a_removed_region_wrote_expires_too(make_world: Callable[..., World]) -> None:
    world = make_world(3)
    for region in world:
        world[region].xadd("x", {"n": str(region)})
    world.sync()
    world[1].pexpire("x", 100)
    world.sync()
    for region in (1, 2):
        world[region].run_plan(part([3]))
    pass_time(world)
    for _ in range(3):
        for region, other in ((1, 2), (2, 1)):
            due(world, region)
            world.ship(region, other, "x")
    assert [world[region].exists("x") for region in (1, 2)] == [0, 0]


def test_what_is_restored_after_the_deadline_is_trimmed_again(world: World) -> None:
    old = world[1].xadd("x", {"n": "1"})
    world[2].xadd("x", {"n": "2"})
    world[1].pexpire("x", 300)
    world.sync()
    pass_time(world)
    assert due(world, 1) == WAITS
    with world.engines[0].client() as operator:
        operator.xadd("bs:1:s:{x}", {"n": "1"}, id=f"{int(old.split('-')[0])}-9")
    settle(world)
    assert [world[region].exists("x") for region in world] == [0, 0]


def test_a_deadline_that_no_region_writes_is_refused(world: World) -> None:
    world[1].xadd("x", {"n": "1"})
    with world.engines[0].client() as operator:
        operator.hset("bs:meta:{x}", "until", "1 " + "9" * 400)
    with pytest.raises(ReplyError, match="the peer's until cannot be read"):
        world.ship(1, 2, "x")


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_order_regions_agree_and_lose_nothing_that_was_written_later(
    make_world: Callable[..., World], seed: int
) -> None:
    world, dice = make_world(3), random.Random(seed)
    written = list[str]()
    for region in world:
        written.append(world[region].xadd("x", {"n": "old"}))
    world.sync()
    world[dice.choice([1, 2, 3])].pexpire("x", 200)
    until = max(world[region].pexpiretime("x") for region in world)
    while now_ms(world[1]) < until + 1000:
        region = dice.choice([1, 2, 3])
        roll = dice.random()
        if roll < 0.4:
            written.append(world[region].xadd("x", {"n": "new"}))
        elif roll < 0.7:
            due(world, region)
        else:
            other = dice.choice([each for each in world if each != region])
            world.ship(region, other, "x")
    settle(world)
    left = [entry for entry in written if int(entry.split("-")[0]) > until]
    for region in world:
        assert entries(world[region]) == sorted(left, key=position)


def test_daemons_carry_it_out(make_world: Callable[..., World], tmp_path: Path) -> None:
    world = make_world(2)
    with all_replicating(tmp_path, numbered(world.engines)):
        world[1].xadd("x", {"n": "1"})
        world[1].xgroup_create("x", "g", 0)
        eventually(lambda: world[2].exists("x"), within_s=30, why="x should arrive")
        world[2].xadd("x", {"n": "2"})
        world[2].expire("x", 1)
        eventually(
            lambda: not world[1].exists("x") and not world[2].exists("x"), within_s=30, why="x expires"
        )
    # A daemon that starts after the deadline finds it.
    world[1].xadd("y", {"n": "1"})
    world[1].pexpire("y", 1)
    with all_replicating(tmp_path, numbered(world.engines)):
        eventually(lambda: not world[1].exists("y"), within_s=30, why="y expires")


def test_what_changed_while_a_daemon_was_cut_off_expires_too(world: World, tmp_path: Path) -> None:
    """No peer answers, so nothing else changes the registry."""
    with replicating(tmp_path, {1: world.engines[0].url, 2: "redis://127.0.0.1:1"}):
        world[1].xadd("x", {"n": "1"})
        world[1].xadd("w", {"n": "1"})
        world[1].pexpire("w", 1)
        eventually(lambda: not world[1].exists("w"), within_s=30, why="the daemon has read all of it")
        with world.engines[0].client() as operator, operator.pipeline() as step:
            step.execute_command("CLIENT", "KILL", "TYPE", "normal")
            step.hset("bs:meta:{x}", mapping={"until": f"1 {now_ms(operator) + 1_000}", "ended": "1 0"})
            step.execute()
        eventually(lambda: not world[1].exists("x"), within_s=30, why="x expires")


def test_a_deadline_of_a_stream_does_not_end_a_log_of_its_name(world: World) -> None:
    for name in ("x", "y"):
        world[1].xgroup_create(name, "g", "$", mkstream=True)
        world[1].pexpire(name, 300)
        world[1].xgroup_destroy(name, "g")
        assert world[1].twrite(name, "t", "1") == 1
        assert world[1].ttl(name) == -1
    world.sync()
    with world.engines[0].client() as operator:  # as if a peer had set it
        operator.hset("bs:meta:{y}", mapping={"until": "7 1", "ended": "7 0"})
    for name in ("x", "y"):
        due(world, 1, name)
    settle(world)
    assert [world[region].tread(name) for region in world for name in ("x", "y")] == [[(1, "t", "1")]] * 4


def test_persist_works_on_a_log(world: World) -> None:
    world[1].twrite("x", "t", "1")
    with world.engines[0].client() as operator:  # as if a peer had set it, for a stream
        operator.hset("bs:meta:{x}", mapping={"until": f"7 {FAR_MS}", "ended": "7 0"})
    assert world[1].persist("x")
    assert world[1].ttl("x") == -1
    assert world[1].tread("x") == [(1, "t", "1")]
