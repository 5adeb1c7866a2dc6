"""A region is given back what it lost while its clients go on: what they delete meanwhile stays deleted."""

import asyncio
from collections.abc import Callable

import pytest

from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.strand import Strand
from braidstream.replication.link.link import Link
from tests.support.rolling_back import (
    Interrupted,
    Make,
    assert_alike,
    delete_beyond_memory,
    ids,
    lose,
    lose_what_one_peer_has,
    meet_again,
    roll_back,
    snapshot,
    write,
)
from tests.support.world import World


def heal(world: World, act: Callable[[], object]) -> None:
    """The link from region 1 to region 2 finds the loss, and is interrupted."""
    home = Interrupted(world, 1, act)
    link = Link(home, world.endpoints[2], here=world.region(1), there=world.region(2))
    asyncio.run(link.sync(b"x"))
    assert home.happened


def test_what_is_deleted_while_it_comes_back_stays_deleted(make_world: Make) -> None:
    world = make_world(3)
    before, lost, later = lose(world)

    def act() -> None:
        world.ship(1, 3, "x")
        assert world[1].xdel("x", lost.pop(1)) == 1

    heal(world, act)
    assert_alike(world, before + lost + later)


@pytest.mark.parametrize("healed", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_a_stream_that_is_deleted_while_its_entries_come_back_stays_deleted(
    make_world: Make, healed: bool, writes: bool
) -> None:
    world = make_world(3)
    lose(world)
    later = list[str]()

    def act() -> None:
        if healed:
            world.ship(1, 3, "x")
        world[1].delete("x")
        if writes:
            later.extend(write(world, 1, "g"))

    heal(world, act)
    assert_alike(world, later)


def test_what_is_deleted_while_it_is_passed_on_stays_deleted(make_world: Make) -> None:
    """Region 3 got less of what region 1 lost, and has gone on without the rest."""
    world = make_world(3)
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    world.ship(1, 2, "x")

    def act() -> None:
        assert world[1].xdel("x", lost.pop(1)) == 1
        world.ship(1, 3, "x")

    there = Interrupted(world, 3, act)
    link = Link(world.endpoints[1], there, here=world.region(1), there=world.region(3))
    asyncio.run(link.sync(b"x"))
    assert there.happened
    assert_alike(world, before + lost + later)


@pytest.mark.parametrize("writes", [True, False])
def test_a_deletion_right_after_a_loss_takes_what_its_region_has(make_world: Make, writes: bool) -> None:
    """What it had lost at that moment survives, everywhere."""
    world = make_world(3)
    write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d")
    world.ship(1, 2, "x")
    lost += write(world, 1, "e")
    world.ship(1, 3, "x")
    roll_back(world, 1, earlier)
    world[1].delete("x")
    later = write(world, 1, "f") if writes else []
    assert_alike(world, lost + later)
    world[1].delete("x")
    assert_alike(world, [])
    assert ids(world, 1) == []


def test_a_region_does_not_delete_again_what_a_peer_has_never_had(make_world: Make) -> None:
    """Region 2 has lost its journal. Region 3, which it meets later, lacks what region 1 has lost since."""
    world = make_world(3)
    before = write(world, 1, "a", "b", "c")
    world.sync()
    earlier = snapshot(world.engines[1])
    world[2].xdel("x", before.pop(1))
    world.sync()
    roll_back(world, 2, earlier)
    world.sync([1, 2])
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "d", "e")
    world.ship(1, 2, "x")
    roll_back(world, 1, earlier)
    later = write(world, 1, "f", "g")
    world.ship(1, 3, "x")
    world[3].xdel("x", later.pop())
    world.ship(2, 3, "x")
    assert_alike(world, before + lost + later)


def test_a_lost_journal_is_done_again_once(make_world: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that cannot be written to keeps the old end of it."""
    world = make_world(2)
    before = write(world, 1, "a", "b", "c")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xdel("x", before.pop(1))
    world.sync()
    roll_back(world, 1, earlier)
    with world.engines[1].client() as engine:
        engine.config_set("min-replicas-to-write", 1)
        for _ in range(2):
            with pytest.raises(ReplyError, match="NOREPLICAS"):
                world.ship(1, 2, "x")
            meet_again(world)
        engine.config_set("min-replicas-to-write", 0)
    assert caplog.text.count("region.lost_tail") == 1
    assert_alike(world, before)


def test_what_is_written_below_the_lost_entries_reaches_the_peers(make_world: Make) -> None:
    """The clock of the server that comes back is behind."""
    world = make_world(3, id_mode="semi-strict")
    before = [world[1].xadd("x", {"n": "a"}, id=ms) for ms in ("100", "101")]
    gone = world[1].xadd("x", {"n": "b"}, id="102")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xdel("x", gone)
    lost = [world[1].xadd("x", {"n": "c"}, id=ms) for ms in ("500", "501")]
    world.sync()
    roll_back(world, 1, earlier)
    later = [world[1].xadd("x", {"n": "d"}, id=ms) for ms in ("200", "201")]
    assert_alike(world, before + later + lost)


@pytest.mark.parametrize("again", ["501", "502", "none"])
def test_what_was_written_since_a_loss_is_not_deleted_with_what_was_deleted_before(
    make_world: Make, again: str
) -> None:
    """The clock is behind. It generates a lost ID again, of which regions then keep different entries; or
    none, and the lost entries are back before the region looks for a loss."""
    world = make_world(3, id_mode="semi-strict")
    before = [world[1].xadd("x", {"n": "a"}, id=ms) for ms in ("100", "101")]
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = [world[1].xadd("x", {"n": "b"}, id=ms) for ms in ("500", "501", "502")]
    world.sync()
    world[1].xdel("x", (before if again == "none" else lost).pop(0))
    world.sync()
    roll_back(world, 1, earlier)
    later = world[1].xadd("x", {"n": "c"}, id="200")
    if again == "none":
        world.ship(2, 1, "x", relay=True)
    else:
        assert world[1].xadd("x", {"n": "c"}, id=again) in lost
    assert_alike(world, [*before, later, *lost])


def test_a_deletion_after_a_loss_reaches_the_peers_though_the_clock_is_behind(make_world: Make) -> None:
    """Its place in the journal is before that of a lost deletion, which the peers have."""
    world = make_world(3)
    first, second, *kept = write(world, 1, *"abcd")
    world.sync()
    earlier = snapshot(world.engines[0])
    with world.engines[0].client() as engine:
        engine.xadd("bs:1:j:{x}", {"del": "s1:0 0-0"}, id="9000000000000-0")
    world[1].xdel("x", first)
    world.sync()
    roll_back(world, 1, earlier)
    world[1].xdel("x", second)
    assert_alike(world, kept)


def test_what_is_deleted_after_it_came_back_stays_deleted_though_the_clock_is_behind(
    make_world: Make,
) -> None:
    """One peer has given it back. Another one knows a lost deletion with a later place in the journal."""
    world = make_world(3)
    first, *kept = write(world, 1, *"abc")
    world.sync()
    earlier = snapshot(world.engines[0])
    with world.engines[0].client() as engine:
        engine.xadd("bs:1:j:{x}", {"del": "s1:0 0-0"}, id="9000000000000-0")
    world[1].xdel("x", first)
    [lost] = write(world, 1, "d")
    world.sync()
    roll_back(world, 1, earlier)
    world.ship(2, 1, "x", relay=True)
    assert world[1].xdel("x", lost) == 1
    world.ship(1, 3, "x")
    assert lost not in ids(world, 1)
    assert_alike(world, kept)


@pytest.mark.parametrize("deletes_later", [True, False])
def test_what_came_back_is_not_deleted_for_a_peer_that_has_never_had_it(
    make_world: Make, deletes_later: bool
) -> None:
    """Region 3 went on without the entries, and compares its copy with that of region 1."""
    world = make_world(3)
    gone = write(world, 3, "y", "z")
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f", "g")
    world.ship(1, 3, "x")
    world.ship(1, 2, "x")
    delete_beyond_memory(world, *gone, *(later[:1] if deletes_later else ()))
    world.ship(3, 1, "x")
    assert_alike(world, before + lost + later[int(deletes_later) :])


def test_what_a_region_lost_is_not_deleted_where_it_is_left(make_world: Make) -> None:
    """Region 3 went on without the entries, and compares its copy with the last that has them."""
    world = make_world(3)
    gone = write(world, 3, "y", "z")
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    delete_beyond_memory(world, *gone)
    world.ship(3, 2, "x")
    assert_alike(world, before + lost + later)


def test_after_all_came_back_a_comparison_deletes_again(make_world: Make) -> None:
    """Once region 3 has what came back to region 1, what region 3 deletes of it is deleted."""
    world = make_world(3)
    before, lost, later = lose(world)
    world.sync()
    delete_beyond_memory(world, *lost[:2])
    world.ship(3, 1, "x")
    assert_alike(world, before + lost[2:] + later)


def test_what_comes_back_is_trimmed_with_later_entries_that_a_peer_has_trimmed(make_world: Make) -> None:
    """Region 3 never had them, and has trimmed what was written after them."""
    world = make_world(3)
    lose_what_one_peer_has(world)
    later = write(world, 1, "f", "g", "h", "i", "j")
    world.ship(1, 3, "x")
    assert ids(world, 3)[-5:] == later
    world[3].xtrim("x", maxlen=2, approximate=False)
    world.ship(1, 2, "x")
    assert len(ids(world, 1)) == 10
    assert_alike(world, later[-2:])


def visit(world: World, target: int, act: Callable[[], object], *, relay: bool = False) -> None:
    """A new link from region 3 has looked for losses. Before it reads what region 3 has, something
    happens: that read may be held until replicas have all (gate.py)."""
    home = Interrupted(world, 3, act, before=Strand(b"x", keys.GENERATED, 3).registration)
    link = Link(home, world.endpoints[target], here=world.region(3), there=world.region(target))
    asyncio.run(link.sync(b"x", relay=relay))
    assert home.happened


def test_what_comes_back_to_a_peer_is_trimmed_if_a_region_keeps_only_later_entries(make_world: Make) -> None:
    """Region 3 never had it, and has trimmed everything before an entry that was written later."""
    world = make_world(3)
    lose_what_one_peer_has(world)
    later = write(world, 1, "f", "g")
    world.ship(1, 3, "x")
    world[3].xtrim("x", minid=later[0], approximate=False)
    visit(world, 1, lambda: world.ship(1, 2, "x"))
    assert_alike(world, later)


def test_what_only_a_peer_has_while_a_link_meets_it_comes_back(make_world: Make) -> None:
    """Region 1 loses it and goes on. Region 3 must not send region 2 what follows."""
    world = make_world(3)
    before = write(world, 1, "a", "b")
    world.sync()
    lost, later = list[str](), list[str]()

    def act() -> None:
        earlier = snapshot(world.engines[0])
        lost.extend(write(world, 1, "c"))
        world.ship(1, 2, "x")
        roll_back(world, 1, earlier)
        later.extend(write(world, 1, "d"))
        world.ship(1, 3, "x")

    visit(world, 2, act, relay=True)
    assert_alike(world, before + lost + later)


def trim_journal(world: World, region: int) -> None:
    """Its daemon does so ten minutes after every peer has applied it; then its links trim the copies."""
    journal = keys.journal(b"x", region)
    with world.engines[region - 1].client() as client:
        [[last, _]] = client.xrevrange(journal, count=1)
        client.xtrim(journal, minid=last, approximate=False)
    world.sync()


@pytest.mark.parametrize(
    ("forgotten", "restarted"),
    [(False, True), (True, False), (True, True)],
    ids=["known", "running", "neither"],
)
def test_what_a_peer_goes_back_before_is_deleted_again_if_a_journal_or_a_process_knows_it(
    make_world: Make, forgotten: bool, restarted: bool
) -> None:
    """forgotten: the journals have only the last deletion. A restarted server may have lost what it lacks."""
    world = make_world(3)
    kept, gone, last, also_kept, earlier_gone = write(world, 2, *"abcde")
    world.sync()
    world[3].xdel("x", earlier_gone)
    world.sync()
    earlier = snapshot(world.engines[1])
    world[3].xdel("x", gone)
    world[3].xdel("x", last)
    world.sync()
    if forgotten:
        trim_journal(world, 3)
    assert_alike(world, [kept, also_kept])
    if restarted:
        world.engines[2].replace_process()
    roll_back(world, 2, earlier)
    assert_alike(world, [kept, gone, also_kept] if forgotten and restarted else [kept, also_kept])


def test_what_a_peer_goes_back_before_is_deleted_again_though_it_had_lost_something_earlier(
    make_world: Make,
) -> None:
    """It got that back, and the others have it."""
    world = make_world(3)
    entries, lost, later = lose(world)
    world.sync()
    kept = [*entries, *lost, *later]
    gone = write(world, 1, "g", "h")
    kept += write(world, 1, "i")
    world.sync()
    earlier = snapshot(world.engines[0])
    kept += write(world, 1, "j", "k")
    world.sync()
    for entry in gone:
        world[3].xdel("x", entry)
    world.sync()
    trim_journal(world, 3)
    assert_alike(world, kept)
    roll_back(world, 1, earlier)
    kept += write(world, 1, "l")
    for target in (2, 3, 2, 3):
        world.ship(1, target, "x")
    assert_alike(world, kept)
