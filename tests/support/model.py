"""The naive stream: a sorted list, and what a stream remembers besides. Slow, and plainly right.

It is what users are promised, however many writers there are: one list of entries in the order of
their IDs, those of one ID by writer. What each writer has added last is kept, because a writer's IDs
ascend and those of different writers need not.
"""

from dataclasses import dataclass, field

from braidstream.model.ids import LAST, MAX, ZERO, Id

Entry = tuple[Id, int, bytes]  # ID, writer, value


class TooSmall(Exception):
    """The ID is not after the writer's last one."""


@dataclass
class Stream:
    """One stream as one region sees it."""

    exists: bool = False
    entries: list[Entry] = field(default_factory=list)
    ends: dict[int, Id] = field(default_factory=dict)
    added: int = 0
    max_deleted: Id = ZERO

    @property
    def last(self) -> Id:
        return max(self.ends.values(), default=ZERO)

    def end(self, writer: int) -> Id:
        return self.ends.get(writer, ZERO)

    def next_in(self, ms: int, writer: int) -> Id:
        """What `ms-*` stands for."""
        last_ms, seq = self.end(writer)
        if last_ms > ms or (last_ms, seq) == (ms, MAX):
            raise TooSmall
        return (ms, seq + 1) if last_ms == ms else (ms, 0)

    def add(self, entry: Id, writer: int, value: bytes) -> None:
        if entry <= self.end(writer):
            raise TooSmall
        self.entries = sorted([*self.entries, (entry, writer, value)])
        self.ends[writer] = entry
        self.exists, self.added = True, self.added + 1

    def delete_entries(self, wanted: list[Id]) -> int:
        gone = [entry for entry in self.entries if entry[0] in wanted]
        self.max_deleted = max([self.max_deleted, *(entry[0] for entry in gone)])
        return self._keep([entry for entry in self.entries if entry not in gone])

    def trim_to(self, length: int) -> int:
        return self._keep(self.entries[max(0, len(self.entries) - length) :])

    def trim_before(self, entry: Id) -> int:
        return self._keep([each for each in self.entries if each[0] >= entry])

    def _keep(self, entries: list[Entry]) -> int:
        gone = len(self.entries) - len(entries)
        self.entries = entries
        return gone

    def delete(self) -> int:
        existed = self.exists
        self.__init__()  # type: ignore[misc]
        return int(existed)

    def set_last(self, entry: Id, writer: int, *, added: int | None, deleted: Id | None) -> None:
        if entry < self.last:
            raise TooSmall
        self.ends[writer] = entry
        self.added = self.added if added is None else added
        self.max_deleted = deleted or self.max_deleted

    def between(self, start: Id = ZERO, end: Id = LAST, count: int | None = None) -> list[Entry]:
        return [entry for entry in self.entries if start <= entry[0] <= end][:count]

    def between_back(self, start: Id = ZERO, end: Id = LAST, count: int | None = None) -> list[Entry]:
        return self.between(start, end)[::-1][:count]

    def after(self, position: Id, count: int | None = None) -> list[Entry]:
        return [entry for entry in self.entries if entry[0] > position][:count]
