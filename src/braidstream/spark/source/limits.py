"""Limits a micro-batch by counting entries and bytes along the strands. Driver only.

An ID does not show how many entries are before it. So to find where a limited batch ends, the driver reads
its entries once. The engine serves the entries of a limited batch twice, unless all of them fit.
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
    """The unread part of one strand: after `start`, up to `end`.

    count: the maximum number of entries. size: approximate bytes of one.
    """

    start: Id
    end: Id
    count: int
    size: int


def cut(
    server: Server, backlogs: Mapping[Strand, Backlog], max_entries: int | None, max_bytes: int | None
) -> dict[Strand, tuple[Id, int]]:
    """{strand: (end, number of entries)}.

    Every strand gets a share by its backlog, the one furthest behind first. At least one entry is read, also
    beyond the limit in bytes: a large one must not stop the query.
    """
    total = max(1, sum(backlog.count for backlog in backlogs.values()))
    if max_bytes is None and max_entries is not None and total <= max_entries:
        return {strand: (backlog.end, backlog.count) for strand, backlog in backlogs.items()}
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
    """Count the entries of a strand up to a position, by reading them."""
    return _walk(server, strand, Backlog(ids.ZERO, end, 0, size), None, None, False)[1]


def _walk(
    server: Server, strand: Strand, backlog: Backlog, most: int | None, room: int | None, must_move: bool
) -> tuple[Id, int, int]:
    """Up to so many entries and bytes of a strand: (their end, number, size)."""
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
