"""Order per key: entries of one key run one after the other, in ID order, in whichever process.

Within a process each key has a lane, and only the head of a lane runs. Of a topic that is all: nobody else
reads its partition (holds.py). Of streams, the group's pending list decides between processes: an entry may
start only if no other consumer has an earlier entry of its key pending. Entries of one strand are delivered
in order and stay pending until they are handled, also while their consumer is dead, so no earlier entry can
be overlooked. Waiting goes to smaller IDs only: there is no deadlock.

`turn.py` reads the pending list (`saw`); until it has done so after an entry was taken, the entry waits.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from braidstream.clients.commands import ViewOf, command
from braidstream.consumers.handler import Held, Message, Place
from braidstream.consumers.settings import Settings
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.plan.plan import Plan

# How often the pending list is read while an entry waits for another process.
SCAN_S: Final = (0.005, 0.1)

Lane = tuple[bytes, Hashable]


class KeyLanes:
    """The lanes of all keys in hand. is_alone: no other process has entries of these streams."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self._is_alone = is_alone
        # Those whose head may have changed.
        self._changed = set[Lane]()
        self._lanes = dict[Lane, list[tuple[Id, Held]]]()
        self._unseen = set[Held]()
        self._blocked = set[Held]()
        self._clear = set[Held]()
        self._started = dict[Lane, Held]()
        self._pause = SCAN_S[0]
        self._scan_at: float | None = None
        self._rests_until = 0.0

    @property
    def next_scan(self) -> float | None:
        """When the pending list is to be read; None if no entry waits for that."""
        return None if self._scan_at is None else max(self._scan_at, self._rests_until)

    def scan_again(self, at: float | None) -> None:
        self._scan_at = at

    def rest(self, until: float) -> None:
        """Do not read the pending list before."""
        self._rests_until = until

    def add(self, held: Held) -> None:
        insort(
            self._lanes.setdefault((held.stream, held.key), []), (number(held), held), key=lambda it: it[0]
        )
        if self._is_alone:
            self._clear.add(held)
            self._changed.add((held.stream, held.key))
        else:
            self._unseen.add(held)
            self._scan_at = 0.0

    def remove(self, held: Held) -> None:
        """It is acknowledged, moved or lost: the next of its lane may run, once it is clear."""
        lane = self._lanes.get((held.stream, held.key))
        if lane is not None:
            lane[:] = [each for each in lane if each[1] is not held]
            if not lane:
                del self._lanes[held.stream, held.key]
            self._changed.add((held.stream, held.key))
        if self._started.get((held.stream, held.key)) is held:
            del self._started[held.stream, held.key]
        for group in (self._unseen, self._blocked, self._clear):
            group.discard(held)

    def doubt(self, held: Held) -> None:
        """Another consumer has it now: the others of its lane wait until the pending list was read again."""
        if self._is_alone:
            return
        others = {each for _, each in self._lanes.get((held.stream, held.key), [])} & self._clear
        self._clear -= others
        self._unseen |= others
        if others:
            self._scan_at = 0.0

    def startable(self) -> list[Held]:
        """Heads of lanes that may start, each once."""
        found = list[Held]()
        for lane in self._changed & self._lanes.keys():
            held = self._lanes[lane][0][1]
            # A late entry may stand before one that runs.
            if held in self._clear and lane not in self._started:
                self._started[lane] = held
                found.append(held)
        self._changed.clear()
        self._clear.difference_update(found)
        return sorted(found, key=number)

    def in_question(self) -> dict[bytes, list[Held]]:
        """Entries that must not start before the pending list was read, by their stream."""
        found = defaultdict[bytes, list[Held]](list)
        for held in (*self._unseen, *self._blocked):
            found[held.stream].append(held)
        return found

    def saw(self, asked: list[Held], foreign: Iterable[tuple[Id, Hashable]], now: float) -> None:
        """The pending list was read. foreign: entries of other consumers, with their keys."""
        first = dict[Hashable, Id]()
        for entry, key in foreign:
            first[key] = min(first.get(key, entry), entry)
        moved = False
        for held in asked:
            if held not in self._unseen and held not in self._blocked:
                continue
            self._unseen.discard(held)
            before = first.get(held.key)
            if before is not None and before < number(held):
                self._blocked.add(held)
            else:
                self._blocked.discard(held)
                self._clear.add(held)
                self._changed.add((held.stream, held.key))
                moved = True
        self._pause = SCAN_S[0] if moved else min(self._pause * 2, SCAN_S[1])
        self._scan_at = now + self._pause if self._blocked or self._unseen else None


def number(entry: Held | bytes) -> Id:
    """The ID of an entry, to compare."""
    parsed = ids.parse(entry if isinstance(entry, bytes) else entry.id)
    assert parsed is not None, "the engine made this ID"
    return parsed


# ----------------------------------------------------------------------------------------------------
# Reads the pending list: which entries of other consumers come before ours?

_PAGE: Final = 1000
_BODIES: Final = 100
# How long it rests after a scan, for each entry that it read: about four times the CPU that this takes.
# Consumers that died may leave thousands of entries.
_REST_S: Final = 40e-6
_LONGEST_REST_S: Final = 1.0
_NO_KEY: Final = object()


class OrderScan:
    """Remembers the keys of entries that are pending for others, while they are."""

    def __init__(self, settings: Settings, held: Mapping[Place, Any], lanes: KeyLanes) -> None:
        self._settings, self._held, self._lanes = settings, held, lanes
        self._keys = dict[Place, Hashable]()

    def is_due(self, now: float) -> bool:
        return self._lanes.next_scan is not None and self._lanes.next_scan <= now

    def scan(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Which entries of other consumers are before ours, and what are their keys?"""
        questions = self._lanes.in_question()
        self._lanes.scan_again(now + SCAN_S[1] if questions else None)
        read = 0
        for stream, asked in questions.items():
            last = max(asked, key=number)
            foreign = yield from self._foreign(view_of, stream, last.id)
            read += len(foreign)
            self._lanes.saw(asked, (yield from self._with_keys(view_of, stream, foreign)), now)
        self._lanes.rest(now + min(read * _REST_S, _LONGEST_REST_S))

    def _foreign(self, view_of: ViewOf, stream: bytes, last: bytes) -> Plan[list[bytes]]:
        """Pending entries up to an ID that we do not hold."""
        found, low = list[bytes](), b"-"
        while True:
            page = yield from command(view_of, "XPENDING", stream, self._settings.group, low, last, _PAGE)
            found += [row[0] for row in page if (stream, row[0]) not in self._held]
            if len(page) < _PAGE:
                return found
            low = b"(" + page[-1][0]

    def _with_keys(self, view_of: ViewOf, stream: bytes, entries: list[bytes]) -> Plan[list[tuple[Id, Any]]]:
        known = {entry: self._keys[stream, entry] for entry in entries if (stream, entry) in self._keys}
        unknown = [entry for entry in entries if entry not in known]
        while unknown:
            # They mostly stand side by side.
            page = yield from command(view_of, "XRANGE", stream, unknown[0], "+", "COUNT", _BODIES)
            bodies = dict(page)
            end = number(page[-1][0]) if len(page) == _BODIES else None
            read = [entry for entry in unknown if end is None or number(entry) <= end]
            known |= {entry: self._key(stream, entry, bodies.get(entry)) for entry in read}
            unknown = unknown[len(read) :]
        others = {place: key for place, key in self._keys.items() if place[0] != stream}
        self._keys = others | {(stream, entry): key for entry, key in known.items()}
        return [(number(entry), key) for entry, key in known.items() if key is not _NO_KEY]

    def _key(self, stream: bytes, entry: bytes, words: list[bytes] | None) -> Hashable:
        """The key of an entry; none if it was deleted, or if `key` fails for it."""
        if words is None:
            return _NO_KEY
        try:
            key = self._settings.key_of(Message(stream.decode(), entry.decode(), words))
            hash(key)
        except Exception:
            return _NO_KEY
        return key
