"""Filters on id, offset, timestamp, stream and region, pushed down into ranges of the read.

They only narrow the read: Spark applies every filter again, so an unknown filter costs only time. Ranges are
by milliseconds, which native and user IDs share.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from braidstream.model import ids
from braidstream.model.frontier import name_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.compat import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from braidstream.spark.source.rows import LOG_META, META, Shape


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can match: from and to these milliseconds and offsets, in these streams and regions (None:
    any)."""

    low_ms: int = 0
    high_ms: int = ids.MAX
    streams: frozenset[str] | None = None
    regions: frozenset[int] | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def narrow(self, strand: Strand, start: Id, end: Id) -> tuple[Id, Id] | None:
        """The part of a range in which something can match; None if nothing can."""
        if self.streams is not None and name_text(strand.name) not in self.streams:
            return None
        if self.regions is not None and (strand.is_plain or strand.writer not in self.regions):
            return None
        low = max(start, ids.before((self.low_ms, 0)) or ids.ZERO)
        high = min(end, (self.high_ms, ids.MAX))
        if self.first_offset is not None or self.last_offset is not None:
            if not strand.is_of_log:
                return None  # its offset is null
            low = max(low, (0, max(0, (self.first_offset or 0) - 1)))
            high = high if self.last_offset is None else min(high, (0, max(0, self.last_offset)))
        return (low, high) if low < high else None


def narrow(filters: Iterable[Filter], shape: Shape) -> Bounds:
    meta = {*META.names, *LOG_META.names}
    prefix = "" if shape.is_default else "_"
    bounds = Bounds()
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1 and path[0].removeprefix(prefix) in meta and path[0].startswith(prefix):
            bounds = _applied(bounds, path[0].removeprefix(prefix), each)
    return bounds


def _applied(bounds: Bounds, column: str, wanted: Filter) -> Bounds:
    low, high, streams, regions = bounds.low_ms, bounds.high_ms, bounds.streams, bounds.regions
    value: Any = getattr(wanted, "value", None)
    if column == "offset" and isinstance(value, int):
        first, last = bounds.first_offset, bounds.last_offset
        if isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual):
            first = value if first is None else max(first, value)
        if isinstance(wanted, EqualTo | LessThan | LessThanOrEqual):
            last = value if last is None else min(last, value)
        return replace(bounds, first_offset=first, last_offset=last)
    if column == "timestamp" and isinstance(value, datetime):
        ms = int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
        if isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual):
            low = max(low, ms)
        if isinstance(wanted, EqualTo | LessThan | LessThanOrEqual):
            high = min(high, ms)
    elif column == "id" and isinstance(wanted, EqualTo):
        found = ids.parse(str(value).encode())
        low, high = (max(low, found[0]), min(high, found[0])) if found else (low, high)
    elif column == "stream" and isinstance(wanted, EqualTo | In):
        named = frozenset([value] if isinstance(wanted, EqualTo) else value)
        streams = named if streams is None else streams & named
    elif column == "region" and isinstance(wanted, EqualTo | In):
        numbers = frozenset([value] if isinstance(wanted, EqualTo) else value)
        regions = numbers if regions is None else regions & numbers
    return replace(bounds, low_ms=low, high_ms=high, streams=streams, regions=regions)
