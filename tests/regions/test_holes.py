"""Entries that a region lost anywhere in a strand come back, and no other region deletes its own for it."""

import asyncio
from collections.abc import Callable

import pytest
import redis

from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.model.strand import Strand
from braidstream.replication.link.link import Link
from tests.support.limited_rights import OWN, link_of
from tests.support.rolling_back import Make, assert_alike, ids, meet_again, write
from tests.support.world import World

ENTRIES = 30
Lost = Callable[[list[str]], list[str]]

PLACES: dict[str, Lost] = {
    "head": lambda entries: entries[:11],
    "middle": lambda entries: entries[7:9] + entries[20:24],
    "all but one": lambda entries: entries[:-1],
}


def lose(world: World, region: int, strand: Strand, natives: set[bytes]) -> None:
    """The server of a region comes back without some entries of a strand: its append-only file lost them."""
    engine = world.engines[region - 1]
    with redis.Redis(port=engine.port) as client:
        groups = client.xinfo_groups(strand.key)
        kept = [entry for entry in client.xrange(strand.key) if entry[0] not in natives]  # type: ignore[union-attr]
        client.delete(strand.key)
        for entry, fields in kept:
            client.xadd(strand.key, fields, id=entry)
        for group in groups:  # type: ignore[union-attr]
            client.xgroup_create(strand.key, group["name"], group["last-delivered-id"], mkstream=True)
    engine.replace_process()
    meet_again(world)


def natives_of(world: World, region: int, strand: Strand) -> list[bytes]:
    with redis.Redis(port=world.engines[region - 1].port) as client:
        return [entry for entry, _ in client.xrange(strand.key)]  # type: ignore[union-attr]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("writer", [1, 2])
def test_a_hole_is_refilled_and_the_other_region_deletes_nothing(
    make_world: Make, place: str, writer: int
) -> None:
    """Region 1 loses entries of its own strand, or of its copy of another one."""
    world = make_world(3)
    entries = write(world, writer, *map(str, range(ENTRIES)))
    world.sync()
    strand = Strand(b"x", keys.GENERATED, writer)
    natives = natives_of(world, 1, strand)
    gone = PLACES[place]([f"{at}" for at in range(ENTRIES)])
    lose(world, 1, strand, {natives[int(at)] for at in gone})
    assert len(ids(world, 1)) == ENTRIES - len(gone)
    assert_alike(world, entries)


def test_a_group_is_not_given_again_what_it_had_acknowledged(make_world: Make) -> None:
    world = make_world(2)
    world[1].xgroup_create("x", "jobs", "0", mkstream=True)
    entries = write(world, 2, *map(str, range(ENTRIES)))
    world.sync()
    [[_, got]] = world[1].xreadgroup("jobs", "c", {"x": ">"})
    world[1].xack("x", "jobs", *(entry for entry, _ in got))
    world.sync()
    strand = Strand(b"x", keys.GENERATED, 2)
    lose(world, 1, strand, set(natives_of(world, 1, strand)[3:9]))
    assert_alike(world, entries)
    assert not world[1].xreadgroup("jobs", "c", {"x": ">"})


@pytest.mark.parametrize("kept", [0, 2])
def test_a_group_skips_nothing_whose_pending_entries_were_lost_with_its_registry(
    make_world: Make, kept: int
) -> None:
    """Region 1 had delivered entries of region 2. Nobody has acknowledged them."""
    world = make_world(3)
    world[1].xgroup_create("x", "jobs", "0", mkstream=True)
    write(world, 1, "own")
    entries = write(world, 2, *"abcde")
    world.sync()
    [[_, got]] = world[1].xreadgroup("jobs", "ann", {"x": ">"}, count=4)
    assert len(got) == 4
    with redis.Redis(port=world.engines[0].port) as client:
        client.delete(keys.meta(b"x"))
    strand = Strand(b"x", keys.GENERATED, 2)
    lose(world, 1, strand, set(natives_of(world, 1, strand)[: len(entries) - kept]))
    world.ship(2, 1, "x", relay=True)
    world.ship(1, 3, "x", relay=True)
    world.sync()
    for region in (2, 3):
        [[_, read]] = world[region].xreadgroup("jobs", "bob", {"x": ">"})
        assert {entry for entry, _ in read} >= set(entries), region


def test_a_trim_still_travels_after_a_hole_was_refilled(make_world: Make) -> None:
    world = make_world(2)
    entries = write(world, 2, *map(str, range(ENTRIES)))
    world.sync()
    strand = Strand(b"x", keys.GENERATED, 2)
    lose(world, 1, strand, set(natives_of(world, 1, strand)[:9]))
    world.sync()
    world[1].xtrim("x", maxlen=5, approximate=False)
    assert_alike(world, entries[-5:])


def test_a_trim_just_before_a_restart_is_no_loss(make_world: Make) -> None:
    """No link had read it. The engine counts what commands removed."""
    world = make_world(2)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.sync()
    world[1].xtrim("x", maxlen=5, approximate=False)
    world.engines[0].replace_process()
    meet_again(world)
    assert_alike(world, entries[-5:])


def test_a_hole_that_cannot_be_refilled_is_shown(make_world: Make) -> None:
    world = make_world(2)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.sync()
    strand = Strand(b"x", keys.GENERATED, 1)
    lose(world, 1, strand, set(natives_of(world, 1, strand)[3:9]))
    with link_of(world, OWN) as link:
        asyncio.run(link.sync(b"x"))
        [text] = link.holes.values()
    assert text.startswith("region-1 lacks 6 entries of stream x, and they could not be restored: NOPERM")
    assert ids(world, 2) == entries
    assert_alike(world, entries)


def test_what_a_region_deleted_before_it_lost_its_journal_does_not_come_back_by_others(
    make_world: Make,
) -> None:
    """Region 1 has the deletion, region 2 has not, and region 3, which made it, has lost everything."""
    world = make_world(3)
    gone, kept, later = write(world, 1, *"abc")
    world.sync()
    world[3].xdel("x", gone)
    world.ship(3, 1, "x")
    assert ids(world, 1) == [kept, later]
    with redis.Redis(port=world.engines[2].port) as client:
        client.delete(keys.journal(b"x", 3))
    strand = Strand(b"x", keys.GENERATED, 1)
    lose(world, 3, strand, set(natives_of(world, 3, strand)))
    world.ship(2, 3, "x", relay=True)
    world[3].xdel("x", later)  # it has the entries again, and its journal goes on
    world.ship(3, 2, "x", relay=True)
    world.ship(2, 1, "x", relay=True)
    assert gone not in ids(world, 1)
    assert_alike(world, [kept])


@pytest.mark.parametrize("then", ["XADD", "XREADGROUP", "XGROUP DESTROY", "restart"])
def test_a_lost_key_of_chosen_ids_comes_back_and_no_region_deletes_it(make_world: Make, then: str) -> None:
    """Nobody deleted the strand, so its life goes on."""
    world = make_world(2, id_mode="liberal")
    entries = [world[1].xadd("x", {"n": n}, id=f"5000000000000-{n}") for n in range(1, 4)]
    world[1].xgroup_create("x", "jobs", "0")
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:1:c:{x}")
    if then == "restart":
        world.engines[0].replace_process()
        meet_again(world)
    if then in ("XREADGROUP", "XGROUP DESTROY"):
        assert not world[1].xreadgroup("jobs", "ann", {"x": ">"})
    if then == "XGROUP DESTROY":
        world[1].xgroup_destroy("x", "jobs")
    entries.append(world[1].xadd("x", {"n": 9}, id="5000000000000-9"))
    assert_alike(world, entries)
    if then != "XGROUP DESTROY":
        [[_, got]] = world[1].xreadgroup("jobs", "ann", {"x": ">"})
        assert [entry for entry, _ in got] == entries


def test_a_life_of_chosen_ids_goes_on_though_its_registry_was_lost_too(make_world: Make) -> None:
    """Its second life, which a peer's link registers again."""
    world = make_world(2, id_mode="liberal")
    world[1].xadd("x", {"n": 1}, id="5000000000000-1")
    world[1].delete("x")
    entries = [world[1].xadd("x", {"n": n}, id=f"5000000000000-{n}") for n in range(1, 4)]
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:1:c.1:{x}", "bs:meta:{x}")
    world.engines[0].replace_process()
    meet_again(world)
    world.ship(2, 1, "x")
    entries.append(world[1].xadd("x", {"n": 9}, id="5000000000000-9"))
    assert_alike(world, entries)


@pytest.mark.parametrize("what", ["generated", "chosen", "message"])
def test_a_journal_does_not_wait_for_entries_that_nobody_has(make_world: Make, what: str) -> None:
    """Region 1 wrote an entry and its journal names it. No peer had it when the key was lost."""
    world = make_world(3, id_mode="liberal")
    [entry, *_] = write(world, 2, "a", "b")
    world.sync()
    if what == "message":
        world[1].xadd("x", {"n": 1}, idmp=("p", b"1"))
    else:
        lost = world[1].xadd("x", {"n": 1}, id="5000000000000-1" if what == "chosen" else "*")
        world[1].xdel("x", lost)
    world[1].xdel("x", entry)
    with world.engines[0].client() as engine:
        engine.delete("bs:1:s:{x}", "bs:1:c:{x}")
    world.engines[0].replace_process()
    meet_again(world)
    world.sync()
    assert [world.ship(1, peer, "x").waiting for peer in (2, 3)] == [False, False]
    assert_alike(world, ids(world, 1))
    assert entry not in ids(world, 3)


def test_a_loss_is_not_taken_for_a_trim_though_a_peer_deleted_what_was_before_it(make_world: Make) -> None:
    """The engine counts what was removed, and a deletion of the stream removed as much as is missing."""
    world = make_world(3)
    write(world, 1, *"abcd")
    world.sync()
    kept = write(world, 1, *"efg")
    world.ship(1, 3, "x")
    strand = Strand(b"x", keys.GENERATED, 1)
    world[2].delete("x")
    lose(world, 1, strand, set(natives_of(world, 1, strand)[4:6]))
    world.ship(2, 1, "x")
    world.ship(1, 3, "x")
    assert_alike(world, kept)


def test_a_deletion_hides_no_entries_of_a_strand_that_only_the_registry_lost(make_world: Make) -> None:
    """They were written after it, and the peer knows the strand as deleted."""
    world = make_world(3)
    write(world, 2, "a")
    world.sync()
    world[1].delete("x")
    with world.engines[1].client() as engine:
        engine.hdel("bs:meta:{x}", "s2")
    world.engines[1].replace_process()
    kept = write(world, 2, "b")
    meet_again(world)
    world.ship(1, 2, "x")
    assert_alike(world, kept)


def test_a_trim_after_a_rename_travels_though_the_strand_was_not_compared_yet(make_world: Make) -> None:
    """A link had sent the entries, and was cut before it had compared them."""
    world = make_world(2)
    for n in range(5):
        world[1].xadd("y", {"n": n})
    world[1].rename("y", "x")
    regions = world.region(1), world.region(2)
    cut = Link(world.endpoints[1], world.endpoints[2], here=regions[0], there=regions[1], heals=False)
    asyncio.run(cut.sync(b"x"))
    assert len(ids(world, 2)) == 5
    world[1].xtrim("x", maxlen=2, approximate=False)
    assert_alike(world, ids(world, 1)[-2:])
    assert len(ids(world, 2)) == 2


def test_a_trim_travels_though_a_copy_began_with_entries_that_were_deleted(make_world: Make) -> None:
    """A third region told of the strand and its group, and the owner had an ID to send, no entry."""
    world = make_world(3)
    [deleted] = write(world, 1, "deleted")
    world.ship(1, 3, "x")
    world[3].xgroup_create("x", "jobs", "0")
    world.ship(3, 2, "x")
    world[1].xdel("x", deleted)
    world.ship(1, 2, "x")
    trimmed = write(world, 1, "1", "2")
    world.ship(1, 2, "x")
    assert ids(world, 2) == trimmed
    world[2].xtrim("x", maxlen=0, approximate=False)
    assert_alike(world, [])


def test_what_was_deleted_does_not_look_trimmed_to_a_link_that_was_just_started(make_world: Make) -> None:
    """A range in `t:` would also name what a region has lost between deleted entries."""
    world = make_world(2)
    entries = write(world, 1, "0", "1", "2")
    world.sync()
    world[1].xdel("x", *ids(world, 1)[:2])
    meet_again(world)
    world.ship(2, 1, "x")
    with world.engines[0].client() as client:
        assert not [field for field in client.hkeys(keys.meta(b"x")) if field.startswith(MetaField.TRIMS)]
    assert_alike(world, entries[2:])
