"""A strand, the native stream of one writer: builds its commands, reads its replies, merges several.

A strand of kind `s` has generated IDs, which are translated here. A strand of kind `c` has IDs that users
chose, untranslated. Once it was deleted it starts over in a new *life*, under another key. A strand of kind
`t` belongs to a log (model/registry.py): its IDs are offsets, untranslated, its life is an epoch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import hiredis

from braidstream.model import ids, keys
from braidstream.model.ids import TEXT, Id
from braidstream.model.keys import CHOSEN, GENERATED, LOG, PLAIN

# ----------------------------------------------------------------------------------------------------
# A native command: its words, and the bytes that an engine reads.

Command = tuple[bytes | str | int, ...]

# RESP prefixes: `$<length>` of a short word, `*<words>` of a short command.
HEADS: Final = [b"$%d" % length for length in range(4096)]
COUNTS: Final = {b"*%d" % count: count for count in range(1, 257)}

pack_one: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]  # the stub is wrong


def pack(commands: Iterable[Command]) -> bytes:
    return b"".join(map(pack_one, commands))


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


# ----------------------------------------------------------------------------------------------------
# Strand

# An entry under its user ID: (ms, seq, writer, fields). It sorts by the first three.
Entry = tuple[int, int, int, list[bytes]]


def facts(reply: list[Any]) -> dict[bytes, Any]:
    """A reply of names and values (HGETALL, XINFO) as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """The region whose copy of a strand is appended to.

    home: its writer; IDs that it generates later are above the appended ones.
    bell: the stamp of the stream's bell there, needed if the copy is new and has groups to join.
    """

    home: int = 0
    bell: bytes = b""


_NO_TARGET: Final = CopyTarget()


@dataclass(frozen=True, slots=True)
class Strand:
    """The part of a stream that one writer has written."""

    name: bytes
    kind: keys.Kind
    writer: int
    life: int = 0
    key: bytes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", keys.strand(self.name, self.kind, self.writer, self.life))

    def __hash__(self) -> int:
        return hash(self.key)  # which Python computes once

    @property
    def label(self) -> bytes:
        """Its field in the stream's registry: `s1`, `c1`; `t0.1` in epoch 0 of a log."""
        if self.kind == LOG:
            return b"t%d.%d" % (self.life, self.writer)
        return b"%s%d" % (self.kind.encode(), self.writer)

    @property
    def registration(self) -> bytes:
        """Label and life: functions compare it with the registry to detect a stale caller."""
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
    def is_of_log(self) -> bool:
        return self.kind == LOG

    @property
    def is_plain(self) -> bool:
        return self.kind == PLAIN

    def user(self, native: Id) -> Id:
        """The user ID of a native one."""
        return ids.user_of(native, self.writer) if self.kind == GENERATED else native

    def native(self, user: Id) -> Id:
        """The native ID of one of its entries."""
        return ids.native_of(user) if self.kind == GENERATED else user

    def deleted(self, native: Id) -> Id:
        """The user ID of its max-deleted-entry-id. XSETID cannot clear it; 0-1 means none."""
        return ids.ZERO if self.kind == GENERATED and native == (0, 1) else self.user(native)

    def floor(self, user: Id) -> Id:
        """The last native position at or before a user ID."""
        return ids.floor_of(user, self.writer) if self.kind == GENERATED else user

    def rest(self, user: Id) -> Id:
        """The last ID that makes the strand continue after a user ID."""
        return ids.rest_of(user, self.writer) if self.kind == GENERATED else user

    def ceil(self, user: Id) -> Id:
        """The first native position at or after a user ID."""
        return ids.ceil_of(user, self.writer) if self.kind == GENERATED else user

    def exact(self, user: Id) -> Id | None:
        """The native ID of a user ID in this strand; None if the strand cannot contain it."""
        if self.kind == GENERATED and ids.writer_of(user) != self.writer:
            return None
        return self.native(user)

    def native_texts(self, users: Iterable[Id]) -> list[bytes]:
        """The native IDs of those user IDs that this strand may contain."""
        if self.kind == GENERATED:
            return ids.native_texts(users, self.writer)
        return [ids.text(user) for user in users]

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
        target: CopyTarget = _NO_TARGET,
    ) -> Command:
        """Append entries, which follow `after` in the writer's own strand, to a copy of it.

        upto: the last ID of the source; beyond the last entry if later ones were deleted.
        """
        words = list[bytes | str | int]()
        for native, fields in entries:
            words += (native, len(fields), *fields)
        return (*self._apply("bs_strand_apply", after, upto, target), *words)

    def apply_even(self, after: Id, shape: tuple[int, int], target: CopyTarget = _NO_TARGET) -> Command:
        """The same for entries of equal width, without their words: those follow as bytes.

        shape: how many entries, and the fields and values of each.
        """
        return (*self._apply("bs_strand_apply_even", after, ids.ZERO, target), *shape)

    def _apply(self, function: str, after: Id, upto: Id, target: CopyTarget) -> Command:
        where = [keys.meta(self.name), self.key]
        if target.home and self != (own := Strand(self.name, GENERATED, target.home)):
            where.append(own.key)
        if target.bell:
            where.append(keys.bell(self.name, target.bell))
        which = (self.label, self.life, ids.text(after), ids.text(upto), target.bell)
        return ("FCALL", function, len(where), *where, *which)

    def entries(self, reply: list[Any]) -> list[Entry]:
        """A page of entries under their user IDs."""
        read = ids.generated_entries if self.kind == GENERATED else ids.chosen_entries
        return read(reply, self.writer)

    def reply(self, page: list[Any]) -> list[Any]:
        """A page of entries as the user gets it. The same as `reply_entries` of `entries`, in one step."""
        return ids.generated_reply(page, self.writer) if self.kind == GENERATED else page


def plain_strand(name: bytes) -> Strand:
    """A native stream, read as the only strand of its name."""
    return Strand(name, PLAIN, 0)


def strand_of_label(name: bytes, label: bytes, life: int) -> Strand:
    """The strand of a label in the registry. In a log the label contains the life."""
    return Strand(name, keys.kind_of(label[:1]), int(label[1:].rpartition(b".")[2]), life)


@lru_cache(maxsize=10_000)
def strand_of(key: bytes) -> Strand:
    """The strand at a key; a native stream if the key is not ours. Cached: readers use the same few keys."""
    place = keys.parse_strand(key)
    return Strand(key, PLAIN, 0) if place is None else Strand(*place)


# ----------------------------------------------------------------------------------------------------
#
# Merges pages of several strands into one page in ID order. Pure functions.
#
#     s1   1-1        4-1   5-1
#     s2        2-2               6-2       ->   1-1  2-2  3-0  4-1  5-1  6-2
#     c1              3-0
#
# Each page is sorted, so sorting their concatenation merges them (timsort detects the runs). Entries of
# several strands with the same ID are ordered by writer.


def merge_pages(
    pages: Iterable[list[Entry]], count: int | None = None, *, reverse: bool = False
) -> list[Entry]:
    """All entries sorted, or the first `count` of them."""
    filled = [page for page in pages if page]
    merged = filled[0] if len(filled) == 1 else sorted(chain.from_iterable(filled), reverse=reverse)
    return merged if count is None else merged[:count]


def merge_certain(
    pages: Iterable[list[Entry]], unfinished: Iterable[list[Entry]], *, reverse: bool = False
) -> list[Entry]:
    """The merged entries that no unread entry can precede: up to where the first unfinished page ends.

    1 3 5 |        6 is left out: the rest of the first page may contain a smaller ID
    2 4 6
    """
    merged = merge_pages(pages, reverse=reverse)
    ends = [page[-1] for page in unfinished if page]
    if not ends:
        return merged
    if reverse:
        ms, seq, writer, _ = max(ends)
        return merged[: bisect_right(merged, (-ms, -seq, -writer), key=_from_the_end)]
    ms, seq, writer, _ = min(ends)
    return merged[: bisect_left(merged, (ms, seq, writer + 1, []))]


def _from_the_end(entry: Entry) -> tuple[int, int, int]:
    return -entry[0], -entry[1], -entry[2]


def reply_entries(merged: list[Entry]) -> list[Any]:
    """Entries as the user gets them: [id, fields] of each."""
    return [[TEXT % (ms, seq), fields] for ms, seq, _, fields in merged]
