"""An engine goes back to an earlier state (a failover to a replica that lagged, a backup), clients write on,
and only then do links run again: nothing is lost, no deleted entry comes back, no consumer skips an entry."""

import pytest

from braidstream.errors import ReplyError
from tests.support.rolling_back import (
    Make,
    assert_alike,
    ids,
    meet_again,
    roll_back,
    served_by,
    snapshot,
    write,
)
from tests.support.world import World


def read(world: World, region: int) -> list[str]:
    """What a consumer of the group is given, and acknowledges."""
    found = list[str]()
    while page := world[region].xreadgroup("jobs", "ann", {"x": ">"}, count=10):
        for entry, _ in page[0][1]:
            world[region].xack("x", "jobs", entry)
            found.append(entry)
    return found


def test_what_was_lost_in_the_middle_comes_back(make_world: Make) -> None:
    world = make_world(3)
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "f", "g")
    assert_alike(world, before + lost + later)
    assert [fields["n"] for _, fields in world[1].xrange("x")] == list("abcdefg")
    info = world[1].xinfo_stream("x")
    assert (info["entries-added"], info["last-generated-id"]) == (7, later[-1])


def test_what_was_lost_comes_back_once_the_engine_takes_writes_again(make_world: Make) -> None:
    """Its disk is full, say, when the links meet: they try again, on the same connection."""
    world = make_world(2)
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "e")
    with world.engines[0].client() as engine:
        engine.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(ReplyError, match="NOREPLICAS"):
                world.ship(1, 2, "x")
        finally:
            engine.config_set("min-replicas-to-write", 0)
    assert_alike(world, before + lost + later)


def test_peers_that_got_different_lengths_of_the_lost_tail_end_alike(make_world: Make) -> None:
    world = make_world(3)
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    some = write(world, 1, "c", "d")
    world.ship(1, 2, "x")
    more = write(world, 1, "e", "f")
    world.ship(1, 3, "x")
    roll_back(world, 1, earlier)
    later = write(world, 1, "g")
    world.ship(1, 2, "x")
    assert_alike(world, before + some + more + later)


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_deleted_does_not_come_back(make_world: Make, writes: bool) -> None:
    world = make_world(2)
    own, theirs = write(world, 1, "a", "b", "c"), write(world, 2, "d", "e", "f")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xdel("x", own[1], theirs[1])
    world.sync()
    with world.engines[0].client() as engine:  # as daemons do, once every peer has done it
        engine.xtrim("bs:1:j:{x}", maxlen=1, approximate=False)
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "g") if writes else []
    kept = sorted([own[0], own[2], theirs[0], theirs[2]], key=lambda entry: tuple(map(int, entry.split("-"))))
    assert_alike(world, kept + later)


def test_deletions_after_the_loss_reach_the_peers(make_world: Make) -> None:
    world = make_world(2)
    before = write(world, 1, "a", "b", "c")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xdel("x", before[0])
    world.sync()
    roll_back(world, 1, earlier)
    world[1].xdel("x", before[1])
    assert_alike(world, before[2:])


def test_a_group_is_given_what_was_lost_before_it_was_read(make_world: Make) -> None:
    world = make_world(2)
    world[1].xgroup_create("x", "jobs", "0", mkstream=True)
    write(world, 1, "a", "b")
    read(world, 1)
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "e", "f")
    assert read(world, 1) == later
    world.sync()
    given = read(world, 1)
    assert given[:2] == lost
    assert set(given[2:]) <= set(later)
    world.sync()
    assert read(world, 2) == []


def test_what_was_acknowledged_before_the_loss_is_not_given_again(make_world: Make) -> None:
    world = make_world(2)
    world[1].xgroup_create("x", "jobs", "0", mkstream=True)
    write(world, 1, "a")
    world.sync()
    earlier = snapshot(world.engines[0])
    write(world, 1, "b", "c")
    assert len(read(world, 1)) == 3
    lost = write(world, 1, "d")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "e")
    world.sync()
    assert read(world, 1) == lost + later


@pytest.mark.parametrize("then", ["xdel", "xtrim", "nothing"])
def test_a_stream_whose_keys_were_deleted_by_hand_comes_back(make_world: Make, then: str) -> None:
    world = make_world(3)
    before = write(world, 1, "a", "b", "c")
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete(*engine.keys("bs:*{x}*"))
    later = write(world, 1, "d", "e", "f")
    if then == "xdel":
        world[1].xdel("x", later.pop(0))
    if then == "xtrim":
        world[1].xtrim("x", maxlen=2, approximate=False)
        later.pop(0)
    assert_alike(world, before + later)
    world[1].xtrim("x", maxlen=1, approximate=False)
    assert_alike(world, later[-1:])


def test_a_message_accepted_before_the_loss_is_known_after_it(make_world: Make) -> None:
    world = make_world(2)
    send = ("XADD", "x", "IDMP", "till", "m1", "*", "n", "a")
    world[2].xadd("x", {"n": "first"})
    world.sync()
    earlier = snapshot(world.engines[0])
    entry = world[1].execute_command(*send)
    world.sync()
    roll_back(world, 1, earlier)
    write(world, 1, "later")
    world.sync()
    assert world[1].execute_command(*send) == entry


def test_a_trim_is_told_after_a_loss_was_healed(make_world: Make) -> None:
    world = make_world(2)
    write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    write(world, 1, "c")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "d", "e")
    world.sync()
    world[1].xtrim("x", maxlen=1, approximate=False)
    assert_alike(world, later[-1:])
    meet_again(world)
    assert_alike(world, later[-1:])


def test_a_stream_deleted_before_the_loss_stays_deleted(make_world: Make) -> None:
    world = make_world(2)
    write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].delete("x")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "c")
    assert_alike(world, later)


def test_a_strand_that_was_mended_is_trimmed_exactly(make_world: Make) -> None:
    """Old entries, lost ones and new ones share a node of the stream, which keeps what was deleted in it."""
    world = make_world(2)
    before = write(world, 1, *map(str, range(150)))
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e")
    world.sync()
    roll_back(world, 1, earlier)
    later = write(world, 1, "f", "g")
    world[1].xdel("x", before[-1])
    assert_alike(world, before[:-1] + lost + later)
    world[1].xtrim("x", maxlen=3, approximate=False)
    assert_alike(world, lost[-1:] + later)
    world[1].xtrim("x", minid=later[0], approximate=False)
    assert_alike(world, later)


def test_a_lost_entry_that_a_peer_deleted_holds_up_no_deletion(make_world: Make) -> None:
    world = make_world(3)
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c")
    world.ship(1, 2, "x")
    world[2].xdel("x", *lost)
    roll_back(world, 1, earlier)
    world[2].xdel("x", before[0])
    assert_alike(world, before[1:])


def test_a_copy_that_begins_after_the_loss_trims_nothing_elsewhere(make_world: Make) -> None:
    """Region 3 met region 1 only after the loss: it never had what region 2 still has."""
    world = make_world(3)
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "a", "b", "c")
    world.ship(1, 2, "x")
    roll_back(world, 1, earlier)
    later = write(world, 1, "d", "e")
    world.ship(1, 3, "x")
    world[3].xdel("x", later[0])
    world.ship(3, 2, "x", relay=True)
    assert ids(world, 2)[:3] == lost
    assert_alike(world, lost + later[1:])


def test_a_comparison_waits_for_what_only_the_writer_can_bring(make_world: Make) -> None:
    """Region 3 deletes an entry that region 2 does not have yet, and forgets its journal."""
    world = make_world(3)
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "a", "b", "c")
    world.ship(1, 2, "x")
    roll_back(world, 1, earlier)
    later = write(world, 1, "d", "e", "f")
    world.ship(1, 3, "x")
    world[3].xdel("x", later.pop(1))
    with world.engines[2].client() as engine:
        engine.xtrim("bs:3:j:{x}", maxlen=0, approximate=False)
    world.ship(3, 2, "x")
    assert_alike(world, lost + later)


@pytest.mark.parametrize("id_mode", ["strict", "liberal"])
def test_what_was_lost_is_not_taken_for_trimmed_though_all_before_it_was_deleted(
    make_world: Make, id_mode: str
) -> None:
    world = make_world(2, id_mode=id_mode)
    served_by(world, 1, "first")
    before = [world[1].xadd("x", {"n": "a"}, id=f"{n}-1" if id_mode == "liberal" else "*") for n in (1, 2)]
    world.sync()
    world[1].xdel("x", *before)
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = [world[1].xadd("x", {"n": "b"}, id=f"{n}-1" if id_mode == "liberal" else "*") for n in (3, 4)]
    world.sync()
    roll_back(world, 1, earlier)
    served_by(world, 1, "second")
    later = [world[1].xadd("x", {"n": "c"}, id="5-1" if id_mode == "liberal" else "*")]
    meet_again(world)
    assert_alike(world, lost + later)


def test_a_trim_is_told_where_the_same_process_served_all_the_time(make_world: Make) -> None:
    world = make_world(2)
    served_by(world, 1, "first")
    write(world, 1, "a", "b", "c")
    world.sync()
    served_by(world, 1, "first")
    world[1].xtrim("x", maxlen=1, approximate=False)
    meet_again(world)
    assert_alike(world, ids(world, 1))
    assert len(ids(world, 2)) == 1


def test_groups_receive_what_came_back_though_a_region_went_on_without_it(make_world: Make) -> None:
    """Region 1 has not seen the lost entries, and acknowledges all that follows them."""
    world = make_world(3)
    world[1].xgroup_create("x", "jobs", id="0", mkstream=True)
    world.sync()
    write(world, 2, "a", "b", "c")
    world.sync()
    earlier = snapshot(world.engines[1])
    lost = write(world, 2, "d", "e", "f")
    world.ship(2, 3, "x")
    roll_back(world, 2, earlier)
    write(world, 2, "g", "h")
    world.ship(2, 1, "x")
    seen = take(world, 1)
    for source, target in ((1, 3), (1, 2), (2, 3), (2, 1)):
        world.ship(source, target, "x")
    assert not set(lost) & seen
    assert set(lost) <= take(world, 2)
    assert set(lost) <= take(world, 1)


def test_groups_receive_what_came_back_before_an_entry_that_a_region_acknowledged(make_world: Make) -> None:
    """Region 2 went on with an ID between the lost ones, and region 1 has acknowledged that."""
    world = make_world(3, id_mode="liberal")
    world[1].xgroup_create("x", "jobs", id="0", mkstream=True)
    world.sync()
    world[2].xadd("x", {"n": "a"}, id="1-1")
    world.sync()
    earlier = snapshot(world.engines[1])
    lost = [world[2].xadd("x", {"n": "b"}, id=entry) for entry in ("10-1", "20-1")]
    world.ship(2, 3, "x")
    roll_back(world, 2, earlier)
    world[2].xadd("x", {"n": "c"}, id="15-1")
    world.ship(2, 1, "x")
    assert take(world, 1) == {"1-1", "15-1"}
    for source, target in ((1, 3), (1, 2), (2, 3), (2, 1)):
        world.ship(source, target, "x")
    assert set(lost) <= take(world, 2)


def take(world: World, region: int) -> set[str]:
    """All that the group delivers and acknowledges."""
    [[_, entries]] = world[region].xreadgroup("jobs", f"r{region}", {"x": ">"}) or [["x", []]]
    for entry, _ in entries:
        world[region].xack("x", "jobs", entry)
    return {entry for entry, _ in entries}


def test_only_the_last_windows_of_doubt_are_kept_apart(make_world: Make) -> None:
    world = make_world(1)
    for process in range(20):
        served_by(world, 1, f"process {process}")
    doubts = world.region(1).doubts
    assert len(doubts) == 8
    assert all(first <= last for first, last in doubts)
