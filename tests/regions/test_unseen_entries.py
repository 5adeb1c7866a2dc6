"""A group acknowledges what follows a hole that nobody has noticed yet. Nobody has processed the entries that
come back into the hole, whatever the group's position says: they are delivered."""

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from braidstream.exceptions import ResponseError
from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.model.strand import Strand
from braidstream.plan.plan import send_one
from braidstream.replication.link.stream_state import merge_command, read_state
from tests.support.rolling_back import Make, meet_again, write
from tests.support.world import World

STRAND = Strand(b"x", keys.GENERATED, 1)
RETURNED = MetaField.GROUP_RETURNED + b"jobs"
ENTRIES = 9
HOLES = {"head": [0, 1, 2], "middle": [3, 4, 5], "two": [2, 3, 6]}


def create(world: World, *scope: str) -> None:
    world[1].execute_command("XGROUP CREATE", "x", "jobs", "0", "MKSTREAM", *scope)
    world.sync()


def finish(world: World, region: int) -> list[str]:
    """What the group delivers in a region, where all of it is acknowledged."""
    got = list[str]()
    while reply := world[region].xreadgroup("jobs", "ann", {"x": ">"}, count=100):
        got += [entry for _, page in reply for entry, _ in page]
    if got:
        assert world[region].xack("x", "jobs", *got) == len(got)
    return got


def lose(world: World, region: int, strand: Strand, places: list[int]) -> None:
    """The engine no longer has these entries. No link can see it: the process and the counts are the same."""
    with world.engines[region - 1].client() as client:
        entries, groups = client.xrange(strand.key), client.xinfo_groups(strand.key)
        client.delete(strand.key)
        for place, (entry, fields) in enumerate(entries):
            if place not in places:
                client.xadd(strand.key, fields, id=entry)
        for group in groups:
            client.xgroup_create(strand.key, group["name"], group["last-delivered-id"])


def sweep(world: World) -> None:
    for pair in permutations(world, 2):
        world.ship(*pair, "x", relay=True)
    world.sync()


def agree(world: World) -> bool:
    found = set[bytes | None]()
    for engine in world.engines:
        with engine.client() as client:
            found.add(client.hget(keys.meta(b"x"), RETURNED))
    return len(found) == 1


def hole_in_region_2(world: World, places: list[int]) -> tuple[list[str], list[str]]:
    """Its group has acknowledged what follows, as region 1 knows. Returns all, and what is in the hole."""
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.ship(1, 2, "x")
    lose(world, 2, STRAND, places)
    assert finish(world, 2) == [entry for at, entry in enumerate(entries) if at not in places]
    world.ship(2, 1, "x")
    return entries, [entries[at] for at in places]


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("place", HOLES)
def test_what_comes_back_is_delivered_although_the_group_has_gone_on(
    make_world: Make, place: str, where: int
) -> None:
    """And nothing else is. Consumers of either region may be the ones that get it, once."""
    world = make_world(2)
    create(world)
    _, missing = hole_in_region_2(world, HOLES[place])
    sweep(world)
    [later] = write(world, 1, "later")
    world.sync()
    assert finish(world, where) == [*missing, later]
    world.sync()
    assert finish(world, 3 - where) == []
    world.sync()
    assert finish(world, where) == []
    assert agree(world)


def test_what_comes_back_is_delivered_although_all_that_follows_is_acknowledged_first(
    make_world: Make,
) -> None:
    """The other region's position must not move the group over it."""
    world = make_world(2)
    create(world)
    _, missing = hole_in_region_2(world, HOLES["middle"])
    world.ship(1, 2, "x", relay=True)  # region 1 does not know yet what came back in region 2
    [later] = write(world, 1, "later")
    assert finish(world, 1) == [later]
    world.ship(1, 2, "x")
    assert finish(world, 2) == missing


def test_an_owner_that_gets_a_strand_back_delivers_what_another_one_never_saw(make_world: Make) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    world[2].execute_command("XGROUP TAKE", "x", "jobs", "REGION", 1)
    world.sync()
    _, missing = hole_in_region_2(world, HOLES["middle"])
    world[2].execute_command("XGROUP GIVE", "x", "jobs", "REGION", 1, "TO", "REGION", 1)
    world.sync()
    assert finish(world, 1) == []
    sweep(world)
    assert finish(world, 2) == []
    assert finish(world, 1) == missing
    world.sync()
    assert (finish(world, 1), finish(world, 2)) == ([], [])


def test_a_trim_elsewhere_keeps_what_came_back_though_no_link_has_told_of_it(make_world: Make) -> None:
    world = make_world(2)
    create(world)
    _, missing = hole_in_region_2(world, HOLES["middle"])
    world.ship(1, 2, "x", relay=True)
    with world.answering():
        assert world[1].execute_command("XTRIM", "x", "MAXLEN", 0, "ACKED") == 3
    world.sync()
    assert finish(world, 1) == missing


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("at", ["$", "an entry"])
def test_a_group_gets_nothing_that_was_there_before_it_began(make_world: Make, at: str, where: int) -> None:
    world = make_world(2)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.sync()
    world[where].xgroup_create("x", "jobs", "$" if at == "$" else entries[-1])
    world.sync()
    later = write(world, 1, "later", "last")
    world.sync()
    lose(world, 2, STRAND, [3, 4, 5, ENTRIES])
    assert finish(world, 2) == later[1:]
    world.ship(2, 1, "x")
    sweep(world)
    assert finish(world, 1) == later[:1]
    world.sync()
    assert finish(world, 2) == []
    assert agree(world)


def test_a_group_that_has_not_acknowledged_anything_goes_back_no_further_than_it_began(
    make_world: Make,
) -> None:
    world = make_world(2)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world[1].xgroup_create("x", "jobs", entries[5])
    world.sync()
    lose(world, 2, STRAND, [3, 4])
    assert len(world[2].xreadgroup("jobs", "ann", {"x": ">"})[0][1]) == 3
    sweep(world)
    assert finish(world, 2) == [], "the three are pending"


@pytest.mark.parametrize("seed", range(4))
def test_three_regions_agree_in_whatever_order_they_hear_of_it(make_world: Make, seed: int) -> None:
    """Two of them have holes, in other places, and have gone on."""
    world, dice = make_world(3), Random(seed)
    create(world)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.ship(1, 2, "x")
    world.ship(1, 3, "x")
    holes = {2: [2, 3], 3: [3, 4, 6]}
    seen = set[str]()
    for region, places in holes.items():
        lose(world, region, STRAND, places)
    for region in dice.sample([*holes], 2):
        seen.update(finish(world, region))
        for pair in dice.sample([*permutations(world, 2)], 2):
            world.ship(*pair, "x")
    for pair in dice.sample([*permutations(world, 2)], 6):
        world.ship(*pair, "x", relay=True)
    sweep(world)
    assert agree(world)
    assert {*entries} - seen <= {*finish(world, dice.choice([*world]))}
    world.sync()
    assert [finish(world, region) for region in world] == [[], [], []]
    assert agree(world)


def test_a_hole_in_the_same_place_is_not_taken_for_acknowledged_because_it_was_once_before(
    make_world: Make,
) -> None:
    world = make_world(2)
    create(world)
    _, missing = hole_in_region_2(world, [4])
    sweep(world)
    lose(world, 2, STRAND, [4])
    assert finish(world, 2) == []
    [later] = write(world, 1, "later")
    world.ship(1, 2, "x")
    assert finish(world, 2) == [later]
    world.ship(2, 1, "x")
    sweep(world)
    assert finish(world, 1) == missing


def test_a_lagging_peer_does_not_hide_what_only_a_third_region_has(make_world: Make) -> None:
    """Region 1 lost entries of its own that region 2 had not received, restarted, and its group went on."""
    world = make_world(3)
    create(world)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.ship(1, 3, "x")
    lose(world, 1, STRAND, [3, 4, 5])
    world.engines[0].replace_process()
    meet_again(world)
    world.ship(1, 2, "x")
    assert len(finish(world, 1)) == ENTRIES - 3
    world.ship(1, 2, "x")
    world.ship(2, 3, "x", relay=True)
    sweep(world)
    assert finish(world, 1) == entries[3:6]


@pytest.mark.parametrize(("hole", "again"), [(1, [5]), (4, [5]), (6, [5, 6]), (8, [5, 6, 7, 8])])
def test_what_was_pending_is_delivered_again_if_a_damaged_server_has_lost_its_pending_list(
    make_world: Make, hole: int, again: list[int]
) -> None:
    """It comes back with the group's position, and with a hole before or after the pending entry.
    At the end of a strand no bell rings: this client, which was connected before, knows of no ranges."""
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.sync()
    assert len(world[1].xreadgroup("jobs", "ann", {"x": ">"})[0][1]) == ENTRIES
    world[1].xack("x", "jobs", *(entry for at, entry in enumerate(entries) if at != 5))
    world.sync()
    lose(world, 1, STRAND, [hole])
    world.engines[0].replace_process()
    meet_again(world)
    sweep(world)
    assert finish(world, 1) == [entries[at] for at in again]
    world.sync()
    assert (finish(world, 1), finish(world, 2)) == ([], [])


def test_what_is_pending_after_a_damage_stays_with_its_consumer(make_world: Make) -> None:
    world = make_world(2)
    create(world)
    entries = write(world, 1, *map(str, range(ENTRIES)))
    world.sync()
    assert len(world[1].xreadgroup("jobs", "ann", {"x": ">"}, count=6)[0][1]) == 6
    world[1].xack("x", "jobs", *entries[:5])
    world.sync()
    with world.engines[0].client() as client:
        client.xdel(STRAND.key, entries[1])  # no record says so: it is lost
    world.engines[0].replace_process()
    meet_again(world)
    sweep(world)
    assert finish(world, 1) == entries[6:]
    assert [each["message_id"] for each in world[1].xpending_range("x", "jobs", "-", "+", 10)] == [entries[5]]


def test_what_comes_back_before_thousands_of_others_is_delivered(make_world: Make) -> None:
    """More follow than one call can move (bs_strand_weave)."""
    world = make_world(2)
    create(world)
    with world[1].pipeline(transaction=False) as pipe:
        for number in range(3_200):
            pipe.xadd("x", {"n": number})
        entries = pipe.execute()
    world.ship(1, 2, "x")
    lose(world, 2, STRAND, [7, 8, 100])
    assert len(finish(world, 2)) == 3_197
    world.ship(2, 1, "x")
    sweep(world)
    assert finish(world, 1) == [entries[at] for at in (7, 8, 100)]


def test_a_log_delivers_what_came_back(make_world: Make) -> None:
    """And what follows it once more: nothing is passed over in a log."""
    world = make_world(2)
    world[1].twrite("log", entries=[("n", f"{at}") for at in range(ENTRIES)])
    world[1].xgroup_create("log", "jobs", "0")
    world.sync()
    lose(world, 2, Strand(b"log", keys.LOG, 1), [3, 4, 5])
    assert finish_log(world, 2) == [1, 2, 3, 7, 8, 9]
    world.ship(2, 1, "log")
    world.ship(1, 2, "log", relay=True)
    world.sync()
    [later] = [world[1].twrite("log", "n", "later")]
    world.sync()
    assert finish_log(world, 1) == [4, 5, 6, 7, 8, 9, later]
    world.sync()
    assert finish_log(world, 2) == []


def finish_log(world: World, region: int) -> list[int]:
    got = [entry[0] for entry in world[region].tread("log", count=100, group="jobs")]
    for offset in got:
        world[region].tack("log", "jobs", offset)
    return got


@pytest.mark.parametrize(
    "value",
    [
        "s1:0",
        "s1:0 5-0",
        "s1:0 5-0/0",
        "s1:0 5-0/1000",
        "s1:0 5-0/01",
        "s1:0 0-0/1",
        "s1:0 7-0~5-0/1",
        "s1:0 5-0~7-0/1,6-0/1",
        "s1:0 5-0/1,5-1/1",
        "s1:0 5-0/1 s1:0 7-0/1",
        "s2:0 5-0/1 s1:0 7-0/1",
        "s1:0 5-0/1,",
        "x1:0 5-0/1",
    ],
)
def test_what_no_region_writes_is_refused(make_world: Make, value: str) -> None:
    world = make_world(1)
    create(world)
    state = world[1].run_plan(read_state(b"x", [], []))
    peer = replace(state, meta=state.meta | {RETURNED: value.encode()})
    with pytest.raises(ResponseError, match="the peer's R:jobs cannot be read"):
        world[1].run_plan(send_one(merge_command(peer, state, [1], home=1)))
