"""A log, looked up: its registry, the part of its strands that counts, and its first and last offset here.

An epoch ends where the next one begins. What a strand has beyond that was written by a region that was no
longer the home, and is not part of the log:

    t0.1    1 2 3 4 5 6 | 7 8           region 1 went on after it was declared lost
    t1.2              7 8 9 10          epoch 1 begins at 7
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from braidstream.commands.arguments import fail
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.command import Command
from braidstream.model.keys import LOG
from braidstream.model.meta import Registry
from braidstream.model.offset_log import LAST_OFFSET, SEALED, ends_of, offset_id, offset_of
from braidstream.model.strand import Strand, facts
from braidstream.protocol.lookup import WRONGTYPE, find_registry, read_registry, refuse_other_types
from braidstream.protocol.plan import Plan
from braidstream.protocol.stream_view import View


def find_log(view: View, name: bytes) -> Plan[Registry]:
    """The registry of a log, which may not exist. WRONGTYPE if the name is a stream or a plain key."""
    registry = yield from find_registry(view, name)
    if registry.exists and not registry.is_log and view.carriage.may_look_again:
        # We are about to refuse a stream: it may be a log by now.
        view.forget(name)
        registry = yield from read_registry(view, name)
    yield from refuse_others(view, name, registry)
    return registry


def refuse_others(view: View, name: bytes, registry: Registry) -> Plan[None]:
    if registry.is_log:
        return
    if registry.exists:
        fail(WRONGTYPE)
    if not view.carriage.has_looked:
        yield from refuse_other_types(name)
    elif view.carriage.is_plain_key(name):
        fail(WRONGTYPE)


@dataclass(frozen=True, slots=True)
class Segment:
    """The offsets of a log that one strand has, both inclusive."""

    strand: Strand
    first: int
    last: int

    @property
    def is_open(self) -> bool:
        """Whether entries are still written to it."""
        return self.last == LAST_OFFSET

    def within(self, first: int, last: int) -> "Segment | None":
        """The part between two offsets."""
        low, high = max(self.first, first), min(self.last, last)
        return Segment(self.strand, low, high) if low <= high else None

    def xrange(self, *limit: str | int) -> Command:
        return ("XRANGE", self.strand.key, offset_id(self.first), offset_id(self.last), *limit)

    def xrevrange(self, *limit: str | int) -> Command:
        return ("XREVRANGE", self.strand.key, offset_id(self.last), offset_id(self.first), *limit)


def segments(name: bytes, registry: Registry) -> list[Segment]:
    """The segments of a log, oldest first. The last one has no end."""
    found = zip(registry.epochs, ends_of(registry.epochs), strict=True)
    return [
        Segment(Strand(name, LOG, epoch.writer, epoch.number), epoch.first, last)
        for epoch, last in found
        if epoch.first <= last
    ]


@dataclass(frozen=True, slots=True)
class Extent:
    """The first and the last offset that this region has. An empty log: last + 1 and last.

    ends_in: the segment that the log ends in here; None if there is no log.
    """

    first: int
    last: int
    ends_in: Segment | None = None

    @property
    def limit(self) -> int:
        """Entries beyond have arrived before earlier ones."""
        return LAST_OFFSET if self.ends_in is None else self.ends_in.last


def extent_of(registry: Registry, parts: list[Segment], infos: list[Any]) -> Extent:
    """infos: the replies of XINFO STREAM for each segment, errors as values.

    The log ends where a segment is not complete: what follows it has arrived before the rest of it.
    """
    first, last, ends_in = 0, 0, None
    for part, reply in zip(parts, infos, strict=True):
        head, end = _ends_of(registry, part, reply)
        ends_in = part
        if head is not None and not first:
            first = head
        if end is not None:
            last = max(last, end)
        if end is None or end < part.last:
            break
    return Extent(first or last + 1, last, ends_in)


def _ends_of(registry: Registry, part: Segment, reply: Any) -> tuple[int | None, int | None]:
    """The first entry of a segment here, and its last offset so far; None if it has not arrived."""
    if isinstance(reply, ReplyError):
        if not reply.text.startswith("ERR no such key"):
            raise reply
        cut = registry.cuts.get(part.strand)
        return None, None if cut is None else _last_of(cut, part)
    info = facts(reply)
    head = info[b"first-entry"]
    first = offset_of(head[0]) if head else None
    if first is not None and not part.first <= first <= part.last:
        first = None
    return first, _last_of(ids.native(info[b"last-generated-id"]), part)


def _last_of(last: ids.Id, part: Segment) -> int:
    return part.last if last >= SEALED else min(max(last[1], part.first - 1), part.last)


def about_log(name: bytes, registry: Registry, answers: list[tuple[Strand, Any]]) -> dict[bytes, Any]:
    """What XINFO STREAM says of a log beside the facts of a stream."""
    parts, known = segments(name, registry), dict(answers)
    missing = ReplyError("ERR no such key")
    extent = extent_of(registry, parts, [known.get(part.strand, missing) for part in parts])
    home = registry.home
    assert home is not None
    return {
        b"home": home.writer,
        b"epoch": home.number,
        b"first-offset": extent.first,
        b"last-offset": extent.last,
        b"pending-max": registry.log.pending,
        b"backlog": registry.log.backlog,
        b"max-age": registry.log.max_age_ms,
    }


def infos(parts: list[Segment]) -> Iterator[Command]:
    return (part.strand.xinfo() for part in parts)
