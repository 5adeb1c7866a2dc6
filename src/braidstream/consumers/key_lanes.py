"""Order per key: entries of one key run one after the other, in ID order, in whichever process.

Within a process each key has a lane, and only the head of a lane runs. Between processes the group's pending
list decides: an entry may start only if no other consumer has an earlier entry of its key pending. Entries of
one strand are delivered in order and stay pending until they are handled, also while their consumer is dead,
so no earlier entry can be overlooked. Waiting goes to smaller IDs only: there is no deadlock.

`turn.py` reads the pending list (`saw`); until it has done so after an entry was taken, the entry waits.
"""

from bisect import insort
from collections.abc import Hashable, Iterable
from typing import Final

from braidstream.consumers.held import Held
from braidstream.model import ids
from braidstream.model.ids import Id

# How often the pending list is read while an entry waits for another process.
SCAN_S: Final = (0.005, 0.1)

Lane = tuple[bytes, Hashable]


class KeyLanes:
    """The lanes of all keys in hand."""

    def __init__(self) -> None:
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
        self._unseen.add(held)
        self._scan_at = 0.0

    def remove(self, held: Held) -> None:
        """It is acknowledged, moved or lost: the next of its lane may run, once it is clear."""
        lane = self._lanes.get((held.stream, held.key))
        if lane is not None:
            lane[:] = [each for each in lane if each[1] is not held]
            if not lane:
                del self._lanes[held.stream, held.key]
        if self._started.get((held.stream, held.key)) is held:
            del self._started[held.stream, held.key]
        for group in (self._unseen, self._blocked, self._clear):
            group.discard(held)

    def doubt(self, held: Held) -> None:
        """Another consumer has it now: the others of its lane wait until the pending list was read again."""
        others = {each for _, each in self._lanes.get((held.stream, held.key), [])} & self._clear
        self._clear -= others
        self._unseen |= others
        if others:
            self._scan_at = 0.0

    def startable(self) -> list[Held]:
        """Heads of lanes that may start, each once."""
        found = list[Held]()
        for held in self._clear:
            lane = (held.stream, held.key)
            # A late entry may stand before one that runs.
            if self._lanes[lane][0][1] is held and lane not in self._started:
                self._started[lane] = held
                found.append(held)
        self._clear.difference_update(found)
        return sorted(found, key=number)

    def in_question(self, stream: bytes) -> list[Held]:
        """Entries of a stream that must not start before the pending list was read."""
        return [held for held in (*self._unseen, *self._blocked) if held.stream == stream]

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
                moved = True
        self._pause = SCAN_S[0] if moved else min(self._pause * 2, SCAN_S[1])
        self._scan_at = now + self._pause if self._blocked or self._unseen else None


def number(entry: Held | bytes) -> Id:
    """The ID of an entry, to compare."""
    parsed = ids.parse(entry if isinstance(entry, bytes) else entry.id)
    assert parsed is not None, "the engine made this ID"
    return parsed
