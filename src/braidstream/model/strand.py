"""One writer's native stream: builds its commands, reads its replies, never sends.

A strand of kind `s` holds minted IDs: native inside, translated here. A strand of kind `c` holds IDs
that users chose, as they are, and may start over in a next *life* once it was deleted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.keys import CHOSEN, GENERATED, PLAIN

# An entry on its way to the user: (ms, seq, writer, fields). The first three order it.
Entry = tuple[int, int, int, list[bytes]]


def facts(reply: list[Any]) -> dict[bytes, Any]:
    """What the engine tells in pairs (HGETALL, XINFO), by name."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """What an append to a copy needs to know of the region where the copy is.

    home: its writer; what it mints from then on is above what was appended.
    bell: the stamp of the stream's bell there. A copy that is made, and has groups to join, takes it.
    """

    home: int = 0
    bell: bytes = b""


_NOWHERE: Final = CopyTarget()


@dataclass(frozen=True, slots=True)
class Strand:
    """A writer's share of a stream."""

    name: bytes
    kind: keys.Kind
    writer: int
    life: int = 0
    key: bytes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", keys.strand(self.name, self.kind, self.writer, self.life))

    @property
    def label(self) -> bytes:
        """Its field in the stream's registry."""
        return b"%s%d" % (self.kind.encode(), self.writer)

    @property
    def registration(self) -> bytes:
        """How a function checks that we know the strand as the registry does."""
        return b"%s:%d" % (self.label, self.life)

    @property
    def next_life(self) -> "Strand":
        return Strand(self.name, self.kind, self.writer, self.life + 1)

    @property
    def has_generated_ids(self) -> bool:
        return self.kind == GENERATED

    @property
    def has_chosen_ids(self) -> bool:
        return self.kind == CHOSEN

    @property
    def is_plain(self) -> bool:
        return self.kind == PLAIN

    def user(self, native: Id) -> Id:
        """The ID users see."""
        return ids.user_of(native, self.writer) if self.kind == GENERATED else native

    def native(self, user: Id) -> Id:
        """The native ID of one of its entries."""
        return ids.native_of(user) if self.kind == GENERATED else user

    def deleted(self, native: Id) -> Id:
        """Its max-deleted-entry-id as users see it. XSETID cannot take one away; it leaves 0-1 for none."""
        return ids.ZERO if self.kind == GENERATED and native == (0, 1) else self.user(native)

    def floor(self, user: Id) -> Id:
        """The last native position at or before a user ID."""
        return ids.floor_of(user, self.writer) if self.kind == GENERATED else user

    def rest(self, user: Id) -> Id:
        """The last ID to give the strand so that it goes on after a user ID."""
        return ids.rest_of(user, self.writer) if self.kind == GENERATED else user

    def ceil(self, user: Id) -> Id:
        """The first native position at or after a user ID."""
        return ids.ceil_of(user, self.writer) if self.kind == GENERATED else user

    def exact(self, user: Id) -> Id | None:
        """The native ID that an entry with this user ID would have here; None if it cannot stand here."""
        if self.kind == GENERATED and ids.writer_of(user) != self.writer:
            return None
        return self.native(user)

    def xlen(self) -> Command:
        return ("XLEN", self.key)

    def xinfo(self, *full: bytes | str | int) -> Command:
        return ("XINFO", "STREAM", self.key, *full)

    def xrange(self, start: Id, end: Id, count: int | None = None, *, reverse: bool = False) -> Command:
        low, high = ids.text(self.ceil(start)), ids.text(self.floor(end))
        limit = () if count is None else ("COUNT", count)
        return (
            ("XREVRANGE", self.key, high, low, *limit) if reverse else ("XRANGE", self.key, low, high, *limit)
        )

    def apply(
        self,
        after: Id,
        entries: Iterable[tuple[bytes, Sequence[bytes]]],
        upto: Id,
        there: CopyTarget = _NOWHERE,
    ) -> Command:
        """Append entries of the writer's own strand, which follow `after` there, to our copy of it.

        upto: where the source stands after them: further than the last, if what followed was deleted.
        """
        words = list[bytes | str | int]()
        for native, fields in entries:
            words += (native, len(fields), *fields)
        where = [keys.meta(self.name), self.key]
        if there.home and self != (own := Strand(self.name, GENERATED, there.home)):
            where.append(own.key)
        if there.bell:
            where.append(keys.bell(self.name, there.bell))
        which = (self.label, self.life, ids.text(after), ids.text(upto), there.bell)
        return ("FCALL", "bs_strand_apply", len(where), *where, *which, *words)

    def entries(self, reply: list[Any]) -> list[Entry]:
        """A page of entries, with the IDs users see."""
        read = ids.generated_entries if self.kind == GENERATED else ids.chosen_entries
        return read(reply, self.writer)


def strand_of_label(name: bytes, label: bytes, life: int) -> Strand:
    """The strand that the registry of a stream lists under a label."""
    return Strand(name, keys.kind_of(label[:1]), int(label[1:]), life)


@lru_cache(maxsize=10_000)
def strand_of(key: bytes) -> Strand:
    """The strand that lies at a key. A reader meets the same few again and again."""
    place = keys.parse_strand(key)
    assert place is not None, key
    return Strand(*place)
