"""Sends the commands of a batch to the nodes that own their keys, and follows redirects. No I/O.

    XADD a, XADD b, XLEN a        slot of a: XADD, XLEN      node 1      the replies, in the order of
                                  slot of b: XADD            node 2      the commands

A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing of that command. So following it is
no resend, and a write is still never sent twice. A MULTI is refused as a whole, and follows as a whole.

While a slot moves, a node refuses a command with several keys if some of them have left, and still runs one
whose key is there. The second could overtake the first: in `DEL a, XADD a` the deletion would come last. So
if a command with several keys is followed by others of its slot, they are sent in one MULTI.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from random import random
from typing import Any, Final

from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from braidstream.clusters.command_keys import (
    ONE_KEY,
    READS,
    NativeKeys,
    keys_of,
    may_be_late,
    slot_of,
    split_read,
    word_of,
)
from braidstream.engine.redis_py import parse_error
from braidstream.errors import LostError, ReplyError
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Exchange, wire

# Replies of a node that has not run the command.
REDIRECTS: Final = (AskError, TryAgainError, ClusterDownError)  # a MovedError is an AskError
# How long commands follow redirects. Then the last reply stands.
FOLLOW_S: Final = 15.0
_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.2

MULTI: Final = ("MULTI",)
EXEC: Final = ("EXEC",)
ASKING: Final = ("ASKING",)
CROSS_SLOT: Final = "CROSSSLOT Keys in request don't hash to the same slot"

Place = tuple[str, int]


class Patience:
    """How long to go on after the first failure, and how long to wait before the next attempt."""

    def __init__(self, follow_s: float = FOLLOW_S) -> None:
        self._follow_s = follow_s
        self.start_over()

    def start_over(self) -> None:
        """The last attempt succeeded."""
        self._first_s, self._pause_s = float("inf"), _PAUSE_S

    def runs_out(self) -> bool:
        """Another attempt failed. Whether it is the last one."""
        self._first_s = min(self._first_s, time.monotonic())
        return time.monotonic() - self._first_s > self._follow_s

    def pause_s(self) -> float:
        """The next pause: each is twice as long, up to a limit, with jitter."""
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self._pause_s * (0.5 + random() / 2)


@dataclass(slots=True)
class Leg:
    """Commands for one node, in order.

    slot: None means any node. at: which commands of the batch they are.
    is_multi: a MULTI, which is run or refused as a whole. has_several: a command has several keys.
    part: one slot's share of a read over several slots.
    units: what it was before we put a MULTI around it.
    ask: the node to ask this time, because the slot is moving there.
    """

    slot: int | None
    at: list[int]
    commands: list[Command]
    is_multi: bool = False
    has_several: bool = False
    part: bool = False
    units: "list[Leg]" = field(default_factory=list)
    ask: Place | None = None

    @property
    def inner(self) -> list[Command]:
        """Its commands without MULTI and EXEC."""
        return self.commands[1:-1] if self.is_multi else self.commands

    @property
    def inner_at(self) -> list[int]:
        """Which commands of the batch `inner` are."""
        if self.units:
            return [at for unit in self.units for at in unit.inner_at]
        return self.at[1:-1] if self.is_multi else self.at

    def wire(self) -> list[Command]:
        """What to send."""
        if self.ask is None:
            return self.commands
        if self.is_multi:
            return [ASKING, *self.commands]
        return [word for command in self.commands for word in (ASKING, command)]

    def replies(self, read: list[Any]) -> list[Any]:
        """The replies to its commands, from those to all that was sent."""
        if self.ask is None:
            return read
        return read[1:] if self.is_multi else read[1::2]


@dataclass(slots=True)
class Round:
    """Legs to send now, after a pause.

    is_race: wait until one of them has a reply, then end the wait of the others.
    moved, is_down: what the last replies said about the map of slots.
    """

    legs: list[Leg]
    pause_s: float = 0.0
    is_race: bool = False
    moved: list[MovedError] = field(default_factory=list)
    is_down: bool = False


# Yields rounds, gets the replies to each leg. Returns the replies to all commands, as connections read them.
Delivery = Generator[Round, list[list[Any]], list[Any] | None]


def deliver(batch: Batch, native_keys: NativeKeys, patience: Patience, *, watching: bool) -> Delivery:
    """One batch. None if it is a MULTI under WATCH that was redirected: the WATCH is on another node."""
    parcel = _Parcel(batch, native_keys, watching=watching)
    turn = Round(parcel.first())
    while turn.legs:
        turn.is_race = batch.block_ms is not None and len(turn.legs) > 1 and turn.legs[0].part
        began_s = time.monotonic()
        sent, answers = turn, (yield turn)
        turn = Round([])
        if time.monotonic() - began_s > FOLLOW_S:
            patience.start_over()  # it has waited for entries, not for nodes
        for leg, read in zip(sent.legs, answers, strict=True):
            replies = leg.replies(read)
            refused = [reply for reply in replies if isinstance(reply, REDIRECTS)]
            ran_alone = _ran_without_multi(leg, replies)
            if not refused or (ran_alone and not parcel.may_run_alone(leg)) or patience.runs_out():
                turn.legs += parcel.take(leg, replies)
                continue
            _note(turn, refused, patience)
            if ran_alone:
                parcel.follow_alone(leg, replies)
                continue
            turn.legs += [leg] if sent.is_race else parcel.follow(leg, replies)
            if leg.is_multi and watching:
                yield Round([], turn.pause_s, moved=turn.moved, is_down=turn.is_down)
                return None
        if sent.is_race and turn.legs:
            # One slot has moved. If others have entries, return those; else wait for all of them again.
            turn.legs = [] if parcel.has_entries else parcel.race_again(sent.legs)
            turn.pause_s = turn.pause_s or patience.pause_s()
        turn.legs = [leg for leg in turn.legs if parcel.matters(leg)] or parcel.next()
    return parcel.replies()


async def drive(
    delivery: Delivery,
    prepare: Callable[[Round], Awaitable[None]],
    send: Callable[[Round], Awaitable[list[list[Any]]]],
) -> list[Any] | None:
    """Run a delivery to its end. prepare: wait, and learn where slots are. send: the replies to each leg."""
    answers: Any = None
    while True:
        try:
            turn = delivery.send(answers)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        await prepare(turn)
        answers = await send(turn)


def _note(turn: Round, refused: list[Any], patience: Patience) -> None:
    """What the next round must do first: wait, or learn where slots are."""
    for error in refused:
        if isinstance(error, MovedError):
            turn.moved.append(error)
        elif not isinstance(error, AskError):
            turn.pause_s = turn.pause_s or patience.pause_s()
            turn.is_down = turn.is_down or isinstance(error, ClusterDownError)


class _Parcel:
    """The legs of one batch, and the replies so far."""

    def __init__(self, batch: Batch, native_keys: NativeKeys, *, watching: bool) -> None:
        self._batch, self._native_keys, self._watching = batch, native_keys, watching
        self._commands = wire(batch)
        self._found: list[Any] = [None] * len(self._commands)
        self._shares = dict[int, list[Any]]()
        self._later = deque[list[Leg]]()

    def first(self) -> list[Leg]:
        """The legs of the first round. A read that blocks in several slots comes after the others."""
        by_slot, reads = dict[int | None, list[Leg]](), list[Leg]()
        for leg in self._units():
            if leg.part and self._batch.block_ms is not None:
                reads.append(leg)
            else:
                by_slot.setdefault(leg.slot, []).append(leg)
        parts = [_from_watch(units) for units in by_slot.values()]
        legs = [leg for before, _ in parts for leg in self._joined(before)]
        self._later.append([leg for _, after in parts for leg in self._joined(after)])
        if not legs:
            return reads
        self._later.append(reads)
        return legs

    def next(self) -> list[Leg]:
        """What had to wait for the legs before."""
        while self._later:
            legs = self._later.popleft()
            if legs:
                return legs
        return []

    def _units(self) -> Iterator[Leg]:
        """The commands with several keys one by one, those between them together; a MULTI up to its EXEC."""
        at, plain = 0, dict[int | None, Leg]()
        while at < len(self._commands):
            command, end = self._commands[at], at + 1
            if command[0] in ONE_KEY and len(command) > 1:  # most commands of a long pipeline
                slot = slot_of(command[1])
                if slot in plain:
                    plain[slot].at.append(at)
                    plain[slot].commands.append(command)
                else:
                    plain[slot] = Leg(slot, [at], [command])
                    yield plain[slot]
            else:
                if command == MULTI:
                    end = self._commands.index(EXEC, at) + 1
                for leg in self._unit(at, end):
                    plain.pop(leg.slot, None)  # what follows comes after it
                    yield leg
            at = end

    def _unit(self, at: int, end: int) -> Iterator[Leg]:
        commands, is_multi = self._commands[at:end], end > at + 1
        keys = [keys_of(command, self._native_keys) for command in commands]
        slots = {slot_of(key) for some in keys for key in some}
        if len(slots) < 2:
            several = any(len(some) > 1 for some in keys) and not may_be_late(commands[0])
            slot = next(iter(slots), None)
            yield Leg(slot, list(range(at, end)), commands, is_multi, has_several=several)
        elif is_multi:
            raise ReplyError(CROSS_SLOT)
        elif word_of(commands[0][0]) in READS:
            for slot, command in split_read(commands[0]).items():
                yield Leg(slot, [at], [command], has_several=True, part=True)
        else:
            self._found[at] = parse_error(CROSS_SLOT)

    def _joined(self, units: list[Leg]) -> Iterator[Leg]:
        """The commands of one slot: those that may not overtake each other in one MULTI.

        Not under WATCH, which its EXEC would end.
        """
        is_write = not self._batch.resend and self._batch.block_ms is None
        watches = self._watching or any(word_of(unit.commands[0][0]) == "WATCH" for unit in units)
        if is_write and not watches and any(unit.has_several for unit in units[:-1]):
            yield _in_multi(units)
            return
        plain = Leg(units[0].slot if units else None, [], [])
        for unit in units:
            if unit.is_multi or unit.part:
                if plain.at:
                    yield plain
                yield unit
                plain = Leg(unit.slot, [], [])
            else:
                plain.at += unit.at
                plain.commands += unit.commands
        if plain.at:
            yield plain

    def matters(self, leg: Leg) -> bool:
        """Whether the caller reads a reply of a leg that was refused."""
        unread = self._batch.unread if isinstance(self._batch, Exchange) and not self._batch.atomic else 0
        return leg.is_multi or max(leg.at) >= unread

    def take(self, leg: Leg, replies: list[Any]) -> list[Leg]:
        """Keep the replies of a leg. Returns what to send next."""
        if leg.part:
            self._shares.setdefault(leg.at[0], []).append(replies[0])
        elif leg.units:
            return self._take_units(leg, replies)
        for at, reply in zip(leg.at, replies, strict=True):
            self._found[at] = reply
        return []

    def _take_units(self, leg: Leg, replies: list[Any]) -> list[Leg]:
        """The replies of commands that we put into a MULTI. If the engine cannot queue one, none has run:
        send them without the MULTI, each after the reply to the one before."""
        began, *alone, ended = replies
        is_refused = _ran_without_multi(leg, replies)
        if isinstance(ended, Exception) and not is_refused:
            self._later.extend([unit] for unit in leg.units)
            return []
        done = alone if is_refused else ended
        for unit in leg.units:
            mine, done = done[: len(unit.inner)], done[len(unit.inner) :]
            if unit.is_multi:
                mine = [began, *mine, ended] if is_refused else [began, *([b"QUEUED"] * len(mine)), mine]
            self.take(unit, mine)
        return []

    def follow(self, leg: Leg, replies: list[Any]) -> list[Leg]:
        """What to send again of a leg that was refused, and where."""
        if leg.is_multi or leg.part:
            error = next(reply for reply in replies if isinstance(reply, REDIRECTS))
            return [replace(leg, ask=_place(leg, error))]
        again = list[Leg]()
        ran = [at for at, reply in zip(leg.at, replies, strict=True) if not isinstance(reply, REDIRECTS)]
        for at, command, reply in zip(leg.at, leg.commands, replies, strict=True):
            # A node that was down for the first commands and ran the last ones: those come before, not after.
            is_late = isinstance(reply, ClusterDownError) and ran and at < ran[-1]
            if is_late or not isinstance(reply, REDIRECTS):
                self._found[at] = reply
                continue
            place = _place(leg, reply)
            if not again or again[-1].ask != place:
                again.append(Leg(leg.slot, [], [], ask=place))
            again[-1].at.append(at)
            again[-1].commands.append(command)
        return again

    def may_run_alone(self, leg: Leg) -> bool:
        """Whether the commands of a MULTI that was refused may follow redirects without it: as `unpack`."""
        is_plan = self._batch.attempt and not isinstance(self._batch, Exchange)
        return bool(leg.units) or (is_plan and not self._watching)

    def follow_alone(self, leg: Leg, replies: list[Any]) -> None:
        """A MULTI was refused, so the node looked at each command by itself. Those after the last one that
        ran follow, each after the reply to the one before: none may overtake another."""
        self.take(leg, replies)
        inner = replies[1:-1]
        ran = max((at for at, reply in enumerate(inner, 1) if not isinstance(reply, REDIRECTS)), default=0)
        rest = zip(leg.inner_at[ran:], leg.inner[ran:], strict=True)
        self._later.extend([Leg(leg.slot, [at], [command])] for at, command in rest)

    @property
    def has_entries(self) -> bool:
        return any(share for some in self._shares.values() for share in some if not _is_error(share))

    def race_again(self, legs: list[Leg]) -> list[Leg]:
        self._shares.clear()
        return [replace(leg, ask=None) for leg in legs]

    def replies(self) -> list[Any]:
        for at, shares in self._shares.items():
            self._found[at] = _merged(shares)
        return self._found


def _ran_without_multi(leg: Leg, replies: list[Any]) -> bool:
    """Whether a MULTI was refused, because the user lacks the right: its commands ran one by one."""
    return leg.is_multi and _is_error(replies[0]) and not isinstance(replies[0], REDIRECTS)


def _from_watch(units: list[Leg]) -> tuple[list[Leg], list[Leg]]:
    """The commands up to the last WATCH, and those after it: what a plan reads must not be older."""
    last = max((at for at, unit in enumerate(units, 1) if word_of(unit.commands[0][0]) == "WATCH"), default=0)
    return (units[:last], units[last:]) if last else (units, [])


def _in_multi(units: list[Leg]) -> Leg:
    inner = [command for unit in units for command in unit.inner]
    return Leg(units[0].slot, [], [MULTI, *inner, EXEC], is_multi=True, units=units)


def _place(leg: Leg, error: Any) -> Place | None:
    """The node to ask; None: the one that the map of slots names. If the engine sees keys in a command where
    we see none, it is the one that the engine names."""
    is_ask = isinstance(error, AskError) and (leg.slot is None or not isinstance(error, MovedError))
    return (error.host, error.port) if is_ask else None


def _is_error(reply: Any) -> bool:
    return isinstance(reply, Exception)


def _merged(shares: list[Any]) -> Any:
    """The replies of one read in several slots, as one. Entries that were delivered are never dropped."""
    found = [share for share in shares if share and not _is_error(share)]
    if not found:
        return next(filter(_is_error, shares), None)
    if isinstance(found[0], dict):  # RESP3
        return {key: page for share in found for key, page in share.items()}
    return [page for share in found for page in share]


def without_losses(
    legs: list[Leg], answers: list[list[Any]], lost: type[Exception] | tuple[type[Exception], ...] = LostError
) -> list[list[Any]]:
    """For reads in several slots: what some nodes have read, if others were lost. An error if none has."""
    shares = [each for leg, some in zip(legs, answers, strict=True) if leg.part for each in some]
    losses = [each for each in shares if isinstance(each, lost)]
    if not losses:
        return answers
    if not any(share and not isinstance(share, Exception) for share in shares):
        raise losses[0]
    return [[None if isinstance(each, lost) else each for each in some] for some in answers]
