"""Regions whose clocks differ: an ID is above all entries that its writer had read."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import braidstream
from braidstream.model import ids
from braidstream.operations.membership import note_behind
from braidstream.replication.daemon.peer_lag import measure
from braidstream.replication.detect.sweep import differing
from braidstream.replication.link.batches import WIDEST
from tests.support.servers import Engine, Flavour
from tests.support.world import World, fresh_world

# Seconds that each region's clock is ahead of ours. All are within the bound of each other.
CLOCKS_S = (20, 0, -30)


@pytest.fixture
def engines(flavour: Flavour) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Engine(flavour, clock_s=ahead_s)) for ahead_s in CLOCKS_S]


@pytest.fixture
def world(engines: list[Engine]) -> Iterator[World]:
    with fresh_world(engines) as world:
        yield world


def id_of(text: str) -> ids.Id:
    return ids.native(text.encode())


def last_seen(client: braidstream.Redis, name: str) -> ids.Id:
    return max((id_of(entry) for entry, _ in client.xrange(name)), default=ids.ZERO)


def add(client: braidstream.Redis, name: str, **how: int) -> ids.Id:
    return id_of(client.xadd(name, {"n": "1"}, **how))


@pytest.mark.parametrize("words", [(), ("IDMP", "producer", "message")], ids=["plain", "idempotent"])
def test_an_entry_written_after_reading_another_has_the_larger_id(world: World, words: tuple[str]) -> None:
    for turn, region in enumerate((1, 2, 3, 2, 1, 3)):
        for source in world:
            if source != region:
                world.ship(source, region, "m")
        seen = last_seen(world[region], "m")
        named = [*words[:2], f"message-{turn}"] if words else []
        written = world[region].execute_command("XADD", "m", *named, "*", "n", turn)
        assert id_of(written) > seen, f"turn {turn}, region {region}"
    world.sync()
    assert [fields["n"] for _, fields in world[3].xrange("m")] == list("012345")


def test_ids_follow_chosen_ids_and_wide_entries_too(engines: list[Engine]) -> None:
    with fresh_world(engines, "liberal") as world:
        ahead_ms = round(time.time() * 1000) + 15_000
        for chosen in (f"{ahead_ms}-0", f"{ahead_ms}-5000", f"{ahead_ms + 1}-{2**60}"):
            world[1].xadd("m", {"n": "1"}, id=chosen)
            world.ship(1, 3, "m")
            assert last_seen(world[3], "m") < add(world[3], "m")
            world.sync()
        world[1].xadd("wide", {str(number): "" for number in range(WIDEST)})
        world.ship(1, 3, "wide")
        assert last_seen(world[3], "wide") < add(world[3], "wide")


def test_following_another_clock_shows_no_id_that_no_entry_has(world: World) -> None:
    """The last ID of XINFO is that of the last entry, also if the home strand was raised."""
    add(world[3], "m")
    for _ in range(3):
        last = add(world[1], "m")
        world.sync()
        assert {id_of(info["last-generated-id"]) for info in world.all("XINFO STREAM", "m")} == {last}


def test_a_clock_that_steps_back_after_entries_came_mints_above_them(
    engines: list[Engine], world: World
) -> None:
    """As on a replica that is promoted and whose clock is behind. The region's own daemon looks first."""
    for name in ("written here", "not written here"):
        add(world[2], name)
    add(world[3], "written here")
    world.sync()
    seen = {name: last_seen(world[3], name) for name in ("written here", "not written here")}
    engines[2].set_clock(-50)
    names, ends = [name.encode() for name in seen], (world.endpoints[3], world.endpoints[1])
    assert asyncio.run(differing(names, (1, 2, 3), *ends)) == names, "a sweep looks at them"
    for name in seen:
        world.ship(3, 1, name)
        assert add(world[3], name) > seen[name]


def test_a_clock_that_is_an_hour_ahead_does_not_carry_the_others_away(flavour: Flavour) -> None:
    with Engine(flavour, clock_s=3600) as fast, Engine(flavour) as right, fresh_world([fast, right]) as world:
        add(world[2], "m")
        for _ in range(3):
            add(world[1], "m")
            world.sync()
            assert add(world[2], "m")[0] <= round(time.time() * 1000) + 1000


@pytest.mark.parametrize("words", [(), ("IDMP", "producer")], ids=["plain", "idempotent"])
def test_a_cap_in_a_region_that_is_an_hour_behind_keeps_what_was_just_added(
    flavour: Flavour, words: tuple[str, ...]
) -> None:
    """Also when the other clock was set back since: its IDs stay ahead."""
    with Engine(flavour, clock_s=0) as fast, Engine(flavour) as right, fresh_world([fast, right]) as world:
        fast.set_clock(3600)
        for _ in range(100):
            add(world[1], "m")
        fast.set_clock(0)
        add(world[1], "m")
        world.sync()
        written = set[ids.Id]()
        for number in range(50):
            named = (*words, f"message-{number}") if words else ()
            written.add(id_of(world[2].execute_command("XADD", "m", *named, "MAXLEN", 100, "*", "n", number)))
        kept = {id_of(entry) for entry, _ in world[2].xrange("m")}
        assert written <= kept
        assert len(kept) == 100


def test_a_cap_in_a_region_that_is_an_hour_ahead_keeps_what_another_has_just_added(flavour: Flavour) -> None:
    """Once its daemon has measured the clocks."""
    with Engine(flavour, clock_s=3600) as fast, Engine(flavour) as right, fresh_world([fast, right]) as world:
        for _ in range(100):
            add(world[1], "m")
        world.sync()
        written = {add(world[2], "m") for _ in range(50)}
        world.sync()
        ahead_ms, _ = asyncio.run(measure(world.endpoints[1], world.endpoints[2]))
        assert -3_601_000 < ahead_ms < -3_599_000
        world[1].run_plan(note_behind(2, -ahead_ms))
        with braidstream.Redis.from_url(fast.url, decode_responses=True) as client:
            add(client, "m", maxlen=100, approximate=False)
        world.sync()
        kept = {id_of(entry) for entry, _ in world[2].xrange("m")}
        assert written <= kept
        assert len(kept) == 100


def test_a_cap_after_a_clock_was_set_right_keeps_what_another_has_just_added(flavour: Flavour) -> None:
    """Entries that arrived while our clock was slow looked an hour ahead; they are not an hour old now."""
    with Engine(flavour) as right, Engine(flavour, clock_s=0) as slow, fresh_world([right, slow]) as world:
        add(world[2], "m")
        slow.set_clock(-3600)
        written = [add(world[1], "m") for _ in range(100)]
        world.sync()
        slow.set_clock(0)
        for _ in range(50):
            add(world[2], "m", maxlen=100, approximate=False)
        kept = {id_of(entry) for entry, _ in world[2].xrange("m")}
        assert set(written[50:]) <= kept
        assert len(kept) == 100


def test_a_cap_after_a_fast_clock_was_set_right_keeps_what_was_just_added(flavour: Flavour) -> None:
    """The daemon noted that the other clock is behind; until it measures again, that is wrong."""
    with Engine(flavour) as right, Engine(flavour) as other, fresh_world([right, other]) as world:
        for _ in range(100):
            add(world[2], "m")
        world.sync()
        world[1].run_plan(note_behind(2, 3_600_000))
        with braidstream.Redis.from_url(right.url, decode_responses=True) as client:
            written = {add(client, "m", maxlen=100, approximate=False) for _ in range(50)}
        kept = {id_of(entry) for entry, _ in world[1].xrange("m")}
        assert written <= kept
        assert len(kept) == 100


def test_a_cap_in_a_slow_region_keeps_what_was_just_added(world: World) -> None:
    for _ in range(100):
        add(world[1], "m")
    world.sync()
    written = [add(world[3], "m", maxlen=100, approximate=False) for _ in range(50)]
    kept = {id_of(entry) for entry, _ in world[3].xrange("m")}
    assert set(written) <= kept
    assert len(kept) == 100


def test_a_cap_in_a_fast_region_keeps_what_a_slow_one_has_just_added(world: World) -> None:
    for _ in range(100):
        add(world[1], "m")
    world.sync()
    written = [add(world[3], "m") for _ in range(50)]
    world.sync()
    add(world[1], "m", maxlen=100, approximate=False)
    world.sync()
    kept = {id_of(entry) for entry, _ in world[3].xrange("m")}
    assert set(written) <= kept
    assert len(kept) == 100
