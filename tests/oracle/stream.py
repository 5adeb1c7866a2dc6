"""The naive stream with groups: one list of entries, and for each group who holds what. Plainly right.

    entries    1-2   3-5   4-2   7-1023          in the order of their IDs, whoever wrote them
    at         s2: 4-2   s5: 3-5   s1023: 0-0    how far the group was served, strand by strand
    unread     7-1023                            what lies beyond that, in ID order
    held       3-5: ann, twice                   delivered and not acknowledged

Time has two values: an entry was handed out just now, or so long ago (`old`) that every minimum idle
time is over. Tests make entries old with XCLAIM ... IDLE.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from braidstream.model import ids
from braidstream.model.ids import LAST, MAX, ZERO, Id

Place = tuple[int, str]  # writer and kind: a strand
Key = tuple[Id, int, str]  # an entry: its ID, and the strand it stands in; they sort as readers see them
NOBODY: Final = b""  # the owner of entries that XNACK returned
MOST: Final = 2**63 - 1  # deliveries of what was given back as FATAL


class TooSmall(Exception):
    """The ID is not after the strand's last one."""


def place(key: Key) -> Place:
    return key[1:]


@dataclass
class Held:
    """One entry in a pending list."""

    consumer: bytes
    times: int = 1
    old: bool = False

    @property
    def times_and_one(self) -> int:
        return min(self.times + 1, MOST)


@dataclass
class Group:
    """A group of one stream. `start` is where it begins on strands that come to be later."""

    start: Id
    at: dict[Place, Id]
    held: dict[Key, Held] = field(default_factory=dict)
    given: set[Key] = field(default_factory=set)  # as new, since the group was made or moved
    knows_lag: bool = True

    def unread(self, entries: Iterable[Key]) -> list[Key]:
        return sorted(key for key in entries if key[0] > self.at.get(place(key), self.start))

    @property
    def last(self) -> Id:
        return max([self.start, *self.at.values()])

    def own(self, consumer: bytes, after: Id = ZERO) -> list[Key]:
        return [key for key in sorted(self.held) if self.held[key].consumer == consumer and key[0] > after]

    def pending(self, start: Id = ZERO, end: Id = LAST) -> list[Key]:
        return [key for key in sorted(self.held) if start <= key[0] <= end]


@dataclass
class Stream:
    """One stream as one region sees it. Methods are the commands; what they return, the replies."""

    exists: bool = False
    entries: dict[Key, bytes] = field(default_factory=dict)
    ends: dict[Place, Id] = field(default_factory=dict)
    groups: dict[bytes, Group] = field(default_factory=dict)
    added: int = 0
    max_deleted: Id = ZERO

    @property
    def last(self) -> Id:
        return max(self.ends.values(), default=ZERO)

    @property
    def newest(self) -> Id:
        """The largest ID of an entry there is."""
        return max((key[0] for key in self.entries), default=LAST)

    def end(self, where: Place) -> Id:
        return self.ends.get(where, ZERO)

    def next_in(self, ms: int, where: Place) -> Id:
        """What `ms-*` stands for."""
        last_ms, seq = self.end(where)
        if last_ms > ms or (last_ms, seq) == (ms, MAX):
            raise TooSmall
        return (ms, seq + 1) if last_ms == ms else (ms, 0)

    def add(self, key: Key, value: bytes) -> None:
        if key[0] <= self.end(place(key)):
            raise TooSmall
        self.entries[key], self.ends[place(key)] = value, key[0]
        self.exists, self.added = True, self.added + 1

    def keys(self, wanted: Iterable[Id]) -> list[Key]:
        """The entries with these IDs, in the order of the IDs; regions may have chosen the same ID."""
        return [key for entry in wanted for key in sorted(self.entries) if key[0] == entry]

    def delete_entries(self, wanted: Iterable[Id]) -> int:
        gone = self.keys(wanted)
        self.max_deleted = max([self.max_deleted, *(key[0] for key in gone)])
        return self._remove(gone)

    def trim_to(self, length: int) -> int:
        return self._remove(sorted(self.entries)[: max(0, len(self.entries) - length)])

    def trim_before(self, entry: Id) -> int:
        return self._remove([key for key in self.entries if key[0] < entry])

    def _remove(self, gone: Iterable[Key]) -> int:
        return len([self.entries.pop(key) for key in set(gone)])

    def delete(self) -> int:
        existed = self.exists
        self.__init__()  # type: ignore[misc]
        return int(existed)

    def set_last(self, entry: Id, where: Place, *, added: int | None, deleted: Id | None) -> None:
        if entry < self.last:
            raise TooSmall
        self.ends[where] = entry
        self.added = self.added if added is None else added
        self.max_deleted = deleted or self.max_deleted

    def between(self, start: Id = ZERO, end: Id = LAST, count: int | None = None) -> list[Key]:
        return [key for key in sorted(self.entries) if start <= key[0] <= end][:count]

    def between_back(self, start: Id = ZERO, end: Id = LAST, count: int | None = None) -> list[Key]:
        return self.between(start, end)[::-1][:count]

    def after(self, position: Id, count: int | None = None) -> list[Key]:
        return [key for key in sorted(self.entries) if key[0] > position][:count]

    def shown(self, keys: Iterable[Key]) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Entries as redis-py shows them; each has one field."""
        return [(ids.text(key[0]), {b"v": self.entries[key]}) for key in keys]

    # Groups

    def create_group(self, group: bytes, start: Id | None) -> None:
        """`start` None is `$`: after all there is. A strand that is not there yet is read from its start."""
        self.exists = True
        self.groups[group] = Group(start or ZERO, self._position(start))

    def move_group(self, group: bytes, start: Id | None) -> None:
        moved = self.groups[group]
        moved.start, moved.at, moved.given = start or ZERO, self._position(start), set()

    def _position(self, start: Id | None) -> dict[Place, Id]:
        return dict(self.ends) if start is None else dict.fromkeys(self.ends, start)

    def read_new(self, group: bytes, consumer: bytes, count: int | None, *, noack: bool) -> list[Key]:
        taken = self.groups[group].unread(self.entries)[:count]
        self._give(group, consumer, taken, noack=noack)
        return taken

    def read_these(
        self, group: bytes, consumer: bytes, count: int | None, seen: list[tuple[Id, bytes]], *, noack: bool
    ) -> list[Key]:
        """What a reader of several writers' strands may get: of each strand the next entries, in ID order."""
        unread = self.groups[group].unread(self.entries)
        taken = [key for key in unread if (key[0], self.entries[key]) in seen]
        assert [(key[0], self.entries[key]) for key in taken] == seen
        for where in {place(key) for key in taken}:
            mine = [key for key in unread if place(key) == where]
            given = [key for key in taken if place(key) == where]
            assert given == mine[: len(given)], f"skipped an entry of {where}"
        assert count is None or len(taken) <= count
        assert taken or not unread, "there is something"
        if count is None or len({writer for writer, _ in self.ends}) < 2:
            assert taken == unread[:count]
        self._give(group, consumer, taken, noack=noack)
        return taken

    def _give(self, group: bytes, consumer: bytes, taken: list[Key], *, noack: bool) -> None:
        reader = self.groups[group]
        for key in taken:
            reader.at[place(key)] = key[0]
            reader.given.add(key)
            if not noack:
                reader.held[key] = Held(consumer)

    def read_own(self, group: bytes, consumer: bytes, after: Id, count: int | None) -> list[Key]:
        """A consumer's own pending entries. A deleted one has no fields and is not counted."""
        own = self.groups[group].own(consumer, after)[:count]
        for key in own:
            if key in self.entries:
                times = self.groups[group].held[key].times_and_one
                self.groups[group].held[key] = Held(consumer, times)
        return own

    def acknowledge(self, group: bytes, wanted: Iterable[Id]) -> int:
        held = self.groups[group].held
        return len([held.pop(key) for key in sorted(held) if key[0] in set(wanted)])

    def delete_consumer(self, group: bytes, consumer: bytes) -> int:
        reader = self.groups[group]
        return len([reader.held.pop(key) for key in reader.own(consumer)])

    def claim(
        self,
        group: bytes,
        consumer: bytes,
        wanted: Iterable[Id],
        *,
        only_old: bool,
        force: bool,
        justid: bool,
        times: int | None,
        make_old: bool,
        last: Mapping[Place, Id],
    ) -> list[Key]:
        """XCLAIM: each ID in turn. What was deleted from the stream leaves the pending list instead.

        LASTID moves the group on, in every strand as far as its IDs go.
        """
        held, claimed, moved = self.groups[group].held, list[Key](), self.groups[group]
        for where, entry in last.items():
            moved.at[where], moved.knows_lag = max(moved.at.get(where, moved.start), entry), False
        for entry in wanted:
            for key in sorted({key for key in (*held, *self.entries) if key[0] == entry}):
                if key not in self.entries:
                    held.pop(key, None)
                    continue
                if key not in held and not force:
                    continue
                if key in held and only_old and not held[key].old:
                    continue
                before = held.get(key, Held(consumer))
                held[key] = Held(consumer, before.times if justid else before.times_and_one, make_old)
                if times is not None:
                    held[key].times = times
                claimed.append(key)
        return claimed

    def claim_idle(
        self, group: bytes, consumer: bytes, start: Id, *, only_old: bool, count: int, justid: bool
    ) -> tuple[Id, list[Key], list[Key]]:
        """XAUTOCLAIM: (where to go on, claimed, deleted). Walks ten times COUNT entries at most."""
        held, claimed, deleted = self.groups[group].held, list[Key](), list[Key]()
        for walked, key in enumerate(self.groups[group].pending(start)):
            if walked == count * 10 or len(claimed) + len(deleted) == count:
                return key[0], claimed, deleted
            if key not in self.entries:
                del held[key]
                deleted.append(key)
            elif held[key].old or not only_old:
                times = held[key].times if justid else held[key].times_and_one
                held[key] = Held(consumer, times)
                claimed.append(key)
        return ZERO, claimed, deleted

    def give_back(
        self, group: bytes, wanted: Iterable[Id], *, mode: str, force: bool, times: int | None, native: bool
    ) -> int:
        """XNACK: it has no owner any more, and is old enough for all.

        A deleted entry stays pending, and keeps its owner unless the engine itself has XNACK (native).
        """
        held, given = self.groups[group].held, 0
        for entry in wanted:
            for key in sorted({key for key in (*held, *self.entries) if key[0] == entry}):
                if key not in held and not (force and key in self.entries):
                    continue
                given += 1
                if key in self.entries or native:
                    before = held[key].times if key in held else 0
                    silent = before - (
                        0 < before < MOST or (native and before == MOST)
                    )  # ours keeps the fatal
                    after = {"SILENT": silent, "FAIL": before, "FATAL": MOST}[mode]
                    held[key] = Held(NOBODY, after if times is None else times, old=True)
        return given

    def claimable(self, group: bytes, *, only_old: bool) -> list[Key]:
        """What a read with CLAIM may take first."""
        held = self.groups[group].held
        return [key for key in sorted(held) if held[key].old or not only_old]

    def take_over(self, group: bytes, consumer: bytes, claimed: Iterable[Key]) -> None:
        """A read with CLAIM has taken these."""
        held = self.groups[group].held
        for key in claimed:
            held[key] = Held(consumer, held[key].times_and_one)
