"""The source on the driver: plans what to read. A batch read once, a streaming query again and again.

A streaming query moves a frontier on. Each strand has its own position, so an entry that arrives late from
another region is read when it arrives. Spark's log holds where every batch ends; this file keeps nothing
that a restart would need.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from braidstream.errors import DataLossError, OptionError
from braidstream.model import ids
from braidstream.model.frontier import Frontier, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.option_values import Start
from braidstream.spark.options import SourceOptions, source_options
from braidstream.spark.source import limits, progress_group
from braidstream.spark.source.data_loss import Loss, losses, told
from braidstream.spark.source.filters import Bounds, narrow
from braidstream.spark.source.offsets import INITIAL, Offset
from braidstream.spark.source.reading import await_copy, read
from braidstream.spark.source.rows import Rows, Shape
from braidstream.spark.source.slices import Range, Slice, split
from braidstream.spark.source.survey import Sight, Standing, Surveyor

log = logging.getLogger("braidstream.spark")

UNCOUNTED: Final = -1  # of entries: how many a strand had been given there is not known


class _Source:
    """What both readers share. Travels to the tasks, without its connections."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self.options, self.shape = options, shape
        self.surveyor = Surveyor(options.servers, options.streams, options.pattern)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "shape": self.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["shape"])  # type: ignore[misc]

    def sight(self) -> Sight:
        return {strand: each for strand, each in self.surveyor.sight().items() if self._is_wanted(strand)}

    def _is_wanted(self, strand: Strand) -> bool:
        return self.options.regions is None or strand.is_plain or strand.writer in self.options.regions

    def read_slice(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, Slice):  # Spark's stand-in for an empty list of partitions
            return
        rows = Rows(self.shape, part.part.strand)
        yield from read(part, self.options.servers, rows, self.options.replication_wait_s)

    def slices(self, parts: Sequence[Range]) -> list[InputPartition]:
        """Each range a slice; more where minPartitions asks for it, by what each range may hold."""
        spare = self.options.min_partitions - len(parts)
        if spare <= 0 or not parts:
            return [Slice(part, self.surveyor.url) for part in parts]
        weights = [max(1, part.weight) for part in parts]
        wanted = [1 + round(spare * weight / sum(weights)) for weight in weights]
        made = list[InputPartition]()
        for part, pieces in zip(parts, wanted, strict=True):
            made += [Slice(each, self.surveyor.url) for each in self._split(part, pieces)]
        return made

    def _split(self, part: Range, pieces: int) -> list[Range]:
        if pieces == 1:
            return [part]
        return self.surveyor.try_servers(lambda server: server.run(split(part, pieces), part.strand.key))


def resolve(start: Start, strand: Strand, standing: Standing, *, is_new: bool = False) -> Id:
    """Where an option puts us in a strand. `is_new`: it came to be after the query had begun."""
    if start.time_ms is not None:
        return ids.before((start.time_ms, 0)) or ids.ZERO
    position = start.at.get(strand.name, start.rest)
    if isinstance(position, dict):
        position = position.get(place_text(strand), start.rest)
        if isinstance(position, tuple):
            return position
    if isinstance(position, tuple):
        return strand.floor(position)
    return standing.last if position == "latest" and not is_new else ids.ZERO


class BatchReader(_Source, DataSourceReader):
    """`spark.read`: everything between two positions, as it stood when the query was planned."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        self.bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        parts = list[Range]()
        for strand, standing in self.sight().items():
            start = resolve(self.options.start, strand, standing)
            end = self._end(strand, standing)
            found = self.bounds.narrow(strand, start, end)
            if standing.there and found is not None:
                low, high = found
                parts.append(Range(strand, low, high, None, standing.size, False, standing.length))
        return self.slices(parts)

    def _end(self, strand: Strand, standing: Standing) -> Id:
        """Up to a time or ID; never past what is there now, so that every task sees one moment."""
        return min(standing.last, resolve(self.options.end, strand, standing))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.read_slice(partition)


class FilteringReader(BatchReader):
    """The same, with filters pushed into the ranges that are asked for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.bounds = narrow(filters, self.shape)
        return filters  # Spark applies them too: ranges are by millisecond

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "bounds": self.bounds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.bounds = state["bounds"]


class StreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        self._began: Frontier | None = None
        self._target: tuple[int | None, Sight] | None = None  # of an AvailableNow run: which region, what
        self._last_batch_at = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:
        """Before everything: the first batch says in its end where it began (offsets.py)."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.max_entries is not None:
            return ReadMaxRows(options.max_entries)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_entries is None else ReadMinRows(options.min_entries)

    def prepareForTriggerAvailableNow(self) -> None:
        sight = self.sight()
        self._target = self.surveyor.region, sight

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before, sight = Offset.parse(start), self.sight()
        self._begin(before, sight)
        begin = self._positions(before, sight)
        ends = self._ends(begin, sight)
        if not isinstance(limit, ReadAllAvailable):
            if self._is_too_little(before, begin, ends, sight):
                ends = {strand: (begin[strand], 0) for strand in ends}
            else:
                ends = self._limited(before, begin, ends, sight)
        offset = self._offset(before, begin, ends, sight)
        if offset.frontier != before.frontier:
            self._last_batch_at = time.monotonic()
        return offset.stored

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the streams end now: what `sources[].latestOffset` of a progress report shows."""
        sight = self.sight()
        frontier = Frontier({strand: each.last for strand, each in sight.items() if each.there})
        counts = {strand: each.added for strand, each in sight.items() if each.there}
        return Offset(frontier, counts, self.surveyor.region).stored

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Offset.parse(start), Offset.parse(end)
        begin = self._replayed(before, after)
        moved = [strand for strand in after.frontier if begin[strand] != after.frontier[strand]]
        if not moved:
            return []
        sight = self.surveyor.look(moved)
        parts = list[Range]()
        for strand in moved:
            standing = self.surveyor.standing(sight, strand)
            parts += self._part(strand, begin[strand], before, after, standing)
        return self.slices(parts)

    def _part(
        self, strand: Strand, start: Id, before: Offset, after: Offset, standing: Standing
    ) -> list[Range]:
        """What to read of a strand, once it is sure that it is all there, or that its loss may be borne."""
        end = after.frontier[strand]
        known = strand in before.frontier and not before.initial
        region = self.surveyor.region
        count = before.count(strand, region)
        loss = losses(strand, start, end, standing, count, after.count(strand, region))
        if loss is Loss.NOT_REPLICATED:
            part = Range(strand, start, end, None, standing.size, False, 0)
            wait_s = self.options.replication_wait_s
            self.surveyor.try_servers(lambda server: await_copy(server, part, wait_s))
            return self._part(
                strand, start, before, after, self.surveyor.standing(self.surveyor.look([strand]), strand)
            )
        if loss is not None and known and start != ids.ZERO:
            if self.options.fail_on_data_loss:
                raise DataLossError(told(loss, strand, start, end))
            log.warning("%s", told(loss, strand, start, end))
        if loss is Loss.REBORN:
            start = ids.ZERO
        first = standing.first if standing.first is not None and standing.first > start else None
        guarded = self.options.fail_on_data_loss and known and loss is None
        return [Range(strand, start, end, first, standing.size, guarded, standing.length, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.read_slice(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.group is not None and not end.get("initial"):
            progress_group.show(self.surveyor, self.options.group, Offset.parse(end))

    def stop(self) -> None:
        self.surveyor.close()

    def _begin(self, before: Offset, sight: Sight) -> None:
        """Decide once where the query begins; a replayed first batch reads it from Spark's log."""
        if before.initial and self._began is None:
            self._began = Frontier(
                {strand: resolve(self.options.start, strand, each) for strand, each in sight.items()}
            )

    def _positions(self, before: Offset, sight: Sight) -> dict[Strand, Id]:
        known = self._began if before.initial and self._began is not None else before.frontier
        at = dict(known.at)
        for strand, standing in sight.items():
            if strand not in at:
                at[strand] = resolve(self.options.start, strand, standing, is_new=True)
        return at

    def _replayed(self, before: Offset, after: Offset) -> dict[Strand, Id]:
        """Where a batch begins in every strand that its end names."""
        known = after.began if before.initial and after.began is not None else before.frontier
        nothing = Standing(ids.ZERO, 0, 0, None, ids.ZERO, 0)
        return {
            strand: known.at[strand]
            if strand in known.at
            else min(resolve(self.options.start, strand, nothing, is_new=True), after.frontier[strand])
            for strand in after.frontier
        }

    def _ends(self, begin: dict[Strand, Id], sight: Sight) -> dict[Strand, tuple[Id, int]]:
        """{strand: (where to stop, entries given by then)}; not past the end of an AvailableNow run."""
        ends = dict[Strand, tuple[Id, int]]()
        for strand, standing in sight.items():
            last, added = self._aim(strand, standing)
            is_reborn = strand.is_plain and standing.there and standing.last < begin[strand]
            if not standing.there:
                last = max(begin[strand], standing.cut)  # what was deleted unread is told when it is planned
            elif last < begin[strand] and not is_reborn:
                last = begin[strand]  # this region has not got as far: never back
            ends[strand] = last, added
        return ends

    def _aim(self, strand: Strand, standing: Standing) -> tuple[Id, int]:
        """(Where a strand ends, entries given by then); UNCOUNTED where another region counted them."""
        if self._target is not None:
            region, sight = self._target
            aim = self.surveyor.standing(sight, strand)
            if aim.last < standing.last:
                return aim.last, aim.added if region == self.surveyor.region else UNCOUNTED
        return standing.last, standing.added

    def _unread(self, strand: Strand, before: Offset, begin: Id, standing: Standing) -> int:
        """About how many entries of a strand were not read yet."""
        counted = before.count(strand, self.surveyor.region)
        if counted is not None and standing.added >= counted:
            return min(standing.added - counted, standing.length)
        return standing.length if standing.last > begin else 0

    def _is_too_little(
        self, before: Offset, begin: dict[Strand, Id], ends: dict[Strand, tuple[Id, int]], sight: Sight
    ) -> bool:
        """minEntriesPerTrigger: whether to wait for more. Never in an AvailableNow run, nor for too long."""
        least = self.options.min_entries
        if least is None or self._target is not None:
            return False
        if time.monotonic() - self._last_batch_at >= self.options.max_delay_s:
            return False
        unread = [self._unread(strand, before, begin[strand], sight[strand]) for strand in ends]
        return sum(unread) < least

    def _limited(
        self,
        before: Offset,
        begin: dict[Strand, Id],
        ends: dict[Strand, tuple[Id, int]],
        sight: Sight,
    ) -> dict[Strand, tuple[Id, int]]:
        options = self.options
        if options.max_entries is None and options.max_bytes is None:
            return ends
        backlogs = {
            strand: limits.Backlog(
                begin[strand] if end >= begin[strand] else ids.ZERO,
                end,
                self._unread(strand, before, begin[strand], sight[strand]),
                sight[strand].size,
            )
            for strand, (end, _) in ends.items()
            if end != begin[strand]
        }
        cut = self.surveyor.try_servers(
            lambda server: limits.cut(server, backlogs, options.max_entries, options.max_bytes)
        )
        limited = dict(ends)
        for strand, (end, count) in cut.items():
            if end != ends[strand][0]:
                start = backlogs[strand].start
                known = before.count(strand, self.surveyor.region) if start == begin[strand] else None
                if known is None:
                    known = self._given(strand, start, sight[strand], is_new=before.initial)
                limited[strand] = end, UNCOUNTED if known == UNCOUNTED else known + count
        return limited

    def _given(self, strand: Strand, start: Id, standing: Standing, *, is_new: bool) -> int:
        """How many entries a strand had been given at a position: those that are gone, and those up to it.

        Where a query begins they are read for that, once; a query that comes from elsewhere does not know.
        """
        if standing.first is None or standing.first > start:
            return standing.added - standing.length
        if not is_new:
            return UNCOUNTED
        alive = self.surveyor.try_servers(lambda server: limits.count(server, strand, start, standing.size))
        return standing.added - standing.length + alive

    def _offset(
        self,
        before: Offset,
        begin: dict[Strand, Id],
        ends: dict[Strand, tuple[Id, int]],
        sight: Sight,
    ) -> Offset:
        frontier = Frontier({**begin, **{strand: end for strand, (end, _) in ends.items()}})
        counts = dict[Strand, int]()
        for strand, (end, count) in ends.items():
            known = before.count(strand, self.surveyor.region)
            if end == begin[strand] and end != sight[strand].last:
                count = UNCOUNTED if known is None else known
            if sight[strand].there and count != UNCOUNTED:
                counts[strand] = count
        if not before.initial and frontier == before.frontier:
            return before
        return Offset(frontier, counts, self.surveyor.region, self._began if before.initial else None)


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    options = source_options(given)
    if options.lake is not None:
        raise OptionError("lake", "is for spark.read. A streaming query reads the stream itself")
    return StreamReader(options, Shape.of(schema, options.mode, options.corrupt_column))
