"""Reads a slice: pages of a strand as record batches. Runs in Spark's tasks.

The next page is requested while a page is parsed. Each request also reads the head of the strand, after the
page
before: if the head is past the start of that page, a trim has overtaken the reader, and entries may be
missing.
"""

import time
from collections.abc import Iterator

import pyarrow as pa

from braidstream.errors import DataLossError, NotReplicatedError, ReplyError, UnreachableError
from braidstream.model import ids
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.strand import facts
from braidstream.net.bulk import RedisError, Server, shown
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.options import Servers
from braidstream.spark.source import columns
from braidstream.spark.source.data_loss import Loss, describe, missing
from braidstream.spark.source.rows import Rows
from braidstream.spark.source.slices import Range, Slice
from braidstream.spark.source.strand_info import StrandInfo, find_info, info_of
from braidstream.spark.source.survey import look, open_server, region_of

PAGE_ROWS, PAGE_BYTES = 5_000, 2 << 20
POLL_S = 0.05


def read(part: Slice, servers: Servers, rows: Rows, wait_s: float | None) -> Iterator[pa.RecordBatch]:
    """The entries of a slice, from its server, or from the next one that answers and has them.

    Its server may have lost the end of the slice since it was planned: a replica was promoted. wait_s: how
    long to wait for entries; None to read what there is.
    """
    trouble, count = list[str](), len(servers.urls)
    for turn in range(count):
        at = (part.url + turn) % count
        server = open_server(servers, at)
        try:
            if wait_s is not None and (turn or not part.part.strand.is_plain):
                await_copy(server, part.part, wait_s)
            else:  # of a plain stream nothing arrives later: _Guard detects a loss
                region_of(server)
        except (RedisError, OSError) as error:
            trouble.append(f"{shown(servers.urls[at])}: {error}")
            continue
        try:
            yield from _pages(server, part.part, rows)
        finally:
            server.close()
        return
    raise UnreachableError.of(trouble)


def await_copy(server: Server, part: Range, wait_s: float) -> None:
    """Wait until this server's copy of a strand has all entries of the range."""
    deadline = time.monotonic() + wait_s
    while True:
        info = find_info(server.run(look(part.strand.name), part.strand.key), part.strand)
        if max(info.last, info.cut) >= part.end:
            return
        if time.monotonic() > deadline:
            has = ids.text(info.last).decode() if info.there else "nothing"
            raise NotReplicatedError(
                f"stream {part.strand.name.decode('utf-8', 'replace')}, writer {part.strand.writer}: this "
                f"batch ends at {ids.text(part.end).decode()}, {shown(server.url)} has {has} after "
                f"{wait_s:g} s. Nothing is lost: start the query again when the region has caught up, or "
                "raise replicationWait."
            )
        time.sleep(POLL_S)


def _pages(server: Server, part: Range, rows: Rows) -> Iterator[pa.RecordBatch]:
    cursor, guard = part.start, _Guard(server, part)
    count = max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, part.size)))
    with server.wire(part.strand.key) as wire:
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
