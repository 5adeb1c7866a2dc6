"""Pages of entries, read once for all links that want the same page at the same time.

The same push wakes all links of a daemon, and they have the same position, so the source is read once, not
once for each peer.

    source      read 1   read 2   read 3   read 4
    gate                 1 is safe         2, 3 are safe
    link                 send 1            send 2, 3

A long strand is read ahead: the next page is read as soon as the page before it has arrived. Its entries are
sent once the region can no longer lose them (gate.py).
"""

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.ship import (
    PAGE_BYTES,
    UNMEASURED,
    UNMEASURED_LARGE,
    UNMEASURED_NEAR,
    Appetite,
    Page,
    page_command,
    page_of_bytes,
    sizes_of,
)

# How many pages of a strand are being read or wait to be sent.
AHEAD: Final = 3

Answer = tuple[Page, list[int], dict[bytes, bytes]]


class Reading:
    """A page that is being read. `read` has the sizes of its entries, and after which ID the next page starts
    (None: it was the last), as soon as it arrived; `answer` has the entries once the region can no longer
    lose them.
    """

    __slots__ = ("_at_once", "_has_pages", "answer", "count", "read")

    def __init__(self, source: "Source", strand: Strand, after: Id, count: int) -> None:
        self.count, self._at_once, self._has_pages = count, source.at_once, source.has_pages
        self.read: asyncio.Future[tuple[list[int], Id | None]] = asyncio.get_running_loop().create_future()
        self.answer = asyncio.ensure_future(source.engine.run(self._page(strand, after)))
        self.answer.add_done_callback(self._ended)

    def _page(self, strand: Strand, after: Id) -> Plan[Answer]:
        """Read the page, then the registry, which is so at least as new: no entry arrives before an older
        deletion. Without MULTI, which is refused when memory is full.
        """
        registry = registry_of(strand.name)
        if self._has_pages:
            (more, page), meta = yield Batch(
                [page_of_bytes(strand, after, self.count), registry], resend=True
            )
            sizes = sizes_of(page)
        else:
            few = min(self.count, self._at_once)
            page, meta = yield Batch([page_command(strand, after, few), registry], resend=True)
            sizes, more = sizes_of(page), len(page) == few and _last(page) != ids.LAST
            if more and few < self.count:
                more = yield from self._read_rest(strand, page, sizes)
                [meta] = yield Batch([registry], resend=True)
        if not self.read.done():
            self.read.set_result((sizes, _last(page) if more else None))
        return page, sizes, facts(meta)

    def _read_rest(self, strand: Strand, page: Page, sizes: list[int]) -> Plan[bool]:
        """Read on until the page is full, by number or by size. Returns whether more may follow."""
        total = sum(sizes)
        while total < PAGE_BYTES and len(page) < self.count:
            few = min(self.count - len(page), self._at_once)
            [part] = yield Batch([page_command(strand, _last(page), few)], resend=True)
            page += part
            sizes += (measured := sizes_of(part))
            total += sum(measured)
            if len(part) < few or _last(page) == ids.LAST:
                return False
        return True

    def _ended(self, answer: "asyncio.Task[Answer]") -> None:
        self.read.cancel()
        if not answer.cancelled():
            answer.exception()  # retrieve it: no link may be waiting any more


def _last(page: Page) -> Id:
    return ids.native(page[-1][0])


@dataclass(frozen=True, slots=True)
class Source:
    """at_once: how many entries of unknown size one XRANGE may return. has_pages: a function reads a page of
    limited size in one round trip."""

    engine: PlanRunner
    at_once: int = UNMEASURED
    has_pages: bool = False


class Pages:
    """Reads from one engine. No cache: a page is shared only while it is being read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._flying: dict[tuple[bytes, Id, int], Reading] = {}
        self._in_small_steps: Pages | None = None

    @staticmethod
    def of_home(engine: PlanRunner) -> "Pages":
        """Of the region's own server: a round trip costs little, and a reply has no limit."""
        return Pages(Source(engine, UNMEASURED_NEAR))

    @property
    def in_small_steps(self) -> "Pages":
        """The same, for strands with large entries."""
        if self._in_small_steps is None:
            at_once = min(self._source.at_once, UNMEASURED_LARGE)
            self._in_small_steps = Pages(replace(self._source, at_once=at_once))
        return self._in_small_steps

    def read(self, strand: Strand, after: Id, count: int, *, alone: bool) -> Reading:
        """New entries, and the registry of that time or later. alone: do not share a read in flight."""
        if alone:
            return Reading(self._source, strand, after, count)
        wanted = (strand.key, after, count)
        reading = self._flying.get(wanted)
        if reading is None:
            reading = self._flying[wanted] = Reading(self._source, strand, after, count)
            reading.answer.add_done_callback(lambda _: self._flying.pop(wanted))
        return reading


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
            reading = self._pages.read(self._strand, self._after, self._appetite.count, alone=self._alone)
            reading.read.add_done_callback(self._read_on)
            self._readings.append(reading)
            self._newest, self._after = reading, None
            self._note_end()

    def _note_end(self) -> None:
        """Set the start of the next page, if the newest one has arrived."""
        newest = self._newest
        if newest is None or not newest.read.done() or newest.read.cancelled():
            return
        self._newest, (sizes, self._after) = None, newest.read.result()
        self._appetite.had(sizes)
