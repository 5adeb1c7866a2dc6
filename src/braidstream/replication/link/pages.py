"""Pages of entries, read once for all links that want the same page at the same time.

The same push wakes all links of a daemon, and they have the same position, so the source is read once, not
once for each peer.

    source      read 1   read 2   read 3   read 4
    gate                 1 is safe         2, 3 are safe
    link                 send 1            send 2, 3

A long strand is read ahead: the next page is read as soon as the page before it has arrived. Its entries are
sent once the region can no longer lose them (gate.py). Where many entries are expected, their bytes are read
and sent without parsing (splice.py), for which numpy is needed. Where few are expected, the new entries of
many strands are read in one exchange (`read_few`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.link.batches import (
    FEW,
    PAGE_BYTES,
    UNMEASURED,
    UNMEASURED_LARGE,
    UNMEASURED_NEAR,
    Appetite,
    Page,
    Part,
    page_command,
    page_of_bytes,
    parse_array,
    parts_of,
)

# How many pages of a strand are being read or wait to be sent.
AHEAD: Final = 3

Answer = tuple[list[Part], dict[bytes, bytes]]
# A strand, and after which ID to read.
Place = tuple[Strand, Id]
Splice = Callable[[bytearray], list[Part] | None]


class Reading:
    """A page that is being read. `read` has the number of its entries, their bytes, and after which ID the
    next page starts (None: it was the last), as soon as it arrived; `answer` has the entries once the region
    can no longer lose them.
    """

    __slots__ = ("_source", "answer", "count", "read")

    def __init__(self, source: "Source", strand: Strand, after: Id, appetite: Appetite) -> None:
        self.count, self._source = appetite.count, source
        self.read: asyncio.Future[tuple[int, int, Id | None]] = asyncio.get_running_loop().create_future()
        page = self._page(strand, after, raw=appetite.many and source.splice is not None)
        self.answer = asyncio.ensure_future(source.engine.run(page))
        self.answer.add_done_callback(self._ended)

    def _page(self, strand: Strand, after: Id, *, raw: bool) -> Plan[Answer]:
        """Read the page first: the registry is then at least as new, so no entry arrives before an older
        deletion. Not in a MULTI, which the engine refuses when memory is full.
        """
        registry, at_once = registry_of(strand.name), self._source.at_once
        if self._source.by_function:
            (more, page), meta = yield Batch(
                [page_of_bytes(strand, after, self.count), registry], resend=True
            )
            parts = parts_of(page)
        else:
            few = min(self.count, at_once)
            page, meta = yield Batch([page_command(strand, after, few), registry], resend=True, raw=raw)
            parts = self._parts(page)
            more = _may_go_on(parts, few)
            if more and few < self.count:
                more = yield from self._read_rest(strand, parts)
                [meta] = yield Batch([registry], resend=True)
        if not self.read.done():
            size = sum(part.size for part in parts)
            self.read.set_result((_entries(parts), size, parts[-1].last if more else None))
        return parts, facts(meta)

    def _read_rest(self, strand: Strand, parts: list[Part]) -> Plan[bool]:
        """Read on until the page is full, by number or by size. Returns whether more may follow."""
        entries, size = _entries(parts), sum(part.size for part in parts)
        raw = self._source.splice is not None
        while size < PAGE_BYTES and entries < self.count:
            few = min(self.count - entries, self._source.at_once)
            [page] = yield Batch([page_command(strand, parts[-1].last, few)], resend=True, raw=raw)
            found = self._parts(page)
            parts += found
            entries += _entries(found)
            size += sum(part.size for part in found)
            if not _may_go_on(found, few):
                return False
        return True

    def _parts(self, page: Page | bytearray) -> list[Part]:
        if not isinstance(page, bytearray):
            return parts_of(page)
        spliced = self._source.splice(page) if self._source.splice else None
        return parts_of(parse_array(page)) if spliced is None else spliced

    def _ended(self, answer: "asyncio.Task[Answer]") -> None:
        self.read.cancel()
        _retrieve(answer)


def _retrieve(answer: "asyncio.Task[Any]") -> None:
    """Else asyncio logs the error of a read for which no link waits any more."""
    if not answer.cancelled():
        answer.exception()


def _entries(parts: list[Part]) -> int:
    return sum(map(len, parts))


def _may_go_on(parts: list[Part], wanted: int) -> bool:
    """Whether more entries may follow those that XRANGE returned."""
    return _entries(parts) == wanted and parts[-1].last != ids.LAST


@dataclass(frozen=True, slots=True)
class Source:
    """at_once: how many entries of unknown size one XRANGE may return. by_function: a page of limited
    size is read in one round trip, which costs the engine more. splice: how replies become calls; None:
    they are parsed."""

    engine: PlanRunner
    at_once: int = UNMEASURED
    by_function: bool = False
    splice: Splice | None = None


def find_splice() -> Splice | None:
    """None without numpy, which is in the extra `replication`."""
    try:
        from braidstream.replication.link.splice import splice
    except ModuleNotFoundError as missing:
        if missing.name != "numpy":
            raise
        return None
    return splice


class Pages:
    """Reads from one engine. No cache: a page is shared only while it is being read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._flying: dict[tuple[bytes, Id, int], Reading] = {}
        self._in_small_steps: Pages | None = None
        self._wanted: dict[Place, None] = {}  # what the next `read_few` reads
        self._next: asyncio.Task[dict[Place, Answer]] | None = None

    @staticmethod
    def of_home(engine: PlanRunner) -> "Pages":
        """Of the region's own server: a round trip costs little, and a reply has no limit."""
        return Pages(Source(engine, UNMEASURED_NEAR, splice=find_splice()))

    @property
    def in_small_steps(self) -> "Pages":
        """The same, for strands with large entries."""
        if self._in_small_steps is None:
            at_once = min(self._source.at_once, UNMEASURED_LARGE)
            self._in_small_steps = Pages(replace(self._source, at_once=at_once))
        return self._in_small_steps

    def read(self, strand: Strand, after: Id, appetite: Appetite, *, alone: bool) -> Reading:
        """New entries, and the registry of that time or later. alone: do not share a read in flight."""
        if alone:
            return Reading(self._source, strand, after, appetite)
        wanted = (strand.key, after, appetite.count)
        reading = self._flying.get(wanted)
        if reading is None:
            reading = self._flying[wanted] = Reading(self._source, strand, after, appetite)
            reading.answer.add_done_callback(lambda _: self._flying.pop(wanted))
        return reading

    async def read_few(self, places: Iterable[Place]) -> dict[Place, Answer]:
        """New entries of many strands, in one exchange. Leaves out strands with FEW or more, or an error.

        Links that ask in the same turn of the loop share the exchange.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._read_wanted())
            self._next.add_done_callback(_retrieve)
        self._wanted.update(dict.fromkeys(places))
        return await asyncio.shield(self._next)

    async def _read_wanted(self) -> dict[Place, Answer]:
        """Runs in the next turn of the loop."""
        wanted, self._wanted, self._next = [*self._wanted], {}, None
        return await self._source.engine.run(_few(wanted))


def _few(places: list[Place]) -> Plan[dict[Place, Answer]]:
    """As in `Reading`, each page comes before its registry."""
    commands = [
        command
        for strand, after in places
        for command in (page_command(strand, after, FEW), registry_of(strand.name))
    ]
    replies = yield Batch(commands, resend=True, attempt=True)
    found = {}
    for place, page, meta in zip(places, replies[::2], replies[1::2], strict=True):
        if not isinstance(page, ReplyError) and not isinstance(meta, ReplyError) and len(page) < FEW:
            found[place] = parts_of(page), facts(meta)
    return found


class Ahead:
    """The pages of one strand, in order, up to the first that is not full.

    alone: share no reads. A page that another link is reading may be older than the state that this link
    has read, and lack entries of that state.
    """

    def __init__(self, pages: Pages, strand: Strand, after: Id, appetite: Appetite, *, alone: bool) -> None:
        self._pages = pages.in_small_steps if appetite.may_be_large else pages
        self._strand, self._appetite, self._alone = strand, appetite, alone
        self._readings: deque[Reading] = deque()
        self._newest: Reading | None = None  # its end is not known yet
        self._after: Id | None = after  # start of the next one
        self._read_on()

    async def take(self) -> Answer | None:
        """The next page, once it is safe; None after the last."""
        if not self._readings:
            return None
        answer = await asyncio.shield(self._readings[0].answer)
        self._readings.popleft()
        self._read_on()
        return answer

    def close(self) -> None:
        """Stop. Shared reads continue for the other links."""
        self._after = self._newest = None
        if self._alone:
            for reading in self._readings:
                reading.answer.cancel()

    def _read_on(self, _: object = None) -> None:
        self._note_end()
        while self._after is not None and len(self._readings) < AHEAD:
            reading = self._pages.read(self._strand, self._after, self._appetite, alone=self._alone)
            reading.read.add_done_callback(self._read_on)
            self._readings.append(reading)
            self._newest, self._after = reading, None
            self._note_end()

    def _note_end(self) -> None:
        """Set the start of the next page, if the newest one has arrived."""
        newest = self._newest
        if newest is None or not newest.read.done() or newest.read.cancelled():
            return
        self._newest, (entries, size, self._after) = None, newest.read.result()
        self._appetite.had(entries, size)
