"""What a group acknowledged after a gap is known in other regions, and not delivered again there."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import permutations
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import braidstream
from braidstream.exceptions import ResponseError
from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.plan.plan import send_one
from braidstream.replication.link.stream_state import merge_command, read_state
from tests.support.regions import client_of, position
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually
from tests.support.world import World, fresh_world

WITHIN_S = 30
RANGES = MetaField.GROUP_RANGES + b"jobs"
PREFIX = MetaField.GROUP_ACKED + b"jobs"
META = keys.meta(b"orders")


def fill(client: braidstream.Redis, count: int) -> list[str]:
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.xadd("orders", {"n": number})
        return list(map(str, pipe.execute()))


def read(client: braidstream.Redis, **how: Any) -> list[str]:
    """New entries of the group, until there are none."""
    taken = list[str]()
    while found := client.xreadgroup("jobs", "ann", {"orders": ">"}, **how):
        for _, entries in found:
            assert len(entries) <= how.get("count", len(entries))
            taken += [entry for entry, _ in entries]
        how = {**how, "block": 1} if "block" in how else how
    return taken


def deliver_and_acknowledge(world: World, entries: list[str], acked: Iterable[str]) -> None:
    """Region 1 delivers these entries and acknowledges some."""
    delivered = read(world[1], count=1000)
    assert delivered == entries
    for entry in acked:
        assert world[1].xack("orders", "jobs", entry) == 1
    world.sync()


def create(world: World, *scope: str) -> None:
    world[1].execute_command("XGROUP CREATE", "orders", "jobs", "0", "MKSTREAM", *scope)
    world.sync()


def take(client: braidstream.Redis) -> None:
    assert client.execute_command("XGROUP TAKE", "orders", "jobs", "REGION", 1)


def test_who_takes_a_lost_region_delivers_only_what_it_had_not_acknowledged(flavour: Flavour) -> None:
    with Engine(flavour) as one, Engine(flavour) as two, fresh_world([one, two]) as world:
        create(world, "SCOPE", "ONCE")
        entries = fill(world[1], 1000)
        acked = set(entries[2::3])
        deliver_and_acknowledge(world, entries, acked)
        one.kill()
        take(world[2])
        assert read(world[2], count=100) == [entry for entry in entries if entry not in acked]
        assert world[2].xpending("orders", "jobs")["pending"] == 667


@pytest.mark.parametrize(
    "how", [{}, {"count": 1}, {"count": 7}, {"block": 1000}, {"count": 3, "block": 1000}]
)
def test_every_kind_of_read_passes_over_what_was_acknowledged(
    make_world: Callable[..., World], how: dict[str, Any]
) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    entries = fill(world[1], 40)
    deliver_and_acknowledge(world, entries, [*entries[5:20], entries[30], entries[39]])
    own = fill(world[2], 4)
    take(world[2])
    left = [*entries[:5], *entries[20:30], *entries[31:39]]
    assert sorted(read(world[2], **how), key=position) == sorted([*left, *own], key=position)
    assert world[2].xack("orders", "jobs", *left, *own) == len(left) + len(own)
    late = world[2].xadd("orders", {"n": "late"})
    world[2].config_resetstat()
    assert read(world[2], count=10) == [late]
    assert "cmdstat_fcall" not in world[2].info("commandstats"), "reads are native again"


@pytest.mark.parametrize("more", [("CLAIM", 3_600_000), ("MAXCOUNT", 4), ("MAXSIZE", 100), ("NOACK",)])
def test_options_of_a_read_count_what_it_returns(
    make_world: Callable[..., World], more: tuple[Any, ...]
) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    entries = fill(world[1], 12)
    deliver_and_acknowledge(world, entries, entries[1:11])
    take(world[2])
    taken = list[str]()
    words = ("GROUP", "jobs", "ann", "COUNT", 3, *more, "STREAMS", "orders", ">")
    while found := world[2].execute_command("XREADGROUP", *words):
        [[_, some]] = found
        taken += [entry[0] for entry in some]
    assert taken == [entries[0], entries[11]]


def test_consumers_that_move_to_another_region_get_only_what_is_not_acknowledged(
    make_world: Callable[..., World],
) -> None:
    world = make_world(3)
    create(world)
    entries = fill(world[1], 9)
    deliver_and_acknowledge(world, entries, [entries[0], entries[4], entries[5], entries[8]])
    assert read(world[2]) == [entry for at, entry in enumerate(entries) if at not in (0, 4, 5, 8)]
    [info] = world[3].xinfo_groups("orders")
    assert info["last-delivered-id"] == entries[0], "the prefix is as before"
    world[1].xack("orders", "jobs", *entries)
    world.sync()
    assert read(world[3]) == []
    assert {world[region].hget(META, RANGES) or "" for region in world} == {""}


def test_the_lag_counts_only_what_will_be_delivered(make_world: Callable[..., World]) -> None:
    """In the region that delivers: lag and pending entries. In the other: all of these are its lag."""
    world = make_world(2)
    create(world)
    entries = fill(world[1], 1_300)
    holes = {3, 4, 700, *range(1_000, 1_300, 7)}
    read(world[1], count=1000)
    world[1].xack("orders", "jobs", *(entry for at, entry in enumerate(entries) if at not in holes))
    more = fill(world[1], 20)
    world.sync()

    def counted(region: int) -> tuple[int, int]:
        [info] = world[region].xinfo_groups("orders")
        [full] = world[region].xinfo_stream("orders", full=True)["groups"]
        assert full["lag"] == info["lag"]
        return info["lag"], info["pending"]

    assert counted(1) == (20, len(holes))
    assert counted(2) == (20 + len(holes), 0)
    world[2].xreadgroup("jobs", "ann", {"orders": ">"}, count=2)  # the group is in front of ranges
    assert counted(2) == (18 + len(holes), 2)
    world[1].xdel("orders", entries[800], more[0])
    world.sync()
    assert counted(2) == (17 + len(holes), 2)
    world[2].hset(META, MetaField.GROUP_PASSED + b"jobs", "s1:0 5-0~x")
    with pytest.raises(ResponseError, match="DAMAGED"):
        world[2].xinfo_groups("orders")


def test_what_is_pending_elsewhere_is_acknowledged_there_too(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    create(world)
    entries = fill(world[1], 6)
    world.sync()
    assert read(world[2]) == entries
    deliver_and_acknowledge(world, entries, [entries[2], entries[4]])
    left = [row["message_id"] for row in world[2].xpending_range("orders", "jobs", "-", "+", 10)]
    assert left == [entries[0], entries[1], entries[3], entries[5]]


def test_a_blocked_reader_does_not_get_an_entry_whose_acknowledgement_overtook_it(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    first, second, third = fill(world[1], 3)
    deliver_and_acknowledge(world, [first, second, third], [])
    late = world[1].xadd("orders", {"n": "late"})
    assert read(world[1]) == [late]
    world[1].xack("orders", "jobs", second, late)
    ours = world[1].run_plan(read_state(b"orders", [], [], home=1))
    theirs = world[2].run_plan(read_state(b"orders", [], []))
    assert world[2].run_plan(send_one(merge_command(ours, theirs, [1, 2], home=2))) == 1
    take(world[2])
    assert read(world[2]) == [first, third]
    found = list[str]()

    def wait() -> None:
        with client_of(world.engines[1], decode_responses=True) as two:
            [[_, entries]] = two.xreadgroup("jobs", "bob", {"orders": ">"}, block=WITHIN_S * 1000)
            found.extend(entry for entry, _ in entries)

    thread = Thread(target=wait)
    thread.start()
    eventually(lambda: world[2].info("clients")["blocked_clients"], within_s=WITHIN_S, why="it blocks")
    later = world[1].xadd("orders", {"n": "later"})
    world.sync()
    thread.join(WITHIN_S)
    assert found == [later]


def test_more_ranges_than_the_bound_are_delivered_again_and_nothing_is_skipped(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    entries = fill(world[1], 2400)
    delivered = read(world[1], count=1000)
    assert delivered == entries
    acked = set(entries[1::2])
    world[1].xack("orders", "jobs", *acked)
    world.sync()
    take(world[2])
    taken = read(world[2], count=500)
    assert len(set(taken)) == len(taken)
    assert set(entries) - acked <= set(taken), "nothing is skipped"
    again = [entry for entry in taken if entry in acked]
    assert len(again) == 1200 - 999, "a call looks at 1,000 pending entries"
    assert min(map(entries.index, again)) > 1990


def test_who_moves_a_group_back_reads_everything_again(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    create(world)
    entries = fill(world[1], 6)
    deliver_and_acknowledge(world, entries, entries[2:4])
    world[2].xgroup_setid("orders", "jobs", "0")
    assert read(world[2]) == entries
    assert world[1].xpending("orders", "jobs")["pending"] == 4


def test_what_a_group_skipped_or_gave_back_is_not_acknowledged(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    entries = fill(world[1], 10)
    assert world[1].xreadgroup("jobs", "ann", {"orders": ">"}, count=2)
    world[1].xgroup_setid("orders", "jobs", entries[4])  # 2, 3 and 4 were never delivered
    assert read(world[1]) == entries[5:]
    world[1].execute_command("XNACK", "orders", "jobs", "FAIL", "IDS", 1, entries[6])
    world[1].xack("orders", "jobs", entries[7], entries[9])
    world.sync()
    take(world[2])
    assert read(world[2]) == [entry for entry in entries if entry not in (entries[7], entries[9])]


def test_a_group_that_is_created_again_knows_nothing_of_the_former_one(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    create(world)
    entries = fill(world[1], 5)
    deliver_and_acknowledge(world, entries, [entries[2]])
    world[2].xgroup_destroy("orders", "jobs")
    world[2].xgroup_create("orders", "jobs", "0")
    world.sync()
    for region in world:
        assert read(world[region]) == entries


def test_a_pipeline_gets_acknowledged_entries_again(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    create(world, "SCOPE", "ONCE")
    entries = fill(world[1], 4)
    deliver_and_acknowledge(world, entries, [entries[2]])
    take(world[2])
    with world[2].pipeline(transaction=True) as pipe:
        pipe.xreadgroup("jobs", "ann", {"orders": ">"})
        [[[_, some]]] = pipe.execute()
    assert [entry for entry, _ in some] == entries


@pytest.mark.parametrize(
    "value",
    [
        "s1:0",
        "s1:0 ",
        "s1:0 9-0~8-0",
        "s1:0 5-0~7-0,6-0",
        "s1:0 7-0,5-0",
        "s1:0 5-0,5-0",
        "s1:0 5-0~5-0",
        "s1:0 5-0,,7-0",
        "s1:0 5",
        "s1:0 05-0",
        "s1:0 99999999999999999999-0",
        "s1:0 5-0  s2:0 5-0",
        "s2:0 5-0 s1:0 5-0",
        "s1:0 5-0 s1:0 7-0",
        "x1:0 5-0",
        "s0:0 5-0",
        "s1:-1 5-0",
        "s1:0 " + ",".join(f"{number}-0" for number in range(1, 8_002)),
    ],
    ids=lambda value: value[:20],
)
def test_ranges_that_no_region_writes_are_refused(make_world: Callable[..., World], value: str) -> None:
    world = make_world(2)
    create(world)
    entries = fill(world[1], 3)
    deliver_and_acknowledge(world, entries, [])
    before = world[2].hgetall(META)
    state = world[2].run_plan(read_state(b"orders", [], []))
    hostile = replace(state, meta={**state.meta, RANGES: value.encode()})
    with pytest.raises(ResponseError, match="the peer's a:jobs cannot be read"):
        world[2].run_plan(send_one(merge_command(hostile, state, [1, 2], home=2)))
    assert world[2].hgetall(META) == before
    assert read(world[2]) == entries


Acked = tuple[int, list[tuple[int, int]]]


@st.composite
def acked(draw: Any) -> Acked:
    """A prefix, and ranges beyond it."""
    prefix = draw(st.integers(0, 12))
    ends = sorted(draw(st.sets(st.integers(prefix + 1, 40), max_size=10)))
    found, at = list[tuple[int, int]](), 0
    while at < len(ends):
        wide = at + 1 < len(ends) and draw(st.booleans())
        found.append((ends[at], ends[at + wide]))
        at += 1 + wide
    return prefix, found


def points(what: Acked) -> set[int]:
    prefix, found = what
    return {*range(1, prefix + 1), *(point for first, last in found for point in range(first, last + 1))}


def fields_of(what: Acked) -> dict[bytes, bytes]:
    prefix, found = what
    words = [b"%d-0" % first if first == last else b"%d-0~%d-0" % (first, last) for first, last in found]
    fields = {PREFIX: b"s2:0 %d-0" % prefix} if prefix else {}
    return fields | ({RANGES: b"s2:0 " + b",".join(words)} if words else {})


def parse(prefix: bytes | None, found: bytes | None) -> Acked:
    upto = int(prefix.split()[1].split(b"-")[0]) if prefix else 0
    listed = found.split()[1].split(b",") if found else []
    ends = [[int(each.split(b"-")[0]) for each in word.split(b"~")] for word in listed]
    return upto, [(each[0], each[-1]) for each in ends]


@pytest.fixture
def alone(make_world: Callable[..., World]) -> World:
    made = make_world(1)
    create(made)
    return made


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(acked(), min_size=3, max_size=3))
def test_lists_of_ranges_merge_to_the_same_in_every_order_and_twice(alone: World, sent: list[Acked]) -> None:
    one, ends = alone[1], set[tuple[Any, Any]]()
    for order in [*permutations(sent), [*sent, *sent]]:
        with alone.engines[0].client() as operator:
            operator.hdel(META, PREFIX, RANGES, MetaField.GROUP_PASSED + b"jobs")
            for each in order:
                state = one.run_plan(read_state(b"orders", [], []))
                rest = {key: value for key, value in state.meta.items() if key not in (PREFIX, RANGES)}
                peer = replace(state, meta=rest | fields_of(each))
                assert one.run_plan(send_one(merge_command(peer, state, [1], home=1))) == 1
            ends.add(tuple(operator.hmget(META, PREFIX, RANGES)))
    [(prefix, found)] = ends
    assert points(parse(prefix, found)) == set[int]().union(*map(points, sent))


@pytest.mark.parametrize("healer", ["a read", "a link"])
def test_a_strand_without_its_group_gets_it_back_and_only_what_was_not_acknowledged_is_repeated(
    make_world: Callable[..., World], healer: str
) -> None:
    """XGROUP DESTROY by hand on one strand, in one region. Its pending list is lost with it."""
    world = make_world(2)
    sent = [world[2].xadd("m", {"n": str(number)}) for number in range(8)]
    world[1].xadd("m", {"n": "own"})
    world[1].xgroup_create("m", "g", "0")
    world.sync()
    world[1].xreadgroup("g", "c", {"m": ">"}, count=6)
    done = [sent[0], sent[1], sent[3]]
    world[1].xack("m", "g", *done)
    world.sync()
    with world.engines[0].client() as operator:
        assert operator.xgroup_destroy("bs:2:s:{m}", "g")
    if healer == "a link":
        world[2].xreadgroup("g", "there", {"m": ">"})
        assert world[2].xack("m", "g", sent[2]) == 1
        done.append(sent[2])
        world.sync()
    pages = [page for _ in range(3) for _, page in world[1].xreadgroup("g", "c", {"m": ">"})]
    got = [entry for page in pages for entry, _ in page if entry in sent]
    assert got == [entry for entry in sent if entry not in done]


def test_a_comparison_lists_no_consumers_of_a_group(make_world: Callable[..., World]) -> None:
    """A group may have 10,000: a link would stop the engine for tens of milliseconds each time."""
    world = make_world(2)
    create(world)
    fill(world[1], 3)
    for name in ("ann", "bob"):
        world[1].xreadgroup("jobs", name, {"orders": ">"}, count=1)
    with world.engines[0].client(decode_responses=True) as watcher, watcher.monitor() as monitor:
        world.ship(1, 2, "orders")
        world[1].ping()
        commands = iter(lambda: monitor.next_command()["command"], "PING")
        looked = [command for command in commands if command.startswith("XPENDING")]
    assert looked
    assert not [command for command in looked if len(command.split()) == 3]
