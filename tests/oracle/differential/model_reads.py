"""XREAD and XREADGROUP with MAXCOUNT, MAXSIZE and CLAIM: what newer engines would give.

The clock decides one thing: which of two pending entries is idle longer. The sides were told of both within
milliseconds, so either may be right. There the model checks that ours claimed what the clock allows, and
claims the same; all else it works out by itself.
"""

import re
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from tests.oracle.differential.deviations import Deviations, facts
from tests.oracle.differential.mapping import Mapping, parsed
from tests.oracle.differential.nobody import STAND_IN, deliveries
from tests.oracle.differential.report import Mismatch
from tests.oracle.differential.script import LAST_ID, MAX, Argv, command_of, upper
from tests.oracle.differential.sides import Fault, Reply, Sides
from tests.oracle.room import Room

NEWER_OPTIONS: Final = (b"MAXCOUNT", b"MAXSIZE", b"CLAIM")
NUMBERS: Final = (b"COUNT", b"BLOCK", *NEWER_OPTIONS)
# With MAXSIZE a call gives at most so many entries of a stream, claimed ones aside (docs/guides/groups.md).
AT_ONCE: Final = 100
ALL: Final = 10**6


@dataclass(frozen=True, slots=True)
class Read:
    """A read, parsed. `head` is `GROUP group consumer` for XREADGROUP, `tail` its NOACK."""

    head: Argv
    tail: Argv
    numbers: dict[bytes, int]
    names: Argv
    positions: Argv

    def natively(self, name: bytes, position: bytes, count: int | None) -> list[bytes | int]:
        limit = () if count is None else (b"COUNT", count)
        return [b"XREADGROUP", *self.head, *limit, *self.tail, b"STREAMS", name, position]


def parse_read(argv: Argv) -> Read | None:
    """None for what the model does not know: wrong words, and IDs in unusual forms."""
    at, head, tail, numbers = 1, list[bytes](), list[bytes](), dict[bytes, int]()
    while at < len(argv) and upper(argv[at]) != b"STREAMS":
        word = upper(argv[at])
        if word == b"GROUP":
            head, at = argv[at : at + 3], at + 3
        elif word == b"NOACK":
            tail, at = [word], at + 1
        elif word in NUMBERS and at + 1 < len(argv) and re.fullmatch(rb"0|[1-9][0-9]{0,8}", argv[at + 1]):
            numbers[word], at = int(argv[at + 1]), at + 2
        else:
            return None
    rest = argv[at + 1 :]
    half = len(rest) // 2
    in_group = command_of(argv) == b"XREADGROUP"
    positions = [b">" if word == LAST_ID and in_group else word for word in rest[half:]]
    fits = len(head) == (3 if in_group else 0) and (in_group or not (tail or b"CLAIM" in numbers))
    fits = fits and bool(rest) and len(rest) % 2 == 0
    special = (b">",) if in_group else (b"$", b"+")
    usual = all(word in special or _is_plain_id(word) for word in positions)
    zero = any(numbers.get(word) == 0 for word in (b"MAXCOUNT", b"MAXSIZE", b"BLOCK"))
    return Read(head, tail, numbers, rest[:half], positions) if fits and usual and not zero else None


def _is_plain_id(word: bytes) -> bool:
    return bool(re.fullmatch(rb"[0-9]{1,20}(-[0-9]{1,20})?", word)) and all(
        int(part) <= MAX for part in word.split(b"-")
    )


@dataclass(frozen=True, slots=True)
class Idle:
    """A pending entry that may be claimed. `fields` is None where it was deleted."""

    id: bytes
    owned: bool
    ms: int
    deliveries: int
    fields: list[bytes] | None

    def order(self) -> tuple[bool, int, tuple[int, int]]:
        return self.owned, -self.ms, parsed(self.id)

    def row(self, now_ms: int) -> list[Any]:
        return [self.id, self.fields, self.ms if self.owned else now_ms, self.deliveries]


class ModelledReads:
    def __init__(self, sides: Sides, mapping: Mapping, deviations: Deviations, protocol: int) -> None:
        self._ask, self._sides = sides.peek, sides
        self._mapping, self._deviations, self._protocol = mapping, deviations, protocol

    def may_be_asked(self, argv: Argv) -> bool:
        """CLAIM looks at the first 1,000 that are idle enough; which of more is not for us to say."""
        spec = parse_read(argv)
        if spec is None or b"CLAIM" not in spec.numbers:
            return True
        held = [self._ask("XPENDING", name, spec.head[1]) for name in spec.names]
        return all(isinstance(each, Fault) or each[0] < 1_000 for each in held)

    def answer(self, argv: Argv, ours: Reply) -> Reply:
        spec = parse_read(argv)
        assert spec is not None
        count, most = spec.numbers.get(b"COUNT"), spec.numbers.get(b"MAXCOUNT")
        if most is not None and count and most < count:
            return Fault("ResponseError", "ERR", "MAXCOUNT must be greater than or equal to COUNT")
        room = Room(most, spec.numbers.get(b"MAXSIZE"))
        if command_of(argv) == b"XREAD":
            return self._read(spec, count, room)
        refused = self._refused(spec)
        if refused is not None:
            return refused
        seen, found = deque(_pairs(ours)), list[Any]()
        for name, position in zip(spec.names, spec.positions, strict=True):
            if room.full():
                break
            page = seen.popleft()[1] if seen and seen[0][0] == name else []
            before = room.written
            room.head(name)
            if position == b">":
                entries = self._new(spec, name, count or None, room, page)
            else:
                spec.numbers.pop(b"CLAIM", None)  # from here on nothing is claimed
                entries = self._own(spec, name, position, count or None, room)
            if entries is None:
                room.written = before
            else:
                room.tail(entries)
                found.append([name, entries])
        return self._reply(found)

    def _reply(self, found: list[Any]) -> Reply:
        if not found:
            return None
        return dict(found) if self._protocol == 3 else found

    def _read(self, spec: Read, count: int | None, room: Room) -> Reply:
        """XREAD takes nothing, so it is read natively and cut."""
        limit = () if count is None else (b"COUNT", count)
        reply = self._ask(b"XREAD", *limit, b"STREAMS", *spec.names, *spec.positions)
        if isinstance(reply, Fault):
            return reply
        return self._reply(room.cut(_pairs(reply)))

    def _refused(self, spec: Read) -> Fault | None:
        """The engine's own error, if a stream or its group is not there."""
        for name in spec.names:
            groups = self._ask("XINFO", "GROUPS", name)
            known = [] if isinstance(groups, Fault) else [facts(info)[b"name"] for info in groups]
            if spec.head[1] not in known:
                words = (b"XREADGROUP", *spec.head, b"STREAMS", *spec.names, *spec.positions)
                reply = self._ask(*words)
                assert isinstance(reply, Fault), reply
                return reply
        return None

    # Of one stream

    def _new(
        self, spec: Read, name: bytes, count: int | None, room: Room, seen: list[Any]
    ) -> list[Any] | None:
        """None if the stream has nothing for the consumer."""
        found, claims, extra = list[Any](), b"CLAIM" in spec.numbers, list[int]()
        idle = self._idle(spec, name) if claims else []
        if claims:
            found, extra = self._claimed(spec, name, count, room, seen, idle), [0, 0]
            count = None if count is None else count - len(found)
        groups = [facts(info) for info in self._ask("XINFO", "GROUPS", name)]
        [after] = [info[b"last-delivered-id"] for info in groups if info[b"name"] == spec.head[1]]
        ahead = self._ask("XRANGE", name, b"(" + after, "+") if after != LAST_ID else []
        if count != 0 and not room.full():
            rows = [[*entry, *extra] for entry in ahead]
            found += [[*entry, *extra] for entry in self._native(spec, name, b">", rows[:count], room)]
        else:
            self._make_consumer(spec, name)
        return found if ahead or idle else None

    def _own(self, spec: Read, name: bytes, after: bytes, count: int | None, room: Room) -> list[Any]:
        rows = self._ask("XPENDING", name, spec.head[1], b"(" + after, "+", ALL, spec.head[2])
        bodies = [[row[0], self._body(name, row[0])] for row in rows[:count]]
        return self._native(spec, name, after, bodies, room)

    def _native(self, spec: Read, name: bytes, position: bytes, rows: list[Any], room: Room) -> list[Any]:
        """As many of these as there is room for. Where there is nothing, the read makes the consumer."""
        if room.size is not None:
            rows = rows[:AT_ONCE]
        count = 0
        while count < len(rows) and room.take(rows[count]):
            count += 1
        if rows and not count:
            self._make_consumer(spec, name)
            return []
        pages = _pairs(self._ask(*spec.natively(name, position, count or None)))
        return pages[0][1] if pages else []

    def _make_consumer(self, spec: Read, name: bytes) -> None:
        """As a read that finds nothing does."""
        if self._body(name, LAST_ID) is None:
            self._ask(*spec.natively(name, b"18446744073709551615-18446744073709551614", 1))
        else:
            self._ask("XGROUP", "CREATECONSUMER", name, *spec.head[1:])

    def _body(self, name: bytes, entry: bytes) -> list[bytes] | None:
        found = self._ask("XRANGE", name, entry, entry)
        return found[0][1] if found else None

    # Claims

    def _idle(self, spec: Read, name: bytes) -> list[Idle]:
        """What may be claimed, longest idle first. What was deleted stays as it is."""
        rows = self._ask("XPENDING", name, spec.head[1], "IDLE", spec.numbers[b"CLAIM"], "-", "+", ALL)
        every = [
            Idle(entry, owner != STAND_IN, ms, deliveries(times), self._body(name, entry))
            for entry, owner, ms, times in rows
        ]
        return sorted((each for each in every if each.fields is not None), key=Idle.order)

    def _claimed(
        self, spec: Read, name: bytes, count: int | None, room: Room, seen: list[Any], idle: list[Idle]
    ) -> list[Any]:
        seconds, micros = map(int, self._ask("TIME"))
        now_ms = seconds * 1000 + micros // 1000
        taken = self._allowed(name, idle, count, room, seen, now_ms)
        if taken:
            bound, who = spec.numbers[b"CLAIM"], spec.head[1:]
            self._ask("XCLAIM", name, *who, bound, *(each.id for each in taken))
        return [each.row(now_ms) for each in taken]

    def _allowed(
        self, name: bytes, idle: list[Idle], count: int | None, room: Room, seen: list[Any], now_ms: int
    ) -> list[Idle]:
        """What ours claimed, if it had room and the n-th is about as idle as the n-th should be."""
        by_id, bare_of = {each.id: each for each in idle}, self._mapping.life(name).bare_of
        taken = list[Idle]()
        for entry in seen:
            found = by_id.get(bare_of.get(entry[0], entry[0]))
            if found is None or found in taken or len(taken) == count:
                break
            taken.append(found)
        for one, other in zip(taken, idle, strict=False):
            if one.owned != other.owned or abs(one.ms - other.ms) > self._deviations.apart_ms:
                raise Mismatch([name, one.id], other, one, "claimed before one that is idle longer")
            if not room.take(one.row(now_ms)):
                raise Mismatch([name, one.id], None, one, "claimed without room")
        rest = [each for each in idle if each not in taken]
        if rest and len(taken) != count and not room.full():
            raise Mismatch([name, rest[0].id], rest[0], None, "not claimed, though there was room")
        return taken


def _pairs(reply: Reply) -> list[Any]:
    """Streams and their entries, by whichever protocol."""
    if isinstance(reply, dict):
        return [[name, page] for name, page in reply.items()]
    return reply if isinstance(reply, list) else []
