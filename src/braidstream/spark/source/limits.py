"""How much one micro-batch takes: entries and bytes are counted along the strands. Driver only.

An ID tells nothing of the number of entries before it, so where a limit cuts a backlog its entries are
read once for their IDs, on the driver. That costs the engine a second read of what a limited batch holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.net.bulk import Server
from braidstream.spark.source import columns

PAGE_ROWS, PAGE_BYTES = 5_000, 2 << 20


@dataclass(frozen=True, slots=True)
class Backlog:
    """What of one strand is unread: after `start`, up to `end`; about how many, how large."""

    start: Id
    end: Id
    count: int
    size: int


def cut(
    server: Server, backlogs: Mapping[Strand, Backlog], max_entries: int | None, max_bytes: int | None
) -> dict[Strand, tuple[Id, int]]:
    """{strand: (where to stop, how many entries that is)}.

    Every strand gets a share by its backlog, the one that is furthest behind first. Whatever the limit in
    bytes, one entry is taken, or a large one would stop the query for ever.
    """
    total = max(1, sum(backlog.count for backlog in backlogs.values()))
    entries_left, bytes_left = max_entries, max_bytes
    taken = dict[Strand, tuple[Id, int]]()
    for strand, backlog in sorted(backlogs.items(), key=lambda each: each[1].start):
        share = backlog.count / total
        most = None if max_entries is None else min(entries_left or 0, max(1, round(max_entries * share)))
        room = None if max_bytes is None else min(bytes_left or 0, max(1, round(max_bytes * share)))
        end, count, size = _walk(server, strand, backlog, most, room, not any(n for _, n in taken.values()))
        taken[strand] = end, count
        entries_left = None if entries_left is None else entries_left - count
        bytes_left = None if bytes_left is None else max(0, bytes_left - size)
    return taken


def count(server: Server, strand: Strand, end: Id, size: int) -> int:
    """How many entries a strand has up to a position. Reads them."""
    return _walk(server, strand, Backlog(ids.ZERO, end, 0, size), None, None, False)[1]


def _walk(
    server: Server, strand: Strand, backlog: Backlog, most: int | None, room: int | None, must_move: bool
) -> tuple[Id, int, int]:
    """Up to so many entries and bytes of a strand: (where they end, how many, how large)."""
    position, count, size = backlog.start, 0, 0
    page_rows = max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, backlog.size)))
    with server.wire(strand.key) as wire:
        while most is None or count < most:
            wanted = page_rows if most is None else min(page_rows, most - count)
            low, high = b"(" + ids.text(position), ids.text(backlog.end)
            page = columns.parse(wire.receive(wire.send(("XRANGE", strand.key, low, high, "COUNT", wanted))))
            sums = size + np.cumsum(page.sizes)
            fits = len(page) if room is None else int(np.searchsorted(sums, room, side="right"))
            if not fits and must_move and not count and len(page):
                fits = 1
            if fits:
                position, count, size = page.id(fits - 1), count + fits, int(sums[fits - 1])
            if fits < len(page):
                break
            if len(page) < wanted:
                return backlog.end, count, size
    return position, count, size
