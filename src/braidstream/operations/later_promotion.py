"""Entries for later (model/later.py): reads those that wait, and promotes them when they are due.

{orders}.later  --- read, in pages --->  when each is due  --- promote --->  appended to orders, deleted
"""

import heapq
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidstream.commands.xadd_idempotent import changed_settings, user_id
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.later import due_of
from braidstream.model.registry import parse_each
from braidstream.model.strand import Command, Strand
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import read_registry, refuse_other_types, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import STALE, Retries
from braidstream.plan.view import View

# Entries of a page, first and at most: a page grows while its entries are small.
_FIRST, _MOST = 10, 500
_PAGE_BYTES: Final = 256 * 1024
# Producers of promotions; each remembers 100 (IDMP-MAXSIZE). So of each stream more than the last 10,000 are
# known: as many as a journal tells the other regions.
_LANES: Final = 256
# How soon a refused entry is tried again.
AGAIN_MS: Final = 10_000
# The most entries in the heap, a few hundred bytes each; what is due later is read again when it has shrunk.
_KEPT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting entry. due_ms: None if it cannot be read, and `why`. group: the only one that gets it."""

    strand: Strand
    id: Id
    due_ms: int | None
    group: bytes | None = None
    why: str = ""

    @staticmethod
    def parse(strand: Strand, entry: bytes, words: Sequence[bytes]) -> "Waiting":
        native = ids.native(entry)
        try:
            return Waiting(strand, native, *due_of(native[0], words))
        except ValueError as error:
            return Waiting(strand, native, None, why=str(error))

    @property
    def user_id(self) -> str:
        """Its ID, as users see it."""
        return ids.text(self.strand.user(self.id)).decode()


# When it is due or tried again, its ID, the key of its strand, its group.
Item = tuple[int, Id, bytes, bytes | None]


class Soon:
    """What is due soon. read: how far each strand was read. upto_ms: what is due later was left out."""

    def __init__(self) -> None:
        self.heap, self.read = list[Item](), dict[Strand, Id]()
        self.strands = dict[bytes, Strand]()
        self.upto_ms: int | None = None

    def add(self, waiting: Waiting) -> None:
        if waiting.due_ms is None or (self.upto_ms is not None and waiting.due_ms > self.upto_ms):
            return
        self.strands[waiting.strand.key] = waiting.strand
        heapq.heappush(self.heap, (waiting.due_ms, waiting.id, waiting.strand.key, waiting.group))
        if len(self.heap) > _KEPT:
            self.heap = heapq.nsmallest(_KEPT // 2, self.heap)  # sorted, so it is a heap
            self.upto_ms = self.heap[-1][0]

    @property
    def must_read(self) -> bool:
        """Whether what was left out may be due soon."""
        return self.upto_ms is not None and len(self.heap) < _KEPT // 8

    def take(self, now_ms: int, most: int) -> list[Item]:
        """What is due."""
        found = list[Item]()
        while self.heap and self.heap[0][0] <= now_ms and len(found) < most:
            found.append(heapq.heappop(self.heap))
        return found

    def give_back(self, items: Iterable[Item], at_ms: int) -> None:
        """Try them again then."""
        for _, entry, key, group in items:
            heapq.heappush(self.heap, (at_ms, entry, key, group))


def find_strands(names: Sequence[bytes]) -> Plan[dict[bytes, tuple[Strand, ...]]]:
    """The strands of streams. One that cannot be read is left out. One round trip."""
    replies = yield Batch([registry_of(name) for name in names], resend=True, attempt=True)
    read = {
        name: reply for name, reply in zip(names, replies, strict=True) if not isinstance(reply, ReplyError)
    }
    found = parse_each(read, read.values())
    return {name: () if each.is_log else each.strands for name, each in found.items()}


def read_waiting(strand: Strand, after: Id, take: Callable[[Waiting], None]) -> Plan[Id]:
    """Take every entry after an ID. Returns the last ID."""
    count = _FIRST
    while True:
        start = b"(" + ids.text(after) if after != ids.ZERO else b"-"
        [page] = yield Batch([("XRANGE", strand.key, start, "+", "COUNT", count)], resend=True)
        size = 0
        for entry, words in page:
            waiting = Waiting.parse(strand, entry, words)
            take(waiting)
            after, size = waiting.id, size + sum(map(len, words))
        if len(page) < count or after == ids.LAST:
            return after
        count = min(_MOST, 2 * count) if size < _PAGE_BYTES else max(1, count * _PAGE_BYTES // (2 * size))


def promote(
    view: View, target: bytes, due: Sequence[tuple[Strand, Id]]
) -> Plan[list[bytes | ReplyError | None]]:
    """Append waiting entries to their stream, and delete them. Two round trips.

    Returns for each its new ID, or why it stays; None if it was not there any more. It may be sent again: an
    entry that was promoted is not there. ReplyError if the stream takes none of them.
    """
    registry = yield from read_registry(view, target)
    home, results, todo = view.home(target), dict[int, Any](), list(range(len(due)))
    settings = registry.settings.current(has_peers=bool(view.region.journal_writer))
    retries = Retries(f"others kept deleting {target!r}, or changing its settings")
    while todo:
        retries.count()
        if registry.is_log:
            raise ReplyError(f"ERR {target.decode('utf-8', 'backslashreplace')} is a log")
        if not registry.exists:
            yield from _refuse_taken(target)
        ensure = ensure_command(home, registry.bell, plain=False, known=home in registry.cuts)
        calls = [_call(view, home, settings.text, settings.era, *due[at]) for at in todo]
        first, *replies = yield Batch([ensure, *calls], resend=True, attempt=True)
        if isinstance(first, ReplyError) and first.code not in STALE:
            raise first
        for at, reply in zip(todo, replies, strict=True):
            if isinstance(reply, ReplyError) and reply.code in STALE:
                settings = changed_settings(reply) or settings
            else:
                results[at] = user_id(reply, home.writer) if isinstance(reply, bytes) else reply
        todo = [at for at in todo if at not in results]
        if todo:
            view.forget_strand(home)
            registry = yield from read_registry(view, target)
    return [results[at] for at in range(len(due))]


def _refuse_taken(name: bytes) -> Plan[None]:
    """WRONGTYPE if a stream that does not exist has the name of a plain key. A daemon may read no more of
    plain keys than the length of a stream."""
    [length] = yield Batch([("XLEN", name)], resend=True, attempt=True)
    if length != 0:
        yield from refuse_other_types(name)


def _call(view: View, home: Strand, settings: bytes, era: int, strand: Strand, entry: Id) -> Command:
    journal_writer, name = view.region.journal_writer, b"%b %b" % (strand.registration, ids.text(entry))
    producer = b"later/%d" % (zlib.crc32(name) % _LANES)
    journals = [keys.journal(each.name, journal_writer) for each in (home, strand)] if journal_writer else []
    known = keys.known_messages(home.name, era, producer)
    where = (strand.key, keys.meta(home.name), home.key, *known, keys.about(home.name), *journals)
    words = (strand.registration, ids.text(entry), settings, home.writer, producer)
    return ("FCALL", "bs_later_promote", len(where), *where, *words)
