"""A log is written anew to free memory, while it is used: nobody can tell, except by the memory."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

import braidstream
from braidstream.errors import BraidError
from braidstream.model import keys
from braidstream.model.strand import Strand
from braidstream.operations import log_upkeep
from braidstream.operations.log_upkeep import Verdicts
from braidstream.plan.plan import Plan
from tests.support.matrix import on_every_engine
from tests.support.observed import observed
from tests.support.world import World

flavour = on_every_engine

RETRY = (3_600_000, 7_200_000)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(2)


@pytest.fixture
def client(world: World) -> braidstream.Redis:
    return world[1]


def interrupted(plan: Plan[Any], act: Callable[[], None]) -> Plan[Any]:
    """A plan, with something done by others before each of its round trips."""
    return observed(plan, lambda _: act())


def rewrite(client: braidstream.Redis, act: Callable[[], None] = lambda: None) -> None:
    for part in client.run_plan(log_upkeep.read_segments(b"log")):
        client.run_plan(interrupted(log_upkeep.rewrite(part.strand, b"token"), act))


def compact(client: braidstream.Redis, needed: int) -> None:
    """Delete what `braid log compact` deletes at the home."""
    verdicts = Verdicts(needed)
    for part in reversed(client.run_plan(log_upkeep.read_segments(b"log"))):
        page = client.run_plan(log_upkeep.read_tags(part, part.last))
        client.run_plan(log_upkeep.delete(part.strand, verdicts.obsolete(page)))


def killed(plan: Plan[Any], trips: int) -> Plan[None]:
    """A plan that ends after so many round trips."""
    batch = next(plan)
    for _ in range(trips):
        batch = plan.send((yield batch))


def move_home(world: World, home: int, to: int) -> None:
    epoch = log_upkeep.home_of(world[home].run_plan(log_upkeep.read_log(b"log")))
    world[home].run_plan(log_upkeep.end_epoch(b"log", epoch, to, force=False))
    world.sync()


def fill(client: braidstream.Redis, count: int = 2_500) -> None:
    client.twrite("log", entries=[(f"tag {n % 7}", f"{n:030}") for n in range(count)])


def shown(client: braidstream.Redis) -> dict[str, Any]:
    """All that people can see of the log, without what the engine needs for it."""
    info = client.xinfo_stream("log")
    rows = {
        group["name"]: [
            (row["message_id"], row["consumer"], row["times_delivered"])
            for row in client.xpending_range("log", group["name"], "-", "+", 10_000)
        ]
        for group in client.xinfo_groups("log")
    }
    return {
        "entries": client.tread("log", count=100_000),
        "stream": {name: value for name, value in info.items() if not name.startswith("radix")},
        "groups": client.xinfo_groups("log"),
        "pending": rows,
    }


def test_a_log_that_was_written_anew_looks_the_same(client: braidstream.Redis) -> None:
    fill(client)
    client.tread("log", count=700, group="held", retry=RETRY)
    client.tread("log", count=300, group="held", retry=(60_000, 120_000))
    client.tack("log", "held", range(100, 200))
    client.tread("log", count=1_500, group="once")
    client.xgroup_create("log", "idle", "0")
    client.xdel("log", *(f"0-{n}" for n in range(1, 2_501) if n % 10))
    client.tevict("log", 20)
    before = shown(client)
    nodes = client.xinfo_stream("log")["radix-tree-keys"]
    rewrite(client)
    after = shown(client)
    gone = {f"0-{n}" for n in range(1, 2_501) if n % 10 or n <= 20}
    kept = [row for row in before["pending"]["held"] if row[0] not in gone]
    assert after.pop("pending")["held"] == kept  # nobody can be given what was deleted
    del before["pending"]
    for group in (*before["groups"], *after["groups"]):
        del group["pending"], group["consumers"]
    assert after == before
    assert client.xinfo_stream("log")["radix-tree-keys"] < nodes / 4
    assert client.keys("*") == ["log"]
    assert client.twrite("log", "t", "next") == 2_501
    assert [row[0] for row in client.tread("log", count=2_000, group="once")][-1] == 2_501


def test_a_consumer_whose_name_is_empty_keeps_its_entries_when_a_log_is_written_anew(
    world: World, client: braidstream.Redis
) -> None:
    fill(client, 20)
    client.xgroup_create("log", "g", "0")
    client.xreadgroup("g", "", {"log": ">"}, count=5)
    client.xdel("log", "0-7")
    before = shown(client)["pending"]
    rewrite(client)
    assert shown(client)["pending"] == before
    assert [row[1] for row in before["g"]] == [""] * 5
    strand = world[1].run_plan(log_upkeep.read_segments(b"log"))[0].strand.key
    with world.engines[0].client(decode_responses=True) as operator:
        [owner] = operator.xinfo_consumers(strand, "g")
    assert (owner["name"], owner["pending"]) == ("", 5)


@pytest.mark.parametrize("seed", range(3))
def test_others_write_read_delete_and_evict_meanwhile(client: braidstream.Redis, seed: int) -> None:
    fill(client)
    dice, last, gone = random.Random(seed), [2_500], set[int]()
    client.tread("log", count=500, group="held", retry=RETRY)

    def act() -> None:
        roll = dice.random()
        if roll < 0.4:
            last[0] = client.twrite("log", "t", "meanwhile")
        elif roll < 0.6:
            client.tack("log", "held", dice.randrange(1, 500))
        elif roll < 0.8:
            client.tread("log", count=3, group="held", retry=RETRY)
        elif roll < 0.9 and seed:
            offset = dice.randrange(1, 2_500)
            gone.update([offset] if client.xdel("log", f"0-{offset}") else [])
        elif seed > 1:
            upto = len(gone) + 5
            client.tevict("log", upto)
            gone.update(range(1, upto + 1))

    client.xdel("log", *(f"0-{n}" for n in range(1, 2_501) if n % 10))
    gone.update(n for n in range(1, 2_501) if n % 10)
    with suppress(BraidError) if seed else nullcontext():  # entries were deleted all the time
        rewrite(client, act)
    assert {row[0] for row in client.tread("log", count=100_000) if row} == {*range(1, last[0] + 1)} - gone
    assert client.keys("*") == ["log"]
    rewrite(client)
    assert {row[0] for row in client.tread("log", count=100_000) if row} == {*range(1, last[0] + 1)} - gone


def test_a_log_whose_entries_are_deleted_all_the_time_stays_as_it_is(client: braidstream.Redis) -> None:
    fill(client)
    chosen = iter(range(500, 1_000))
    with pytest.raises(BraidError, match=r"log 'log' was not rewritten: entries were deleted meanwhile"):
        rewrite(client, lambda: client.xdel("log", f"0-{next(chosen)}"))
    assert client.keys("*") == ["log"]
    assert client.xlen("log") == 2_500 - (next(chosen) - 500)


def test_a_log_with_too_many_pending_entries_stays_as_it_is_and_says_why(client: braidstream.Redis) -> None:
    fill(client, 10_000)
    client.xgroup_create("log", "g", "0")
    client.xreadgroup("g", "ann", {"log": ">"}, count=10_000)
    with pytest.raises(BraidError, match=r"log 'log' was not rewritten: too many entries are pending"):
        rewrite(client)
    assert client.xpending("log", "g")["pending"] == 10_000


def test_a_reader_that_waits_is_served_after_the_swap(world: World, client: braidstream.Redis) -> None:
    fill(client, 20)
    client.tread("log", count=100, group="readers", retry=RETRY)
    client.xdel("log", "0-3", "0-4")
    served = dict[str, Any]()

    def wait(name: str, **how: Any) -> None:
        with braidstream.Redis.from_url(world.engines[0].url, decode_responses=True) as own:
            served[name] = own.tread("log", 21, 1, block=30_000, **how)

    waiting = [
        threading.Thread(target=wait, args=("plain",)),
        threading.Thread(target=wait, args=("group",), kwargs={"group": "readers", "retry": RETRY}),
        threading.Thread(target=wait, args=("once",), kwargs={"group": "others", "start": "LAST"}),
    ]
    for each in waiting:
        each.start()
    while client.info("clients")["blocked_clients"] < len(waiting):
        pass
    rewrite(client)
    client.twrite("log", "t", "at last")
    for each in waiting:
        each.join(60)
    assert served == dict.fromkeys(("plain", "group", "once"), [(21, "t", "at last")])


def test_what_is_written_after_the_look_at_the_groups_is_still_delivered(client: braidstream.Redis) -> None:
    client.twrite("log", entries=[("a", "1"), ("a", "2")])
    assert len(client.tread("log", count=10, group="readers")) == 2
    needed = client.run_plan(log_upkeep.needed_from(b"log"))
    client.twrite("log", entries=[("a", "3"), ("a", "4")])
    compact(client, needed)
    assert client.tread("log", count=10) == [None, None, (3, "a", "3"), (4, "a", "4")]
    assert [row[0] for row in client.tread("log", count=10, group="readers")] == [3, 4]


def test_what_has_not_arrived_in_a_region_is_needed_by_its_groups(world: World) -> None:
    world[1].twrite("log", entries=[("a", "1"), ("a", "2")])
    world[1].tread("log", count=10, group="readers")
    world.sync()
    move_home(world, 1, 2)
    world[2].twrite("log", entries=[("a", "3"), ("a", "4")])
    assert world[1].run_plan(log_upkeep.needed_from(b"log")) == 3
    assert world[2].run_plan(log_upkeep.needed_from(b"log")) == 3
    assert [row[0] for row in world[2].tread("log", count=10, group="readers")] == [3, 4]
    assert world[1].run_plan(log_upkeep.needed_from(b"log")) == 3
    assert world[2].run_plan(log_upkeep.needed_from(b"log")) == 5


def test_a_group_that_starts_after_the_last_entry_needs_no_former_epoch(world: World) -> None:
    world[1].twrite("log", entries=[("a", "1"), ("a", "2")])
    world.sync()
    move_home(world, 1, 2)
    world[2].twrite("log", "a", "3")
    world[2].xgroup_create("log", "readers", "$")
    compact(world[2], world[2].run_plan(log_upkeep.needed_from(b"log")))
    assert world[2].tread("log", count=10) == [None, None, (3, "a", "3")]


def test_two_that_write_a_log_anew_at_once_do_not_mix_its_strands(world: World) -> None:
    rows = [("t", f"{n}") for n in range(1, 3_001)]
    world[1].twrite("log", entries=rows[:1_500])
    world.sync()
    move_home(world, 1, 2)
    world[2].twrite("log", entries=rows[1_500:])
    first, second = (part.strand for part in world[2].run_plan(log_upkeep.read_segments(b"log")))
    others = iter([b"", killed(log_upkeep.rewrite(second, b"token"), 3)])  # all is copied, not swapped

    def act() -> None:
        if other := next(others, None):
            world[2].run_plan(other)

    world[2].run_plan(interrupted(log_upkeep.rewrite(first, b"token"), act))
    assert world[2].tread("log", count=5_000) == [(n, *row) for n, row in enumerate(rows, 1)]
    assert next(others, None) is None


def _restore(world: World, *offsets: int) -> None:
    """What a link does after a loss."""
    strand = Strand(b"log", keys.LOG, 1)
    where = (keys.meta(b"log"), strand.key, keys.journal(b"log", 1))
    words = (strand.label, 0, "", "0-0", 1, "?", 1, "0-0", 0)
    entries = [word for offset in offsets for word in (f"0-{offset}", 4, "t", "t", "e", f"{offset}")]
    with world.engines[0].client() as operator:
        assert operator.execute_command("FCALL", "bs_strand_mend", 3, *where, *words, *entries) == len(
            offsets
        )


def test_what_is_restored_meanwhile_stays(world: World, client: braidstream.Redis) -> None:
    """Also if it was restored among others that had been restored before, and another one was deleted."""
    client.twrite("log", entries=[("t", f"{n}") for n in range(1, 2_501)])
    with world.engines[0].client() as operator:
        operator.xdel("bs:1:t:{log}", "0-5", "0-7", "0-20")
    _restore(world, 5, 20)
    trips = 0

    def act() -> None:
        nonlocal trips
        trips += 1
        if trips == 3:
            _restore(world, 7)
            client.xdel("log", "0-9")

    rewrite(client, act)
    assert trips > 3
    assert [row and row[0] for row in client.tread("log", 7, 3)] == [7, 8, None]


def test_a_step_of_a_rewrite_copies_a_few_megabytes(world: World, client: braidstream.Redis) -> None:
    client.twrite("log", entries=[("t", "x" * 500_000)] * 30)
    with world.engines[0].client() as operator:
        copy = ("FCALL", "bs_log_copy", 2, "bs:1:t:{log}", "bs:copy:c:{log}")
        assert operator.execute_command(*copy) == 1
        assert operator.xlen("bs:copy:c:{log}") == 10
    rewrite(client)
    assert len(client.tread("log", count=100)) == 30


def test_verdicts() -> None:
    """The picture in the module."""
    rows = [*enumerate("ababcba", 1)][::-1]
    page = [(offset, tag.encode()) for offset, tag in rows]
    assert Verdicts(100).obsolete(page) == [4, 3, 2, 1]
    assert Verdicts(3).obsolete(page) == [2, 1]
    verdicts = Verdicts(100)
    assert [*pages(verdicts, page, 2)] == [4, 3, 2, 1]
    assert verdicts.kept == 3
    assert Verdicts(100).obsolete([(2, b""), (1, b"")]) == []


def pages(verdicts: Verdicts, rows: list[tuple[int, bytes]], size: int) -> Iterator[int]:
    for first in range(0, len(rows), size):
        yield from verdicts.obsolete(rows[first : first + size])
