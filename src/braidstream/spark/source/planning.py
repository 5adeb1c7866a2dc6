"""The source on the driver: plans what a batch or a streaming query reads.

A streaming query advances a frontier. Each strand has its own position, so an entry that arrives late from
another region is read when it arrives. Spark's log has the end of every batch; this file keeps no state that
a restart would need.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from braidstream.engine.address import shown
from braidstream.errors import DataLossError, MissingStreamError, OptionError
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.compat import (
    Filter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from braidstream.spark.options import SourceOptions, Start, source_options
from braidstream.spark.plain_errors import plain_errors
from braidstream.spark.source import offsets
from braidstream.spark.source.filters import Bounds, narrow
from braidstream.spark.source.moved_group import move_group
from braidstream.spark.source.offsets import INITIAL, Offset, adopted
from braidstream.spark.source.read_slice import await_copies, read
from braidstream.spark.source.rows import Rows, Shape
from braidstream.spark.source.slices import Range, Slice, partitioned
from braidstream.spark.source.survey import (
    Loss,
    StrandInfo,
    StrandInfos,
    Surveyor,
    describe,
    find_info,
    losses,
)

# ----------------------------------------------------------------------------------------------------
# Where a query begins and ends in a strand: what the options mean for it.

Ends = Mapping[Strand, tuple[Id, int]]
_USE_NUMBERS: Final = 'Use startingOffsets and endingOffsets with numbers, like {"%s": 1}'


def resolve(start: Start, strand: Strand, info: StrandInfo, *, is_new: bool = False) -> Id:
    """The position in a strand that an option means. is_new: the strand was created after the query began."""
    name = name_text(strand.name)
    time_ms = start.times.get(strand.name, start.time_ms)
    if time_ms is not None:
        if strand.is_of_log:
            why = f"{name} is a log, and its entries have no times. {_USE_NUMBERS % name}"
            raise OptionError(start.option, why)
        return ids.before((time_ms, 0)) or ids.ZERO
    position = start.at.get(strand.name, start.rest)
    if isinstance(position, dict):
        position = position.get(place_text(strand), start.rest)
        if isinstance(position, tuple):
            return position
    if isinstance(position, int):
        if not strand.is_of_log:
            raise OptionError(start.option, f"{name} is a stream: its positions are IDs, not numbers")
        return 0, position
    if isinstance(position, tuple):
        return strand.floor(position)
    return info.last if position == "latest" and not is_new else ids.ZERO


def check_logs(options: SourceOptions, infos: StrandInfos) -> None:
    """The option `logs` is for logs only: streams have no offsets."""
    for strand, info in infos.items():
        if options.logs and info.there and not strand.is_of_log:
            raise OptionError("logs", f"{name_text(strand.name)} is a stream. Name it in the option streams")


def in_epochs(begin: Mapping[Strand, Id], ends: Ends) -> dict[Strand, tuple[Id, int]]:
    """The ends of a limited batch: it reads an epoch of a log only after those before it."""
    limited, busy = dict(ends), set[bytes]()
    for strand in sorted(ends, key=lambda each: (each.life, each.writer)):
        if strand.is_of_log:
            if strand.name in busy:
                limited[strand] = begin[strand], ends[strand][1]
            elif ends[strand][0] > begin[strand]:
                busy.add(strand.name)
    return limited


# ----------------------------------------------------------------------------------------------------
# Reader

log = logging.getLogger("braidstream.spark")

UNCOUNTED: Final = -1  # how many entries were added to a strand up to a position is not known


class _Source:
    """What both readers share. It is pickled for the tasks, without its connections."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self.options, self.shape = options, shape
        self.surveyor = Surveyor(options.servers, options.streams, options.pattern)
        self._surveys: tuple[StrandInfos, StrandInfos] | None = None  # the last one, and what of it is wanted

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "shape": self.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["shape"])  # type: ignore[misc]

    def survey(self) -> StrandInfos:
        """What the streams have now; the same object if nothing is new."""
        found = self.surveyor.watch()
        if self._surveys is None or self._surveys[0] is not found:
            self._surveys = found, self._wanted(found)
        return self._surveys[1]

    def first_survey(self, archived: Iterable[bytes] = ()) -> StrandInfos:
        """As survey. Raises MissingStreamError if a stream is neither there nor in the lake."""
        infos = self.surveyor.watch()
        there = {strand.name for strand, each in infos.items() if each.there} | {*archived}
        missing = [name_text(name) for name in self.options.streams if name not in there]
        if missing and self.options.fail_on_missing:
            where, hint = self.options.servers.urls[self.surveyor.url], "Or set failOnMissing to false."
            raise MissingStreamError.of(missing, shown(where), f"Check the names. {hint}")
        return self._wanted(infos)

    def _wanted(self, infos: StrandInfos) -> StrandInfos:
        check_logs(self.options, infos)
        return {
            strand: each
            for strand, each in infos.items()
            if self._is_wanted(strand) and each.limit > ids.ZERO
        }

    def _is_wanted(self, strand: Strand) -> bool:
        return self.options.regions is None or strand.is_plain or strand.writer in self.options.regions

    def read_slice(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, Slice):  # Spark's stand-in for an empty list of partitions
            return
        rows = Rows(self.shape, part.parts[0].strand)
        yield from read(part, self.options.servers, rows.of, self.options.replication_wait_s)

    def slices(self, parts: Sequence[Range]) -> list[InputPartition]:
        """The partitions that read these ranges."""
        return [*partitioned(self.surveyor, self.options, parts)]


class BatchReader(_Source, DataSourceReader):
    """`spark.read`: everything between two positions, as of the time when the query was planned."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        self.bounds = Bounds()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        parts = list[Range]()
        for strand, info in self.first_survey().items():
            start = resolve(self.options.start, strand, info)
            end = self._end(strand, info)
            found = self.bounds.narrow(strand, start, end)
            if info.there and found is not None:
                low, high = found
                parts.append(Range(strand, low, high, size=info.size, weight=info.length))
        return self.slices(parts)

    def _end(self, strand: Strand, info: StrandInfo) -> Id:
        """Up to a time or ID, and at most to the present end, so that all tasks see the same snapshot."""
        return min(info.last, resolve(self.options.end, strand, info))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.read_slice(partition)


class FilteringReader(BatchReader):
    """The same, with filters pushed down into the ranges."""

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
        self._target: tuple[int | None, StrandInfos] | None = None  # of an AvailableNow run: region, ends
        self._last_batch_at = time.monotonic()
        self._surveyed: tuple[int | None, StrandInfos] | None = None
        # What the streams had when all of it was read: until something is new, the end stays where it is.
        self._settled: StrandInfos | None = None
        self._at: dict[str, Any] | None = None  # the end of the last batch, for a Spark that does not say it

    def initialOffset(self) -> dict[str, Any]:
        """Before everything: the end offset of the first batch also has its start (offsets.py)."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.max_entries is not None:
            return ReadMaxRows(options.max_entries)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_entries is None else ReadMinRows(options.min_entries)

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        infos = self.survey()
        self._target = self.surveyor.region, infos

    @plain_errors
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Spark before 4.2 passes neither. Its next batch begins at the offset that this returned last. After
        a restart it first plans an empty batch at the end of its log: `partitions` notes that end."""
        at = start or self._at or self.initialOffset()
        if at != self._at:
            self._settled = None
        before, most = Offset.parse(at), limit or self.getDefaultReadLimit()
        latest = self.surveyor.in_one_region(lambda: self._latest(before, most))
        self._at = at if latest is before else latest.stored
        return self._at

    def _latest(self, before: Offset, limit: ReadLimit) -> Offset:
        is_first = before.initial and self._began is None
        infos = self.first_survey() if is_first else self.survey()
        self._surveyed = self.surveyor.region, infos
        if infos is self._settled:
            return before
        before = before.renamed(adopted(before.frontier, infos, self.surveyor.region))
        self._begin(before, infos)
        begin = self._positions(before, infos)
        ends = self._ends(begin, infos)
        if not isinstance(limit, ReadAllAvailable):
            ends = in_epochs(begin, ends)
            if self._is_too_little(before, begin, ends, infos):
                ends = {strand: (begin[strand], count) for strand, (_, count) in ends.items()}
            else:
                ends = self._limited(before, begin, ends, infos)
        offset = self._offset(before, begin, ends, infos)
        if offset.frontier != before.frontier:
            self._last_batch_at = time.monotonic()
        is_all = offset is before and all(begin[strand] == info.last for strand, info in infos.items())
        self._settled = infos if is_all else None
        return offset

    def reportLatestOffset(self) -> dict[str, Any]:
        """The present end of the streams, for `sources[].latestOffset` of a progress report.

        Spark calls it after latestOffset, which has just looked.
        """
        if self._surveyed is None:
            infos = self.survey()
            self._surveyed = self.surveyor.region, infos
        (region, infos), self._surveyed = self._surveyed, None
        if infos is self._settled and self._at:
            return self._at
        frontier = Frontier({strand: each.last for strand, each in infos.items() if each.there})
        counts = {strand: each.added for strand, each in infos.items() if each.there}
        return Offset(frontier, counts, region).stored

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._at = self._at or end
        before, after = Offset.parse(start), Offset.parse(end)
        return self.surveyor.in_one_region(lambda: self._planned(before, after))

    def _planned(self, before: Offset, after: Offset) -> list[InputPartition]:
        native = [strand for strand in (*before.frontier, *after.frontier) if strand.is_plain]
        if native:
            names = adopted(native, self.surveyor.look_if_unknown(native), self.surveyor.region)
            before, after = before.renamed(names), after.renamed(names)
        begin = self._replayed(before, after)
        moved = [strand for strand in after.frontier if begin[strand] != after.frontier[strand]]
        if not moved:
            return []
        infos = self.surveyor.look_after_watch(moved)
        parts = list[Range]()
        for strand in moved:
            info = find_info(infos, strand)
            parts += self._part(strand, begin[strand], before, after, info)
        return self.slices(parts)

    def _part(
        self, strand: Strand, start: Id, before: Offset, after: Offset, info: StrandInfo
    ) -> list[Range]:
        """What to read of a strand. Raises DataLossError if entries are missing, unless failOnDataLoss is
        off."""
        end = after.frontier[strand]
        known = strand in before.frontier and not before.initial
        region = self.surveyor.region
        count = before.count(strand, region)
        loss = losses(strand, start, end, info, count, after.count(strand, region))
        if loss is Loss.NOT_REPLICATED:
            part = Range(strand, start, end, size=info.size)
            wait_s = self.options.replication_wait_s
            self.surveyor.try_servers(lambda server: await_copies(server, [part], wait_s))
            return self._part(strand, start, before, after, find_info(self.surveyor.look([strand]), strand))
        if loss is not None and (loss is Loss.MOVED or (known and start != ids.ZERO)):
            if self.options.fail_on_data_loss:
                raise DataLossError(describe(loss, strand, start, end))
            log.warning("%s", describe(loss, strand, start, end))
        if loss is Loss.RECREATED:
            start = ids.ZERO
        if loss is Loss.MOVED:
            end = info.limit
            if end <= start:
                return []
        first = info.first if info.first is not None and info.first > start else None
        guarded = self.options.fail_on_data_loss and known and loss is None
        count = count if loss is None else None
        upto = after.count(strand, region)
        weight = info.length if count is None or upto is None else min(info.length, max(0, upto - count))
        whole = Range(
            strand, start, end, first=first, size=info.size, guarded=guarded, weight=weight, count=count
        )
        return [whole]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.read_slice(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.group is not None and not end.get("initial"):
            offset = Offset.parse(end)
            read = lambda strand: offset.count(strand, self.surveyor.region)  # noqa: E731
            move_group(self.surveyor, self.options.group, offset.frontier, read=read)

    def stop(self) -> None:
        self.surveyor.close()

    def _begin(self, before: Offset, infos: StrandInfos) -> None:
        """Choose the start of the query once; a replayed first batch reads it from Spark's log."""
        if before.initial and self._began is None:
            self._began = Frontier(
                {strand: resolve(self.options.start, strand, each) for strand, each in infos.items()}
            )

    def _positions(self, before: Offset, infos: StrandInfos) -> dict[Strand, Id]:
        known = self._began if before.initial and self._began is not None else before.frontier
        at = dict(known.at)
        for strand, info in infos.items():
            if strand not in at:
                at[strand] = resolve(self.options.start, strand, info, is_new=True)
        return at

    def _replayed(self, before: Offset, after: Offset) -> dict[Strand, Id]:
        """The start of a batch in every strand of its end offset."""
        known = after.began if before.initial and after.began is not None else before.frontier
        nothing = StrandInfo(ids.ZERO, 0, 0, None, ids.ZERO, 0)
        return {
            strand: known.at[strand]
            if strand in known.at
            else min(resolve(self.options.start, strand, nothing, is_new=True), after.frontier[strand])
            for strand in after.frontier
        }

    def _ends(self, begin: dict[Strand, Id], infos: StrandInfos) -> dict[Strand, tuple[Id, int]]:
        """{strand: (end, entries added by then)}; at most to the end of an AvailableNow run."""
        ends = dict[Strand, tuple[Id, int]]()
        for strand, info in infos.items():
            last, added = self._aim(strand, info)
            is_recreated = strand.is_plain and info.there and info.last < begin[strand]
            if not info.there:
                last = max(begin[strand], info.cut)  # `_part` reports entries that were deleted unread
            elif last < begin[strand] and not is_recreated:
                last = begin[strand]  # this region is behind the query: do not go back
            ends[strand] = last, added
        return ends

    def _aim(self, strand: Strand, info: StrandInfo) -> tuple[Id, int]:
        """(end of a strand, entries added by then); UNCOUNTED if another region counted them."""
        if self._target is not None:
            region, infos = self._target
            aim = find_info(infos, strand)
            if aim.last < info.last:
                return aim.last, aim.added if region == self.surveyor.region else UNCOUNTED
        return info.last, info.added

    def _unread(self, strand: Strand, before: Offset, begin: Id, info: StrandInfo) -> int:
        """The approximate number of unread entries of a strand."""
        counted = before.count(strand, self.surveyor.region)
        if counted is not None and info.added >= counted:
            return min(info.added - counted, info.length)
        return info.length if info.last > begin else 0

    def _is_too_little(
        self, before: Offset, begin: dict[Strand, Id], ends: dict[Strand, tuple[Id, int]], infos: StrandInfos
    ) -> bool:
        """minEntriesPerTrigger: whether to wait for more. Never in an AvailableNow run, nor for too long."""
        least = self.options.min_entries
        if least is None or self._target is not None:
            return False
        if time.monotonic() - self._last_batch_at >= self.options.max_delay_s:
            return False
        unread = [self._unread(strand, before, begin[strand], infos[strand]) for strand in ends]
        return sum(unread) < least

    def _limited(
        self,
        before: Offset,
        begin: dict[Strand, Id],
        ends: dict[Strand, tuple[Id, int]],
        infos: StrandInfos,
    ) -> dict[Strand, tuple[Id, int]]:
        options = self.options
        if options.max_entries is None and options.max_bytes is None:
            return ends
        backlogs = dict[Strand, offsets.Backlog]()
        for strand, (end, _) in ends.items():
            start, info = begin[strand], infos[strand]
            if end > start:
                backlogs[strand] = offsets.Backlog(
                    start, end, self._unread(strand, before, start, info), info.size
                )
            elif end < start:  # it was created again
                backlogs[strand] = offsets.Backlog(ids.ZERO, end, info.length, info.size)
        cut = self.surveyor.try_servers(
            lambda server: offsets.cut(server, backlogs, options.max_entries, options.max_bytes)
        )
        limited = dict(ends)
        for strand, (end, count) in cut.items():
            if end != ends[strand][0]:
                start = backlogs[strand].start
                known = before.count(strand, self.surveyor.region) if start == begin[strand] else None
                if known is None:
                    known = self._added_at(strand, start, infos[strand], is_new=before.initial)
                limited[strand] = end, UNCOUNTED if known == UNCOUNTED else known + count
        return limited

    def _added_at(self, strand: Strand, start: Id, info: StrandInfo, *, is_new: bool) -> int:
        """How many entries were added up to a position: the removed ones, and the present ones up to it.

        At the start of a query the latter are read once, to count them; later UNCOUNTED.
        """
        if info.first is None or info.first > start:
            return info.added - info.length
        if not is_new:
            return UNCOUNTED
        alive = self.surveyor.try_servers(lambda server: offsets.count(server, strand, start, info.size))
        return info.added - info.length + alive

    def _offset(
        self,
        before: Offset,
        begin: dict[Strand, Id],
        ends: dict[Strand, tuple[Id, int]],
        infos: StrandInfos,
    ) -> Offset:
        frontier = Frontier({**begin, **{strand: end for strand, (end, _) in ends.items()}})
        counts = dict[Strand, int]()
        for strand, (end, count) in ends.items():
            known = before.count(strand, self.surveyor.region)
            if end == begin[strand] and end != infos[strand].last:
                count = UNCOUNTED if known is None else known
            if infos[strand].there and count != UNCOUNTED:
                counts[strand] = count
        if not before.initial and frontier == before.frontier:
            return before
        return Offset(frontier, counts, self.surveyor.region, self._began if before.initial else None)


def stream_reader(texts: Mapping[str, str], schema: StructType) -> StreamReader:
    options = source_options(texts)
    return StreamReader(options, Shape.of(schema, options.mode, options.corrupt_column))
