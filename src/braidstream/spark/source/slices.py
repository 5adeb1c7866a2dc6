"""Slices: the partitions of a read. Each has ranges: strands between two positions, or parts of them.

A large range is split by ID. IDs show times, not numbers of entries, so a plan samples entries: it halves a
range, and the fuller half again, until no cell has much more than its share:

    |.......................|::::|||||||||||||||||::|....|      entries over time
    |           |           |  |  | | | | | | |  |  |    |      cells
    |                             |         |            |      three slices of about equal size
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

from braidstream.model import ids
from braidstream.model.command import Command
from braidstream.model.frontier import name_of_text, name_text, place_of_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.source.grouping import TASK_ROWS

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
    first: Id | None
    size: int
    guarded: bool
    weight: int
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
        yield Range(part.strand, low, high, first, part.size, part.guarded, weight, count)


def cut_up(part: Range, size: int) -> Plan[list[Range]]:
    """A range of about `size` entries, as pieces for tasks."""
    pieces = -(-size // TASK_ROWS)
    return [part] if pieces <= 1 else (yield from split(part, pieces))


PIECE: Final = StructType()
for _name in ("stream", "place", "start", "end", "first"):
    PIECE.add(_name, StringType())
PIECE.add("size", LongType()).add("guarded", BooleanType()).add("count", LongType())


def piece(part: Range) -> tuple[Any, ...]:
    """A range as a row of a job (PIECE)."""
    first = None if part.first is None else ids.text(part.first).decode()
    where = name_text(part.strand.name), place_text(part.strand)
    ends = ids.text(part.start).decode(), ids.text(part.end).decode()
    return *where, *ends, first, part.size, part.guarded, part.count


def range_of(row: dict[str, Any]) -> Range:
    strand = place_of_text(name_of_text(row["stream"]), row["place"])
    assert strand is not None, row
    start, end = (ids.native(row[name].encode()) for name in ("start", "end"))
    first = None if row["first"] is None else ids.native(row["first"].encode())
    return Range(strand, start, end, first, row["size"], row["guarded"], 0, row["count"])
