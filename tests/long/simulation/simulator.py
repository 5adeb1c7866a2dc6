"""One run: users and network by one die, then quiescence, then every question in every region."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any, Final

import pytest

from braidstream.errors import BraidError, ReplyError
from braidstream.model.ids import native
from braidstream.model.strand import facts
from braidstream.replication.link import batches, link, splice
from tests.long.simulation.chores import Chores
from tests.long.simulation.logs import LogUsers
from tests.long.simulation.network import Line, Network, Request
from tests.long.simulation.replicas import Replicas
from tests.long.simulation.rounds import calm, one_round, settle
from tests.long.simulation.seat import Seat
from tests.long.simulation.users import HOUR_MS, Users
from tests.long.simulation.witness import NAMES, Witness
from tests.oracle.anomalies import GROUPS, MESSAGES, RANGE, find
from tests.oracle.convergence import SETTINGS, messages
from tests.oracle.history import Answered, Did, History, Left
from tests.support.event_counts import counted_events
from tests.support.servers import FLAVOURS, Engine

OPERATIONS: Final = 200
MOST_REGIONS: Final = 5
# In so many runs regions have replicas, and these are promoted.
FAILING_OVER: Final = 0.3
# Later than any clock that the dice choose.
LATER_MS: Final = 3 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, judged. `trouble`: anomalies by name; "failed" is an error where none may be."""

    seed: int
    history: History
    trouble: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"BRAID_SEED={self.seed}", self.history.table(), ""]
        for name, found in self.trouble.items():
            lines += [f"{name}: {what}" for what in (found if name == "log" else found[:10])]
        return "\n".join([*lines, f"replay: BRAID_SEED={self.seed} make simulate"])


@contextmanager
def small_parts() -> Iterator[None]:
    """A few entries take several requests: between any two of them something may happen. They are spliced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_ENTRIES", 2)
        patch.setattr(link, "JOURNAL_PAGE", 2)
        patch.setattr(batches, "MANY", 0)
        patch.setattr(splice, "LEAST_ENTRIES", 1)
        yield


def simulate(
    seed: int,
    engines: Sequence[Engine],
    *,
    gate: bool = True,
    scopes: bool = False,
    deadlines: bool = False,
    chores: bool = False,
) -> Outcome:
    """Run a seed. The same seed does the same, whatever ran before. gate: see replicas.py.

    scopes: users also change the scope of groups, and take and give strands. deadlines: users also set
    deadlines, and regions carry them out. chores: see chores.py. Other dice decide about that.
    """
    dice = Random(seed)
    count = dice.choices((2, 3, 4, 5), (4, 6, 2, 1))[0]
    used = dice.sample(list(engines), count)
    mode = dice.choice(("strict", "semi-strict", "liberal"))
    everyone = range(1, count + 1)
    seats = dict[int, Seat]()
    history = History(count)
    try:
        for number, engine in zip(everyone, used, strict=True):
            seats[number] = Seat(engine, number, everyone, dice.choice((mode, mode, "strict")))
        for seat in seats.values():
            seat.others = seats
        trouble: dict[str, list[str]] = {}
        try:
            run = Run(dice, seats, history, gate=gate)
            with small_parts(), counted_events() as counts:
                run.users.scopes = Random(f"scopes {seed}") if scopes else None
                run.users.deadlines = Random(f"deadlines {seed}") if deadlines else None
                if chores:
                    run.begin_chores(seed)
                if run.network.replicas is None and LogUsers.are_in(seed):
                    run.logs = LogUsers(seed, seats)
                asyncio.run(run.whole())
            unfounded = gate and counts["region.lost_tail"] > 0
            assert not unfounded, "no region lost what a peer has, and a link says one did"
        except (BraidError, AssertionError) as error:
            trouble["failed"] = [f"{type(error).__name__}: {error}"]
            if run.logs is not None:
                trouble["log"] = run.logs.history.table().splitlines()
        if not trouble:
            trouble = find(history) | (run.chores.find_wrong() if run.chores is not None else {})
        return Outcome(seed, history, trouble)
    finally:
        for seat in seats.values():
            seat.close()


class Run:
    """The dice choose between a user, a request that waits, a new round of a link, and bad luck."""

    def __init__(self, dice: Random, seats: dict[int, Seat], history: History, *, gate: bool) -> None:
        self.dice, self.seats, self.history = dice, seats, history
        self.network = Network(seats, history)
        self.witness = Witness(seats, history)
        self.users = Users(dice, self.witness)
        self.logs: LogUsers | None = None
        self.chores: Chores | None = None
        self.flushes = 0
        self.partitions: set[frozenset[int]] = set()
        self.paused: set[int] = set()
        # Some runs are calm, some are not.
        self.luck = dice.choice((0.0, 0.02, 0.1, 0.25))
        if dice.random() < FAILING_OVER:
            self.network.replicas = Replicas(seats, history, gate=gate)

    def begin_chores(self, seed: int) -> None:
        """Where clocks step, messages are forgotten too early: none do. Nor are they hours apart: what waits
        would be due when messages are forgotten."""
        self.chores = Chores(seed, self.witness, self.network)
        self.users.step, self.users.skew_ms = 0.0, self.chores.skew_ms

    async def whole(self) -> None:
        done = 0
        if self.logs is not None:
            await self.logs.begin()
        while done < OPERATIONS:
            roll = self.dice.random()
            awake = [region for region in self.seats if region not in self.paused]
            if self.logs is not None:
                await self.logs.turn(self._can_pass, self.luck, awake)
            if self.chores is not None:
                await self.chores.turn(awake, self._out_of_reach)
            if roll < 0.2:
                if awake:
                    self.users.act(self.dice.choice(awake))
                    self._note_flush()
                done += 1
            elif roll < 0.3:
                await self._start()
            elif roll < 0.32:
                await self._weather()
            elif roll < 0.34:
                if self.network.late:
                    self.network.arrive(self.dice.choice(self.network.late))
            else:
                await self.network.step(self.dice, self._can_pass, self._luck_of)
        await self._quiesce()
        ask_everything(self.witness)
        if self.logs is not None:
            await self.logs.finish()

    def _note_flush(self) -> None:
        """FLUSHDB deletes the log too."""
        if self.logs is not None:
            flushes = sum(each.what == "FLUSHDB" for each in self.history.of(Did))
            if flushes > self.flushes:
                self.flushes = flushes
                self.logs.flushed()

    async def _start(self) -> None:
        line = self.dice.choice(self.network.lines)
        if line.number and self.dice.random() < 0.7:
            return  # the second link of a pair is rarer
        if not line.busy:
            how = self.dice.choices(("sync", "follow", "relay"), (5, 4, 2))[0]
            await self.network.start(line, self.dice.choices(NAMES, (8, 3, 1))[0], how)
        elif len(line.tasks) == 1:  # a daemon follows a stream also while it is synced
            await self.network.start(line, line.name, "follow")

    async def _weather(self) -> None:
        """Partitions, pauses, restarts, failovers."""
        kinds = ("part", "heal", "pause", "wake", "renew")
        kind = self.dice.choice(kinds if self.network.replicas is None else (*kinds, "catch up", "promote"))
        region, other = self.dice.sample(list(self.seats), 2)
        if kind == "part" and self.luck:
            self.partitions.add(frozenset((region, other)))
            self.network.tell(f"(no way between {region} and {other})")
        elif kind == "heal" and self.partitions:
            self.partitions.clear()
            self.network.tell("(all ways open)")
        elif kind == "pause" and self.luck and len(self.paused) < len(self.seats) - 1:
            self.paused.add(region)
            self.network.tell(f"(region {region} is silent)")
        elif kind == "wake" and self.paused:
            self.paused.clear()
            self.network.tell("(nobody is silent)")
        elif kind == "renew":
            line = self.dice.choice(self.network.lines)
            if not line.busy:
                self.network.renew(line)
        elif kind == "catch up" and self.network.replicas is not None:
            self.network.replicas.catch_up(region)
        elif kind == "promote":
            await self.network.promote(region)
            self.witness.forget(region)
            if self.chores is not None:
                self.chores.forget(region)

    def _can_pass(self, request: Request) -> bool:
        """A link runs beside its source: a partition is between it and its target."""
        pair = request.line.pair
        apart = request.region == pair[1] and frozenset(pair) in self.partitions
        return request.region not in self.paused and not apart

    def _out_of_reach(self, region: int) -> set[int]:
        """The regions that this one cannot ask."""
        apart = {other for pair in self.partitions if region in pair for other in pair}
        return {*apart, *self.paused} - {region}

    def _luck_of(self, request: Request) -> float:
        """Most requests are reads, and a lost read has no effect."""
        return self.luck if request.writes else self.luck / 5

    async def _quiesce(self) -> None:
        """The storm is over: every request arrives or is lost, then links run until nothing moves."""
        self.network.tell("(the storm is over)")
        await calm(self.network, self.dice)
        self.users.producers.finish()
        self.network.open = True
        first = [line for line in self.network.lines if line.number == 0]
        names = self.witness.names
        await settle(self.network, first, names)
        if self.users.scopes is not None:
            await self._end_hand_overs(first)
        if self.chores is not None:
            await self.chores.finish()
            await settle(self.network, first, names)
        for line in first:
            self.network.renew(line)
        if await one_round(self.network, first, names):
            raise AssertionError("links without a memory find something that those with one have missed")

    async def _end_hand_overs(self, lines: list[Line]) -> None:
        """The time of every hand-over is up. Owners see that when their daemons next read a stream."""
        for seat in self.seats.values():
            seat.clock_ms += LATER_MS
        for line in lines:
            for name in NAMES:
                line.name = name
                await line.link.sync(name.encode())
        for seat in self.seats.values():
            seat.clock_ms -= LATER_MS
        await settle(self.network, lines)


def ask_everything(witness: Witness) -> None:
    """Every question in every region. What is left for each group comes later, because asking takes it; then
    every message is sent once more, and must be known."""
    for number, seat in witness.seats.items():
        for name in witness.names:
            witness.look(number, name)
            for question, answer in questions(seat, name).items():
                witness.history.add(Answered(number, name, question, answer))
    for number, seat in witness.seats.items():
        for name in witness.names:
            for group in _groups(seat, name):
                once = is_once(seat, name, group)
                witness.history.add(Left(number, name, group, left(seat, name, group), once))
    for name in witness.names:
        kept = sorted(messages(witness.history, name).kept)
        for number, seat in witness.seats.items():
            witness.history.add(Answered(number, name, MESSAGES, send_again(seat, name, kept)))


def questions(seat: Seat, name: str) -> dict[str, Any]:
    """All that a region must answer as every other one does."""
    entries = seat.do("XRANGE", name, "-", "+")
    answers = {
        RANGE: [entry.decode() for entry, _ in entries],
        "values": [fields[1].decode() for _, fields in entries],
        "XREVRANGE": [entry.decode() for entry, _ in seat.do("XREVRANGE", name, "+", "-")],
        "XLEN": seat.do("XLEN", name),
        "EXISTS": seat.do("EXISTS", name),
        "TYPE": seat.do("TYPE", name).decode(),
        GROUPS: _groups(seat, name),
        SETTINGS: seat.settings(name),
    }
    if answers["EXISTS"]:
        info = facts(seat.do("XINFO", "STREAM", name))
        answers["last-generated-id"] = info[b"last-generated-id"].decode()
    return answers


def send_again(seat: Seat, name: str, kept: list[str]) -> dict[str, str]:
    """The ID that each message is known by."""
    answers = dict[str, str]()
    for _, group in groupby(kept, key=lambda message: message.split()[:2]):
        same = list(group)
        found = seat.send_messages(name, same)
        answers |= {message: entry.decode() for message, entry in zip(same, found, strict=True)}
    return answers


def _groups(seat: Seat, name: str) -> list[str]:
    try:
        return sorted(facts(info)[b"name"].decode() for info in seat.do("XINFO", "GROUPS", name))
    except ReplyError:  # no such key
        return []


def is_once(seat: Seat, name: str, group: str) -> bool:
    rows = map(facts, seat.do("XINFO", "GROUPS", name))
    return any(row[b"name"] == group.encode() and row.get(b"scope") == b"once" for row in rows)


def left(seat: Seat, name: str, group: str) -> frozenset[tuple[int, int]]:
    """Everything a consumer would still be given, or has been given and not acknowledged."""
    seat.do("XREADGROUP", "GROUP", group, "last", "COUNT", 10_000, "STREAMS", name, ">")
    return frozenset(native(row[0]) for row in seat.do("XPENDING", name, group, "-", "+", 10_000))


@contextmanager
def pool() -> Iterator[list[Engine]]:
    """Engines for many runs, of both kinds: a world has some of each."""
    started = list[Engine]()
    try:
        for number in range(MOST_REGIONS):
            flavour = FLAVOURS[number % len(FLAVOURS)]
            started.append(Engine(flavour, unixsocket=True).start())
        yield started
    finally:
        for engine in started:
            engine.stop()
