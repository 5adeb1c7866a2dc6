"""Slices: the partitions of a read. Each has ranges: strands between two positions, or parts of them.

A large range is split by ID. IDs show times, not numbers of entries, so a plan samples entries: it halves a
range, and the fuller half again, until no cell has much more than its share:

    |.......................|::::|||||||||||||||||::|....|      entries over time
    |           |           |  |  | | | | | | |  |  |    |      cells
    |                             |         |            |      three slices of about equal size
"""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand
from braidstream.plan.plan import Batch, Plan
from braidstream.spark.options import SourceOptions
from braidstream.spark.source.survey import Surveyor
from braidstream.spark.tasks import TASK_ROWS, grouped, tasks_for

# ----------------------------------------------------------------------------------------------------
# Slices

SAMPLE: Final = 64
ROUNDS: Final = 12
FINER: Final = 8  # cells for each slice that is wanted
_SEQ: Final = 2**64


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a strand: after `start`, up to and including `end`.

    first: its first entry when it was planned, if everything before had been trimmed already.
    size: approximate bytes of an entry. weight: the maximum number of entries.
    guarded: whether the reader must detect a trim. count: how many entries were added up to `start`, if
    known.
    """

    strand: Strand
    start: Id
    end: Id
    _: KW_ONLY
    first: Id | None = None
    size: int = 64
    guarded: bool = False
    weight: int = 0
    count: int | None = None


class Slice(InputPartition):
    """Ranges, and the server to read them from (its index in the list of URLs).

    region: that of their counts.
    """

    def __init__(self, parts: Sequence[Range], url: int, region: int | None = None) -> None:
        super().__init__(None)
        self.parts, self.url, self.region = tuple(parts), url, region

    def __repr__(self) -> str:
        first = self.parts[0]
        low, high = ids.text(first.start).decode(), ids.text(first.end).decode()
        more = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return f"Slice({first.strand.key!r} ({low}, {high}]{more})"


@dataclass(frozen=True, slots=True)
class _Cell:
    """Entries after `low` up to `high`: the first one, and the approximate number."""

    low: Id
    high: Id
    first: Id
    count: float
    exact: bool


def split(part: Range, pieces: int) -> Plan[list[Range]]:
    """Split a range into parts of similar size. Some round trips with small samples."""
    cells = yield from _sample(part, [(part.start, part.end)])
    for _ in range(ROUNDS):
        total = sum(cell.count for cell in cells)
        wide = [cell for cell in cells if not cell.exact and cell.count > total / (pieces * FINER / 2)]
        if not wide or len(cells) > pieces * FINER * 2:
            break
        halves = [half for cell in wide for half in _halves(cell)]
        if not halves:
            break
        fresh = yield from _sample(part, halves)
        cells = sorted([cell for cell in cells if cell not in wide] + fresh, key=lambda cell: cell.low)
    return list(_gathered(part, cells, pieces))


def _sample(part: Range, spans: list[tuple[Id, Id]]) -> Plan[list[_Cell]]:
    replies = yield Batch([_page(part, low, high) for low, high in spans], resend=True)
    cells = list[_Cell]()
    for (low, high), reply in zip(spans, replies, strict=True):
        found = [ids.native(entry[0]) for entry in reply]
        if not found:
            continue
        if len(found) < _sample_size(part):
            cells.append(_Cell(low, high, found[0], len(found), exact=True))
        else:
            covered, whole = _number(found[-1]) - _number(found[0]), _number(high) - _number(found[0])
            cells.append(
                _Cell(low, high, found[0], len(found) * max(1.0, whole / max(1, covered)), exact=False)
            )
    return cells


def _sample_size(part: Range) -> int:
    return SAMPLE if part.size < 16_384 else 4


def _page(part: Range, low: Id, high: Id) -> Command:
    return ("XRANGE", part.strand.key, b"(" + ids.text(low), ids.text(high), "COUNT", _sample_size(part))


def _number(entry: Id) -> int:
    return entry[0] * _SEQ + entry[1]


def _halves(cell: _Cell) -> Iterator[tuple[Id, Id]]:
    """Halves by time, from the first entry; within one millisecond by sequence."""
    first, high = cell.first, cell.high
    if first[0] == high[0]:
        middle = (first[0], (first[1] + high[1]) // 2)
    else:
        middle = ((first[0] + high[0]) // 2, ids.MAX)
    if cell.low < middle < high:
        yield cell.low, middle
        yield middle, high


def _gathered(part: Range, cells: list[_Cell], pieces: int) -> Iterator[Range]:
    total, reached = sum(cell.count for cell in cells), 0.0
    cuts: list[tuple[Id, Id | None]] = [(part.start, part.first)]
    for cell in cells:
        if len(cuts) < pieces and reached >= total * len(cuts) / pieces and cell.low > cuts[-1][0]:
            cuts.append((cell.low, cell.first))
        reached += cell.count
    ends: list[Any] = [*cuts, (part.end, None)]
    weight = -(-part.weight // len(cuts))
    for (low, first), (high, _) in pairwise(ends):
        count = part.count if low == part.start else None
        yield replace(part, start=low, end=high, first=first, weight=weight, count=count)


def cut_up(part: Range, size: int) -> Plan[list[Range]]:
    """A range of about `size` entries, as pieces for tasks."""
    pieces = -(-size // TASK_ROWS)
    return [part] if pieces <= 1 else (yield from split(part, pieces))


# ----------------------------------------------------------------------------------------------------
#
# The partitions of a query: large ranges are split, as the user's options ask, and small ones share a task.
#
# `grouped` decides which of them share one.


def partitioned(surveyor: Surveyor, options: SourceOptions, parts: Sequence[Range]) -> list[Slice]:
    """The partitions that read these ranges."""
    made, most = _split_large(surveyor, options, parts), options.max_per_partition
    weights = [each.weight for each in made]
    tasks = tasks_for(sum(weights), options.min_partitions, most)
    where = surveyor.url, surveyor.region
    return [Slice(each, *where) for each in grouped(made, weights, tasks, most)]


def _split_large(surveyor: Surveyor, options: SourceOptions, parts: Sequence[Range]) -> list[Range]:
    """Ranges split for minPartitions, in proportion to their sizes, and for maxEntriesPerPartition."""
    weights, most = [max(1, part.weight) for part in parts], options.max_per_partition
    spare, total = max(0, (options.min_partitions or 0) - len(parts)), sum(weights)
    wanted = [1 + round(spare * weight / total) for weight in weights]
    if most is not None:
        wanted = [max(pieces, -(-weight // most)) for pieces, weight in zip(wanted, weights, strict=True)]
    return [
        each for part, pieces in zip(parts, wanted, strict=True) for each in _split(surveyor, part, pieces)
    ]


def _split(surveyor: Surveyor, part: Range, pieces: int) -> list[Range]:
    if pieces == 1:
        return [part]
    return surveyor.run(lambda: split(part, pieces), part.strand.key)
