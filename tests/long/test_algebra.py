"""What links send may be applied in any order, any number of times, over any way: the end is the same.

From one state of three regions we record every request that the links to region 1 would send. Then:

    every order          each permutation of them; what is refused (a gap, a later life) is left to quiescence
    either order         one link's whole round and then the other's: region 1 is the same at once
    twice                any of them once more changes nothing
    over another way     region 3's through region 2: the same as straight

All permutations for small histories, by hypothesis for large ones. Regions and answers are the simulation's.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from braidstream.errors import ReplyError
from braidstream.plan.plan import Batch
from tests.long.simulation.network import Line, Network, Request
from tests.long.simulation.seat import Seat
from tests.long.simulation.simulator import ask_everything, pool, settle
from tests.long.simulation.users import Users
from tests.long.simulation.witness import NAMES, Witness
from tests.oracle.anomalies import find
from tests.oracle.history import Event, History, Noted, Told
from tests.support.servers import Engine
from tests.support.thinning import NIGHTLY

REGIONS = range(1, 4)
MOST_ORDERS = 720 if NIGHTLY else 120

# Rows: a region and what it says; `sync` is everybody with everybody, `2>1` one round of one link.
HISTORIES = {
    "appends, deletions and trims": """
        1 XADD a 100 f v / 2 XADD a 101 f v / 3 XADD a 102 f v / 1 XADD a 103 f v / 3 XADD a 104 f v / sync
        2 XDEL a 103-1 / 3 XDELEX a KEEPREF IDS 1 101-2 / 1 XTRIM a MAXLEN 4
        2 XADD a 110 f v / 3 XADD a 111 f v
    """,
    "a deletion that overtakes its entry": """
        3 XADD a 100 f v / 3 XADD a 101 f v / 3 XADD a 102 f v / 3>2 / 2 XDEL a 101-3
    """,
    "a whole deletion that overtakes an entry": """
        3 XADD a 100 f v / sync
        3 XADD a 101 f v / 3>2 / 2 DEL a / 2 XADD a 110 f v / 3 XADD a 120 f v
    """,
    "a deletion apart from appends": """
        1 XADD a 100 f v / 3 XADD a 101 f v / sync
        2 DEL a / 2 XADD a 120 f v / 3 XADD a 121 f v / 1 XADD a 122 f v
    """,
    "chosen IDs that start over": """
        2 XADD a 100-1 f v / 3 XADD a 100-1 f v / sync
        2 DEL a / 2 XADD a 50-1 f v / 3 DEL a / 3 XADD a 60-1 f v / 1 XADD a 130-0 f v
    """,
    "a chosen strand deleted by others while its writer goes on": """
        2 XADD a 100-1 f v / sync
        3 DEL a / 2 XADD a 105-1 f v / 2>3 / 2 DEL a / 2 XADD a 7-7 f v
    """,
    "groups made, destroyed and made again": """
        1 XADD a 100 f v / 1 XGROUP CREATE a g 0 / sync
        2 XGROUP DESTROY a g / 2 XGROUP CREATE a g 0 / 3 XGROUP CREATE a h 0 / 3 XGROUP DESTROY a g
    """,
    "a group made apart, and a deletion that had not seen it": """
        1 XADD a 100 f v / sync
        2 DEL a / 2 XGROUP CREATE a g 0 / 3 XGROUP CREATE a g 0 / 3 XGROUP CREATE a h $
    """,
    "acknowledgements": """
        1 XADD a 100 f v / 1 XADD a 101 f v / 2 XADD a 102 f v / 1 XGROUP CREATE a g 0 / sync
        2 XREADGROUP GROUP g ann COUNT 2 STREAMS a > / 2 XACK a g 100-1
        3 XREADGROUP GROUP g bob COUNT 9 STREAMS a > / 3 XACK a g 100-1 101-1 / 3 XADD a 103 f v
    """,
    "acknowledgements after gaps": """
        1 XADD a 100 f v / 1 XADD a 101 f v / 1 XADD a 102 f v / 1 XADD a 103 f v / 1 XADD a 104 f v
        1 XGROUP CREATE a g 0 / sync
        2 XREADGROUP GROUP g ann COUNT 9 STREAMS a > / 2 XACK a g 101-1 103-1
        3 XREADGROUP GROUP g bob COUNT 9 STREAMS a > / 3 XACK a g 102-1 104-1
    """,
    "acknowledgements of a group that is destroyed meanwhile": """
        1 XADD a 100 f v / 1 XGROUP CREATE a g 0 / sync
        3 XREADGROUP GROUP g bob COUNT 9 STREAMS a > / 3 XACK a g 100-1
        2 XGROUP DESTROY a g / 2 XGROUP CREATE a g 0
    """,
    "scopes, and strands taken and given apart": """
        1 XADD a 100 f v / 2 XADD a 101 f v / 1 XGROUP CREATE a g 0 SCOPE ONCE / 1 XGROUP CREATE a h 0 / sync
        2 XGROUP TAKE a g REGION 1 / 2 XGROUP SCOPE a h ONCE / 3 XGROUP TAKE a g REGION 1
        3 XGROUP GIVE a g REGION 2 TO REGION 1 TIMEOUT 1
        2 XREADGROUP GROUP g ann STREAMS a > / 2 XACK a g 100-1
    """,
    "a scope of a group that is destroyed meanwhile": """
        1 XADD a 100 f v / 1 XGROUP CREATE a g 0 SCOPE ONCE / sync
        3 XGROUP TAKE a g REGION 1 / 2 XGROUP DESTROY a g / 2 XGROUP CREATE a g 0
    """,
    "names that are moved": """
        2 XADD a 100 f v / 3 XADD a 101 f v / 2 XGROUP CREATE a g 0 / sync
        2 RENAME a b / 3 XADD a 102 f v / 3 RENAME a b
    """,
    "everything flushed, last IDs moved": """
        1 XADD a 100 f v / 2 XADD a 101-0 f v / sync
        2 FLUSHDB / 3 XSETID a 500-0 / 3 XADD a MAXLEN 2 510 f v / 2 XADD a 90-0 f v
    """,
}


class Three:
    """Three regions whose state can be kept and brought back."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.seats = {number: Seat(engines[number - 1], number, REGIONS, "semi-strict") for number in REGIONS}
        for seat in self.seats.values():
            seat.others = self.seats
        self.history = History(len(REGIONS))
        self.network = Network(self.seats, self.history)
        self.network.open = True
        self.witness = Witness(self.seats, self.history)
        self.runner = asyncio.Runner()

    def close(self) -> None:
        self.runner.close()
        for seat in self.seats.values():
            seat.close()

    def line(self, source: int, target: int) -> Line:
        [line] = [each for each in self.network.lines if each.pair == (source, target) and not each.number]
        return line

    def ship(self, source: int, target: int, *, relay: bool = False) -> None:
        """One round of a link without a memory, for every stream."""
        line = self.line(source, target)
        self.network.renew(line)
        for name in NAMES:
            line.name = name
            self.runner.run(line.link.sync(name.encode(), relay=relay))

    def settle(self) -> None:
        lines = [self.line(*pair) for pair in permutations(REGIONS, 2)]
        for line in lines:
            self.network.renew(line)
        self.runner.run(settle(self.network, lines))

    def play(self, rows: str) -> None:
        for row in (row.strip() for line in rows.strip().splitlines() for row in line.split(" / ")):
            if row == "sync":
                self.settle()
            elif ">" in row.split()[0]:
                self.ship(int(row[0]), int(row[2]))
            else:
                region, *words = row.split()
                self.witness.do(int(region), *words)

    def sent(self, source: int, target: int) -> list[Request]:
        """The writes of one round from here. Nothing stays of them, but that the source was read."""
        kept, at = self.keep(), len(self.history.events)
        self.network.sent.clear()
        self.ship(source, target)
        sent = list(self.network.sent)
        self.bring_back(kept)
        rest = [event for event in self.history.events[at:] if not isinstance(event, Told)]
        self.recall([*self.history.events[:at], *rest])
        return sent

    def recall(self, events: list[Event]) -> None:
        """Only this has happened. Notes of what has not are thrown away."""
        self.history.recall(events)
        taken = {event.note for event in self.history.of(Noted)}
        for line in self.network.lines:
            line.notes = {note: known for note, known in line.notes.items() if note in taken}

    def keep(self) -> dict[int, list[tuple[bytes, bytes]]]:
        kept = {}
        for number, seat in self.seats.items():
            [keys] = seat.send(Batch([("KEYS", "*")]))
            kept[number] = list(zip(keys, seat.send(Batch([("DUMP", key) for key in keys])), strict=True))
        return kept

    def bring_back(self, kept: dict[int, list[tuple[bytes, bytes]]]) -> None:
        for number, dumps in kept.items():
            restores = [("RESTORE", key, 0, dump) for key, dump in dumps]
            replies = self.seats[number].send(Batch([("FLUSHALL", "SYNC"), *restores]))
            # Redis 8.10 refuses its own DUMP of a stream in which XTRIM has left a node of deleted entries.
            if any(isinstance(reply, ReplyError) for reply in replies):
                reject()

    def print_of(self, region: int) -> dict[str, Any]:
        """All that a region knows, but for stamps of the moment, where its copies began, and ranges of trims,
        which end somewhere between two entries."""
        seat, found = self.seats[region], dict[str, Any]()
        for name in NAMES:
            found[name] = seat.look(name)
            [meta] = seat.send(Batch([("HGETALL", b"bs:meta:{%s}" % name.encode())]))
            facts = dict(zip(meta[::2], meta[1::2], strict=True))
            found["meta", name] = {
                field: facts[field] for field in facts if not field.startswith((b"bell", b"n:", b"s:", b"t:"))
            }
        return found


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    with pool() as started:
        yield started


@pytest.fixture
def three(engines: list[Engine]) -> Iterator[Three]:
    world = Three(engines)
    yield world
    world.close()


def trouble(three: Three) -> dict[str, list[str]]:
    """What is wrong once everybody has met everybody."""
    events = list(three.history.events)
    three.settle()
    ask_everything(three.witness)
    found = find(three.history)
    three.recall(events)
    return found


def ends_a_comparison(request: Request) -> bool:
    """Whether it says that the target was compared, which is true only of the target as the link saw it.

    A link says it when the target has all that the source has, so nothing that was compared can come later.
    """
    return request.batch.commands[0][1] == "bs_journal_skip"


def apply(three: Three, requests: Sequence[Request]) -> None:
    """A refusal is not an error here: the link would look again, and does so in the end."""
    for request in requests:
        three.network.execute(request)


@pytest.mark.parametrize("rows", HISTORIES.values(), ids=list(HISTORIES))
def test_requests_of_two_links_in_every_order_come_to_the_same_end(three: Three, rows: str) -> None:
    three.play(rows)
    requests = [*three.sent(2, 1), *three.sent(3, 1)]
    start, events = three.keep(), list(three.history.events)
    orders = list(permutations(requests))
    if len(orders) > MOST_ORDERS:
        orders = Random(len(orders)).sample(orders, MOST_ORDERS)
    judged = list[dict[str, Any]]()
    for order in orders:
        three.bring_back(start)
        three.recall(events)
        apply(three, order)
        if (state := three.print_of(1)) not in judged:
            judged.append(state)
            shown = [f"{request.line} {request.batch.commands[0][:2]}" for request in order]
            assert not trouble(three), f"{three.history.table()}\n{shown}"


@pytest.mark.parametrize("rows", HISTORIES.values(), ids=list(HISTORIES))
def test_two_links_commute(three: Three, rows: str) -> None:
    three.play(rows)
    start, ends = three.keep(), list[dict[str, Any]]()
    for sources in ((2, 3), (3, 2)):
        three.bring_back(start)
        for source in sources * 2:  # a deletion may wait for what the other link brings
            three.ship(source, 1)
        ends.append(three.print_of(1))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("rows", HISTORIES.values(), ids=list(HISTORIES))
def test_a_request_that_comes_again_changes_nothing(three: Three, rows: str) -> None:
    three.play(rows)
    done = list[Request]()
    for request in [*three.sent(2, 1), *three.sent(3, 1)]:
        apply(three, [request])
        done.append(request)
        before = three.print_of(1)
        for again in done:
            apply(three, [again])
            assert three.print_of(1) == before, f"{again.line} {again.batch.commands[0][:2]}"


@pytest.mark.parametrize("rows", HISTORIES.values(), ids=list(HISTORIES))
def test_what_comes_over_another_region_is_what_comes_straight(three: Three, rows: str) -> None:
    three.play(rows)
    three.ship(3, 2)
    start = three.keep()
    three.ship(2, 1, relay=True)
    over = three.print_of(1)
    three.bring_back(start)
    three.ship(3, 1)
    three.ship(2, 1)
    assert three.print_of(1) == over


@settings(max_examples=settings.default.max_examples // (5 if NIGHTLY else 10))
@given(seed=st.integers(0, 2**32), operations=st.integers(5, 80))
def test_requests_of_all_links_shuffled_doubled_and_dropped_come_to_the_same_end(
    engines: list[Engine], seed: int, operations: int
) -> None:
    three, dice = Three(engines), Random(seed)
    try:
        users = Users(dice, three.witness)
        for _ in range(operations):
            users.act(dice.choice(REGIONS))
            if dice.random() < 0.15:
                three.ship(*dice.sample(REGIONS, 2), relay=dice.random() < 0.3)
        requests = [request for pair in permutations(REGIONS, 2) for request in three.sent(*pair)]
        requests = [request for request in requests if not ends_a_comparison(request)]
        dice.shuffle(requests)
        apply(three, [*requests[: len(requests) * 3 // 4], *requests[len(requests) // 4 :]])
        found = trouble(three)
        assert not found, f"{three.history.table()}\n{found}"
    finally:
        three.close()
