"""Reads a slice: pages of strands as record batches. Runs in Spark's tasks.

Of a large range the next page is requested while a page is parsed. Each request also reads the head of the
strand, after the page before: if the head is past the start of that page, a trim has overtaken the reader,
and entries may be missing. Small ranges share a round trip, in which each page is followed by its head.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from braidstream.clusters.bulk import RedisError, Server, Wire
from braidstream.engine.address import shown
from braidstream.errors import DataLossError, NotReplicatedError, ReplyError, UnreachableError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.plan import Batch, Plan
from braidstream.spark.options import Servers
from braidstream.spark.source import columns
from braidstream.spark.source.rows import Rows
from braidstream.spark.source.slices import Range, Slice
from braidstream.spark.source.survey import (
    Loss,
    StrandInfo,
    describe,
    find_info,
    info_of,
    look_at,
    missing,
    open_server,
    region_of,
)

PAGE_ROWS, PAGE_BYTES = 5_000, 2 << 20
SHARED = 256  # ranges in a round trip, at most
POLL_S = 0.05


def read(
    part: Slice, servers: Servers, rows_of: Callable[[Strand], Rows], wait_s: float | None
) -> Iterator[pa.RecordBatch]:
    """The entries of a slice, from its server, or from the next one that answers and has them.

    Its server may have lost the end of the slice since it was planned: a replica was promoted. wait_s: how
    long to wait for entries; None to read what there is.
    """
    trouble, count = list[str](), len(servers.urls)
    for turn in range(count):
        at = (part.url + turn) % count
        server = open_server(servers, at)
        try:
            region = region_of(server)
            if wait_s is not None:
                # Of a plain stream nothing arrives later: _Guard detects a loss.
                await_copies(
                    server, [each for each in part.parts if turn or not each.strand.is_plain], wait_s
                )
        except (RedisError, OSError) as error:
            trouble.append(f"{shown(servers.urls[at])}: {error}")
            continue
        try:
            # Another region has counted differently.
            here = part.parts if region == part.region else [replace(each, count=None) for each in part.parts]
            for parts in server.by_node(here, lambda each: each.strand.key):
                yield from _joined(_ranges(server, parts, rows_of))
        finally:
            server.close()
        return
    raise UnreachableError.of(trouble)


def await_copies(server: Server, parts: Sequence[Range], wait_s: float) -> None:
    """Wait until this server's copies of the strands have all entries of the ranges."""
    deadline = time.monotonic() + wait_s
    while parts:
        infos = look_at(server, (part.strand.name for part in parts))
        found = {part: find_info(infos, part.strand) for part in parts}
        parts = [part for part, info in found.items() if max(info.last, info.cut) < part.end]
        if parts and time.monotonic() > deadline:
            raise _not_replicated(server, parts[0], found[parts[0]], wait_s)
        if parts:
            time.sleep(POLL_S)


def _not_replicated(server: Server, part: Range, info: StrandInfo, wait_s: float) -> NotReplicatedError:
    has = ids.text(info.last).decode() if info.there else "nothing"
    return NotReplicatedError(
        f"stream {part.strand.name.decode('utf-8', 'replace')}, writer {part.strand.writer}: this "
        f"batch ends at {ids.text(part.end).decode()}, {shown(server.url)} has {has} after "
        f"{wait_s:g} s. Nothing is lost: start the query again when the region has caught up, or "
        "raise replicationWait."
    )


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches joined to about a page: Spark spends more on a batch than on a few rows."""
    some, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if some and (rows + len(batch) > PAGE_ROWS or size + batch.nbytes > PAGE_BYTES):
            yield _one(some)
            some, rows, size = [], 0, 0
        some.append(batch)
        rows += len(batch)
        size += batch.nbytes
    if some:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [made] = pa.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    return made


def _ranges(
    server: Server, parts: Sequence[Range], rows_of: Callable[[Strand], Rows]
) -> Iterator[pa.RecordBatch]:
    """The entries of ranges on one node."""
    with server.wire(parts[0].strand.key) as wire:
        for some in _shared(parts):
            if len(some) == 1:
                yield from _pages(wire, _Guard(server, some[0]), rows_of(some[0].strand), some[0].start)
            else:
                yield from _small(server, wire, some, rows_of)


def _shared(parts: Sequence[Range]) -> Iterator[list[Range]]:
    """Ranges that share a round trip: together they have about a page at most."""
    some, size = list[Range](), 0
    for part in parts:
        most = _first_count(part) * part.size
        if some and (size + most > PAGE_BYTES or len(some) == SHARED):
            yield some
            some, size = [], 0
        some.append(part)
        size += most
    if some:
        yield some


def _first_count(part: Range) -> int:
    """How many entries to request first: one more than there should be, up to a page."""
    return max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, part.size), part.weight + 1))


def _small(
    server: Server, wire: Wire, parts: Sequence[Range], rows_of: Callable[[Strand], Rows]
) -> Iterator[pa.RecordBatch]:
    """The entries of small ranges: their first pages in one round trip, and more if there is more."""
    guards = [_Guard(server, part) for part in parts]
    commands = list[Command]()
    for part, guard in zip(parts, guards, strict=True):
        commands += (page_command(part, part.start, _first_count(part)), *guard.head(part.start))
    replies = iter(wire.ask(commands))
    for part, guard in zip(parts, guards, strict=True):
        page, rows = columns.parse(next(replies)), rows_of(part.strand)
        head = next(replies) if part.guarded else bytearray()
        guard.check_start(page)
        if len(page):
            yield rows.batch(page)
            guard.check_head(head, page)
        end = page.id(-1) if len(page) else part.start
        if len(page) < _first_count(part):
            guard.check_end(end)
        else:
            yield from _pages(wire, guard, rows, end)


def _pages(wire: Wire, guard: "_Guard", rows: Rows, cursor: Id) -> Iterator[pa.RecordBatch]:
    """The entries of a range after a position, page by page."""
    part = guard.part
    count = max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, part.size)))
    reply = wire.receive(wire.send(page_command(part, cursor, count)))
    while True:
        guess = columns.last_id(reply)
        mark = None if guess is None else wire.send(*guard.head(cursor), page_command(part, guess, count))
        page = columns.parse(reply)
        if cursor == part.start:
            guard.check_start(page)
        if not len(page):
            guard.check_end(cursor)
            return
        end = page.id(-1)
        if end != guess:  # a value looked like an entry
            if mark is not None:
                wire.receive(mark)
            mark = wire.send(*guard.head(cursor), page_command(part, end, count))
        cursor = end
        count = max(1, min(PAGE_ROWS, PAGE_BYTES * len(page) // max(1, len(reply))))
        yield rows.batch(page)
        assert mark is not None
        reply = wire.receive(mark)
        guard.check_head(reply, page)


def page_command(part: Range, after: Id, count: int) -> Command:
    return ("XRANGE", part.strand.key, b"(" + ids.text(after), ids.text(part.end), "COUNT", count)


class _Guard:
    """Detects a trim that removes entries of a slice before they are read."""

    def __init__(self, server: Server, part: Range) -> None:
        self.server, self.part = server, part
        self.page_start, self.count = part.start, part.count
        self.excused = False

    def head(self, cursor: Id) -> tuple[Command, ...]:
        """The command that shows whether an entry is left at or before the start of a page."""
        if not self.part.guarded:
            return ()
        return (("XRANGE", self.part.strand.key, "-", ids.text(cursor), "COUNT", 1),)

    def check_start(self, page: columns.Page) -> None:
        """Check that the first page begins with the entry that it had when it was planned."""
        first = self.part.first
        if not self.part.guarded or first is None:
            return
        if len(page) and page.id(0) == first:
            self.excused = True  # everything before it had been read and trimmed
        else:
            self._check_loss(f"entry {ids.text(first).decode()} was there when the batch was planned")
            self.excused = True

    def check_head(self, reply: bytearray, page: columns.Page) -> None:
        """After a page: check that an entry before it is left, so that no trim has reached the page."""
        if not self.part.guarded:
            return
        is_left = columns.take_first(reply)
        if not is_left and not self.excused:
            self._check_loss("a trim overtook the reader")
        self.excused = False
        self.page_start = page.id(-1)
        self.count = None if self.count is None else self.count + len(page)

    def check_end(self, cursor: Id) -> None:
        """After the last page: check that no entries up to the end of the slice were removed."""
        if self.part.guarded and cursor < self.part.end:
            self._check_loss("a trim overtook the reader")

    def _check_loss(self, how: str) -> None:
        """Entries before a page are gone, by a trim or by XDEL: DataLossError if the counters show a trim."""

        def plan() -> Plan[StrandInfo]:
            [reply] = yield Batch([self.part.strand.xinfo()], resend=True)
            return info_of(facts(reply), ids.ZERO)

        try:
            info = self.server.run(plan(), self.part.strand.key)
        except ReplyError:
            loss: Loss | None = Loss.DELETED
        else:
            is_cut_off = self.part.strand.is_plain and info.last < self.part.end
            loss = Loss.DELETED if is_cut_off else missing(self.page_start, info, self.count)
        if loss is not None:
            text = describe(loss, self.part.strand, self.page_start, self.part.end)
            raise DataLossError(f"{text} It happened while the batch was read: {how}.")
