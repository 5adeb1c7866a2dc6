"""Lost entries come back however many entries follow them, and what follows them is replicated.

bs_strand_mend moves up to 3,000 entries in one call. If more follow, bs_strand_weave makes a copy in short
calls.
"""

from collections.abc import Callable

import pytest

from tests.support.regions import position
from tests.support.rolling_back import Interrupted, Make, ids, meet_again, roll_back, snapshot, write
from tests.support.world import World

LONG = 3_200
STRAND = "bs:1:s:{x}"


def write_many(world: World, count: int = LONG) -> list[str]:
    pipe = world[1].pipeline(transaction=False)
    for number in range(count):
        pipe.xadd("x", {"n": str(number)})
    return [str(entry) for entry in pipe.execute()]


def lose(world: World, then: Callable[[], list[str]]) -> tuple[list[str], list[str], list[str]]:
    """Region 1 has a, b and a group, loses c to f, which region 2 has, and goes on: had, lost, wrote."""
    before = write(world, 1, "a", "b")
    world[1].xgroup_create("x", "jobs", id="0")
    world[1].xreadgroup("jobs", "ann", {"x": ">"}, count=1)
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e", "f")
    world.sync()
    roll_back(world, 1, earlier)
    return before, lost, then()


def write_below(world: World) -> list[str]:
    """Region 1 writes entries that come soon after its last one: its clock is slow."""
    had = ids(world, 1)
    with world.engines[0].client() as engine:
        ms, seq = engine.xinfo_stream(STRAND)["last-generated-id"].decode().split("-")
        for number in range(3):
            engine.xadd(STRAND, {"n": "slow"}, id=f"{ms}-{int(seq) + 1000 + number}")
    return [entry for entry in ids(world, 1) if entry not in had]


def assert_whole(world: World, expected: list[str]) -> None:
    """All regions have these entries, and nothing is left behind."""
    world.sync()
    for region in world:
        assert ids(world, region) == expected
    for engine in world.engines:
        with engine.client() as client:
            assert client.keys("bs:copy:*") == []
            assert client.ttl(STRAND) == -1


def test_entries_come_back_before_many_that_were_written_since(make_world: Make) -> None:
    world = make_world(2)
    before, lost, later = lose(world, lambda: write_many(world))
    world.sync()
    world[1].xdel("x", before[1])
    assert_whole(world, [before[0], *lost, *later, *write(world, 1, "z")])
    [group] = world[1].xinfo_groups("x")
    assert (group["pending"], group["consumers"]) == (1, 1)
    [(_, delivered)] = world[1].xreadgroup("jobs", "ann", {"x": ">"}, count=4)
    assert [entry for entry, _ in delivered] == lost


def test_a_long_lost_tail_does_not_hold_back_what_was_written_below_it(make_world: Make) -> None:
    """The server that took over has a slow clock: its new entries belong before the end of the lost tail."""
    world = make_world(2)
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write_many(world)
    world.sync()
    roll_back(world, 1, earlier)
    slow = write_below(world)
    world[1].xdel("x", before[0])
    world.sync()
    assert_whole(world, sorted([before[1], *lost, *slow, *write(world, 1, "z")], key=position))


def test_what_a_peer_cannot_take_does_not_hold_back_the_rest(make_world: Make) -> None:
    """Entries of more than 3,900 fields cannot be moved."""
    world = make_world(2)
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xadd("x", {str(number): "" for number in range(3_901)})
    world.sync()
    roll_back(world, 1, earlier)
    write_below(world)
    world[1].xdel("x", before[0])
    last = write(world, 1, "z")
    world.sync()
    assert ids(world, 2)[0] == before[1]
    assert ids(world, 2)[-1:] == last


@pytest.mark.parametrize("deletes_lost", [True, False])
def test_what_happens_during_a_long_restore_is_kept(make_world: Make, deletes_lost: bool) -> None:
    """Entries are written, deleted here and there, and trimmed while the copy is made. The trim is undone:
    no link has compared the strand with the peer since the loss."""
    world = make_world(2)
    before, lost, later = lose(world, lambda: write_many(world))
    also = list[str]()
    gone = {lost[1], later[7], later[-1]}

    def act() -> None:
        also.extend(write(world, 1, "y"))
        world[1].xdel("x", later[7])
        world[1].xdel("x", later[-1])
        if deletes_lost:
            world[2].xdel("x", lost[1])
            world.ship(2, 1, "x")
        with world.engines[0].client() as engine:
            engine.xtrim(STRAND, maxlen=engine.xlen(STRAND) - 1, approximate=False)

    interrupted = Interrupted(world, 1, act, before="bs_strand_weave")
    world.links[1, 2].source = interrupted
    world.ship(1, 2, "x")
    assert interrupted.happened
    meet_again(world)
    world[2].xdel("x", lost[1])
    assert_whole(world, [each for each in [*before, *lost, *later, *also] if each not in gone])


def test_no_call_moves_more_than_a_bounded_number_of_entries(make_world: Make) -> None:
    world = make_world(2)
    lose(world, lambda: write_many(world, 2 * LONG))
    with world.engines[0].client() as engine:
        engine.config_set("slowlog-log-slower-than", 0)
        engine.config_set("slowlog-max-len", 100_000)
        engine.slowlog_reset()
        world.sync()
        adds, most = 0, 0
        for entry in reversed(engine.slowlog_get(100_000)):
            command = bytes(entry["command"])
            adds = adds + 1 if command.startswith(b"XADD") else 0 if command.startswith(b"FCALL") else adds
            most = max(most, adds)
    assert 500 < most < 3_000
