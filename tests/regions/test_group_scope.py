"""Groups of scope ONCE: each entry is delivered by one region, the owner of its strand."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

import braidstream
from braidstream.exceptions import ResponseError
from braidstream.model import keys
from braidstream.operations.membership import part
from tests.support.log_homes import end_epoch
from tests.support.regions import client_of
from tests.support.waiting import eventually
from tests.support.world import World

WITHIN_S = 30


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    made = make_world(3)
    made[1].execute_command("XGROUP CREATE", "orders", "jobs", "0", "SCOPE", "ONCE")
    made.sync()
    return made


def fill(world: World, count: int = 4) -> None:
    """So many entries in each region, everywhere."""
    for number in range(count):
        for region in world:
            world[region].xadd("orders", {"n": f"{region}.{number}"})
    world.sync()


def read(client: braidstream.Redis, **how: Any) -> dict[str, str]:
    """New entries of the group: what they say, by ID."""
    found = client.xreadgroup("jobs", how.pop("who", "ann"), {"orders": ">"}, **how) or []
    return {entry: fields["n"] for _, entries in found for entry, fields in entries}


def regions_in(entries: dict[str, str]) -> set[str]:
    return {text.partition(".")[0] for text in entries.values()}


def owned(client: braidstream.Redis) -> list[str]:
    [info] = client.xinfo_groups("orders")
    assert info["scope"] == "once"
    return info["owned"]


@pytest.mark.parametrize("how", [{}, {"count": 3}, {"count": 100}, {"noack": True}, {"block": 1000}])
def test_each_region_delivers_its_own_entries_and_together_all_of_them_once(
    world: World, how: dict[str, Any]
) -> None:
    fill(world)
    for region in world:
        mine = dict[str, str]()
        while some := read(world[region], **({**how, "block": 1} if mine and "block" in how else how)):
            assert len(some) <= how.get("count", 100)
            mine.update(some)
        assert sorted(mine.values()) == [f"{region}.{number}" for number in range(4)]
        assert owned(world[region]) == [str(region)]


def test_a_read_with_count_is_one_native_read_of_one_strand(world: World) -> None:
    fill(world)
    one = world[1]
    read(one, count=1)
    one.config_resetstat()
    assert len(read(one, count=2)) == 2
    calls = {name: row["calls"] for name, row in one.info("commandstats").items() if "x" in name}
    assert calls == {"cmdstat_xreadgroup": 1}


def test_pending_entries_and_lag_are_those_of_the_own_strands(world: World) -> None:
    fill(world)
    one = world[1]
    mine = read(one, count=3)
    [info] = one.xinfo_groups("orders")
    assert (info["pending"], info["lag"], info["last-delivered-id"]) == (3, 1, max(mine))
    assert one.xpending("orders", "jobs")["pending"] == 3
    assert [entry for entry, _ in one.xautoclaim("orders", "jobs", "bob", 0)[1]] == sorted(mine)
    [[_, again]] = one.xreadgroup("jobs", "bob", {"orders": "0"})
    assert [entry for entry, _ in again] == sorted(mine)
    assert one.xack("orders", "jobs", *mine) == 3
    world.sync()
    assert world[2].xpending("orders", "jobs")["pending"] == 0


def test_who_takes_a_region_starts_where_it_had_acknowledged_and_skips_nothing(world: World) -> None:
    fill(world, 6)
    first = sorted(read(world[1], count=4))
    world[1].xack("orders", "jobs", *first[:2])
    world.sync()
    assert world[2].execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    assert owned(world[2]) == ["1", "2"]
    of_one = {entry for entry, text in read(world[2], count=100).items() if text.startswith("1.")}
    assert len(of_one) == 4
    assert set(first[2:]) <= of_one
    world.sync()
    assert owned(world[1]) == []
    assert read(world[1]) == {}
    assert world[1].xpending("orders", "jobs")["pending"] == 0
    assert [entry for _, some in world[1].xreadgroup("jobs", "ann", {"orders": "0"}) for entry in some] == []
    world[1].xadd("orders", {"n": "1.late"})
    world.sync()
    assert list(read(world[2], count=5).values()) == ["1.late"]


def test_a_region_that_gives_its_strand_hands_over_when_all_is_acknowledged_without_a_repeat(
    world: World,
) -> None:
    fill(world, 5)
    mine = read(world[1], count=2)
    world[3].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 1, "TO", "REGION", 2)
    world.sync()
    assert read(world[1]) == {}, "it delivers nothing new"
    assert owned(world[1]) == ["1"], "and keeps what it delivered"
    assert regions_in(read(world[2])) == {"2"}
    world[1].xack("orders", "jobs", *mine)
    world.sync()
    assert (owned(world[1]), owned(world[2])) == ([], ["1", "2"])
    theirs = read(world[2])
    assert sorted(theirs.values()) == ["1.2", "1.3", "1.4"]
    assert not mine.keys() & theirs.keys()


def test_what_was_to_be_given_to_a_region_that_was_removed_stays(world: World) -> None:
    fill(world)
    mine = read(world[3], count=1)
    world[3].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 3, "TO", "REGION", 2)
    world.sync()
    for region in (1, 3):
        world[region].run_plan(part([2]))
    for region, other in ((1, 3), (3, 1)):
        world.links[region, other] = world.link(region, other)
    world[3].xack("orders", "jobs", *mine)
    world.sync([1, 3])
    for region in (1, 3):
        world[region].session.cache.expire_region()
    assert [set(owned(world[region])) for region in (1, 3)] == [{"1", "2"}, {"3"}]
    assert regions_in(read(world[1])) == {"1", "2"}
    assert sorted(read(world[3]).values()) == ["3.1", "3.2", "3.3"]


def test_a_hand_over_with_a_timeout_does_not_wait_for_a_worker_that_hangs(world: World) -> None:
    fill(world)
    mine = read(world[1], count=2)
    world[1].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 1, "TO", "REGION", 2, "TIMEOUT", 1)
    eventually(lambda: (world.sync(), owned(world[2]))[1] == ["1", "2"], within_s=WITHIN_S, why="time is up")
    assert mine.keys() <= read(world[2]).keys()


def test_the_time_of_a_hand_over_is_that_of_the_owner_whose_clock_may_differ(world: World) -> None:
    """It travels as a duration until the owner has seen it."""
    fill(world)
    read(world[1], count=2)
    words = ("orders", "jobs", "REGION", 1, "TO", "REGION", 2, "TIMEOUT", 3_600_000)
    world[3].execute_command("XGROUP GIVE", *words)
    field = "w:jobs"
    assert world[3].hget(keys.meta(b"orders"), field) == "1:0.1:2:3600000"
    world.sync()
    until_ms = int(str(world[1].hget(keys.meta(b"orders"), field)).rpartition(":")[2])
    now_ms = int(world[1].time()[0]) * 1000
    assert now_ms < until_ms <= now_ms + 3_601_000
    world.sync()
    assert {world[region].hget(keys.meta(b"orders"), field) for region in world} == {f"1:0.1:2:{until_ms}"}


def test_regions_that_take_the_same_strand_apart_agree_afterwards(world: World) -> None:
    fill(world)
    for region in (2, 3):
        world[region].execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    got = [entry for region in (2, 3) for entry in read(world[region]).values()]
    assert {f"1.{number}" for number in range(4)} <= set(got), "both deliver, nothing is skipped"
    world.sync()
    assert [owned(world[region]) for region in world] == [[], ["2"], ["1", "3"]]


def test_a_blocked_reader_gets_the_entries_that_its_region_takes(world: World) -> None:
    world[1].xadd("orders", {"n": "1.0"})
    world.sync()
    found = dict[str, str]()

    def wait() -> None:
        with client_of(world.engines[1], decode_responses=True) as two:
            found.update(read(two, count=10, block=WITHIN_S * 1000))

    thread = Thread(target=wait)
    thread.start()
    eventually(lambda: world[2].info("clients")["blocked_clients"], within_s=WITHIN_S, why="it blocks")
    world[2].execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    thread.join(WITHIN_S)
    assert list(found.values()) == ["1.0"]


def test_a_region_that_owns_nothing_waits_and_creates_its_consumers(world: World) -> None:
    fill(world)
    world[2].execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    world.sync()
    one = world[1]
    words = ("GROUP", "jobs", "ann", "COUNT", 1)
    for more in ((), ("BLOCK", 20), ("CLAIM", 0), ("MAXCOUNT", 1, "BLOCK", 20), ("MAXSIZE", 100), ("NOACK",)):
        assert not one.execute_command("XREADGROUP", *words, *more, "STREAMS", "orders", ">"), more
    assert [row["name"] for row in one.xinfo_consumers("orders", "jobs")] == ["ann"]
    assert one.xclaim("orders", "jobs", "ann", 0, ["1-1"]) == []
    assert one.xpending_range("orders", "jobs", "-", "+", 10) == []


@pytest.mark.parametrize("who_continues", ["the new owner", "the former owner, which takes it back"])
def test_a_consumer_that_leaves_a_former_owner_makes_nobody_skip_its_entries(
    world: World, who_continues: str
) -> None:
    fill(world)
    one, two = world[1], world[2]
    two.execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    world.sync()
    in_hand = {entry for entry, text in read(two, who="w").items() if text.startswith("1.")}
    assert len(in_hand) == 4
    two.execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 1, "TO", "REGION", 1, "TIMEOUT", 1)
    eventually(lambda: (world.sync(), owned(one))[1] == ["1"], within_s=WITHIN_S, why="time is up")
    assert two.xpending_range("orders", "jobs", "-", "+", 10, "w"), "of region 2"
    assert two.xgroup_delconsumer("orders", "jobs", "w") == 4, "of region 2"
    world.sync()
    if who_continues == "the new owner":
        assert read(one).keys() == in_hand
        return
    two.execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    claimed = two.xautoclaim("orders", "jobs", "ann", 0)[1]
    assert {entry for entry, _ in claimed} == in_hand


def test_a_consumer_with_nothing_pending_is_deleted_everywhere(world: World) -> None:
    fill(world)
    world[2].execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    world[2].xack("orders", "jobs", *read(world[2], who="w"))
    world[1].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 1, "TO", "REGION", 1)
    world.sync()
    assert world[2].xgroup_delconsumer("orders", "jobs", "w") == 0
    assert world[2].xinfo_consumers("orders", "jobs") == []


@pytest.mark.parametrize("how", [{}, {"count": 1}, {"count": 10}, {"noack": True}])
def test_a_reader_that_polls_finds_what_its_region_gets_back(world: World, how: dict[str, Any]) -> None:
    world[2].execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)
    world.sync()
    with client_of(world.engines[0], decode_responses=True) as worker:
        assert read(worker, **how) == {}
        world[2].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 1, "TO", "REGION", 1)
        world.sync()
        world.sync()
        world[1].xadd("orders", {"n": "1.back"})
        assert list(read(worker, **how).values()) == ["1.back"]


def test_the_scope_changes_at_run_time_and_ends_with_the_group(world: World) -> None:
    fill(world)
    world[2].execute_command("XGROUP SCOPE", "orders", "jobs", "EVERYWHERE")
    assert regions_in(read(world[2])) == {"1", "2", "3"}
    assert "scope" not in world[2].xinfo_groups("orders")[0]
    world[2].execute_command("XGROUP SCOPE", "orders", "jobs", "ONCE")
    world.sync()
    assert regions_in(read(world[1])) == {"1"}
    world[3].xgroup_destroy("orders", "jobs")
    world[3].xgroup_create("orders", "jobs", "0")
    world.sync()
    for region in world:
        assert regions_in(read(world[region])) == {"1", "2", "3"}


def test_pipelines_and_multi_deliver_the_own_strands(world: World) -> None:
    fill(world)
    for transaction in (False, True):
        with world[1].pipeline(transaction=transaction) as pipe:
            pipe.xreadgroup("jobs", "ann", {"orders": ">"}, count=2)
            [[[_, entries]]] = pipe.execute()
        assert [fields["n"][0] for _, fields in entries] == ["1", "1"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("SCOPE", "orders", "jobs", "SOMETIMES"), "SCOPE must be EVERYWHERE or ONCE"),
        (("SCOPE", "orders", "none", "ONCE"), "NOGROUP|No such consumer group"),
        (("TAKE", "orders", "jobs", "REGION", "7"), "there is no region 7"),
        (("TAKE", "orders", "jobs", "STRAND", "1"), "syntax error"),
        (("TAKE", "orders", "all", "REGION", "1"), "scope EVERYWHERE"),
        (("GIVE", "orders", "jobs", "REGION", "1", "TO", "REGION", "2", "TIMEOUT", "0"), "timeout"),
        (("GIVE", "orders", "jobs", "REGION", "1", "TO", "REGION", "2", "TIMEOUT"), "syntax error"),
    ],
)
def test_what_makes_no_sense_is_refused(world: World, words: tuple[str, ...], error: str) -> None:
    world[1].xgroup_create("orders", "all", "0")
    with pytest.raises(ResponseError, match=error):
        world[1].execute_command("XGROUP", *words)


def test_a_region_that_lags_gives_nothing_that_another_one_delivers_already(world: World) -> None:
    """Region 2 gives to region 1; region 3 does not know that yet, and gives twice."""
    fill(world, 5)
    world[2].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 2, "TO", "REGION", 1)
    world.sync([1, 2])
    works_on = {entry for entry, text in read(world[1]).items() if text.startswith("2.")}
    assert len(works_on) == 5
    world[3].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 2, "TO", "REGION", 3)
    with pytest.raises(ResponseError, match=r"region 2 delivers .* Run this XGROUP GIVE in region 2"):
        world[3].execute_command("XGROUP GIVE", "orders", "jobs", "REGION", 2, "TO", "REGION", 2)
    world.sync()
    assert [owned(world[region]) for region in world] == [["1", "2"], [], ["3"]]
    assert not works_on & {*read(world[2]), *read(world[3])}


def test_the_owner_of_a_removed_regions_entries_gives_them(world: World) -> None:
    fill(world)
    for region in (1, 3):
        world[region].run_plan(part([2]))
    for region, other in ((1, 3), (3, 1)):
        world.links[region, other] = world.link(region, other)
    world.sync([1, 3])
    give = ("XGROUP GIVE", "orders", "jobs", "REGION", 2, "TO", "REGION", 3)
    with client_of(world.engines[0]) as one, client_of(world.engines[2]) as three:
        with pytest.raises(ResponseError, match="Run this XGROUP GIVE in region 1"):
            three.execute_command(*give)
        one.execute_command(*give)
        world.sync([1, 3])
        assert [each.xinfo_groups("orders")[0]["owned"] for each in (one, three)] == [[b"1"], [b"2", b"3"]]


# Logs


RETRY: dict[str, Any] = {"retry": (60_000, 600_000)}


def read_log(client: braidstream.Redis, **how: Any) -> list[int]:
    return [row[0] for row in client.tread("log", group="g", **{"count": 10, **how})]


@pytest.fixture
def log_world(make_world: Callable[..., World]) -> World:
    """Region 1 has written four entries, and the group is known everywhere."""
    made = make_world(3)
    made[1].twrite("log", entries=[("t", str(number)) for number in range(1, 5)])
    made.sync()
    for region in made:
        made[region].tread("log")  # each client knows the log without the group
    made[1].execute_command("XGROUP CREATE", "log", "g", "0", "SCOPE", "ONCE")
    made.sync()
    return made


@pytest.mark.parametrize("how", [{}, RETRY, {"block": 20}, {"block": 20, **RETRY}])
def test_the_home_of_a_log_delivers_it(log_world: World, how: dict[str, Any]) -> None:
    assert [read_log(log_world[region], **how) for region in (2, 3, 1)] == [[], [], [1, 2, 3, 4]]
    end_epoch(log_world, 2)
    log_world.ship(1, 2, "log")
    assert log_world[2].twrite("log", "t", "5") == 5
    log_world.sync()
    assert [read_log(log_world[region], **how) for region in (1, 3, 2)] == [[], [], [5]]
    assert log_world[2].xinfo_groups("log")[0]["scope"] == "once"


@pytest.mark.parametrize("how", [{}, RETRY])
def test_a_region_takes_a_log_and_continues_where_the_home_had_acknowledged(
    log_world: World, how: dict[str, Any]
) -> None:
    one, two = log_world[1], log_world[2]
    assert read_log(one, count=2, **how) == [1, 2]
    if how:
        assert one.tack("log", "g", 1) == 1
    log_world.sync()
    found = list[int]()
    reader = Thread(
        target=lambda: found.extend(read_log(client_of(log_world.engines[1]), block=20_000, **how))
    )
    reader.start()
    eventually(lambda: two.info("clients")["blocked_clients"], within_s=WITHIN_S, why="it should wait")
    two.execute_command("XGROUP TAKE", "log", "g", "REGION", 1)
    reader.join(WITHIN_S)
    assert found == ([2, 3, 4] if how else [3, 4])
    log_world.sync()
    one.twrite("log", "t", "5")
    log_world.sync()
    assert (read_log(one, **how), read_log(two, **how)) == ([], [5])


def test_a_log_is_handed_over_when_all_is_acknowledged_without_a_repeat(log_world: World) -> None:
    one, two = log_world[1], log_world[2]
    assert read_log(one, count=2, retry=(50, 600_000)) == [1, 2]
    one.execute_command("XGROUP GIVE", "log", "g", "REGION", 1, "TO", "REGION", 2)
    assert read_log(one, block=5_000, retry=(50, 600_000)) in ([1], [1, 2])  # due, and nothing new
    log_world.sync()
    assert read_log(two, **RETRY) == []
    assert one.tack("log", "g", 1, 2) == 2
    log_world.sync()
    assert (read_log(one, **RETRY), read_log(two, **RETRY)) == ([], [3, 4])


def test_the_scope_of_a_log_changes_at_run_time(log_world: World) -> None:
    log_world[1].execute_command("XGROUP SCOPE", "log", "g", "EVERYWHERE")
    log_world.sync()
    assert [read_log(log_world[region]) for region in log_world] == [[1, 2, 3, 4]] * 3
