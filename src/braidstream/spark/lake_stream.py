"""A streaming query that begins in the lake and continues with the live stream: `readStream` with `lake`.

    lake     | ........................ |F           F: the end of the strand in the lake, by its log
    engine                     | ................. |
    batch         (start ..... F] from files, (F ..... end] live

The offsets are those of any query, so each entry is read once, and a query continues with or without `lake`.
F is read for each batch, before the engine. So a query that is behind reads what was trimmed meanwhile from
the lake.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from braidstream.errors import DataLossError, LakeError, OptionError
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.plan.retries import Retries
from braidstream.spark.lake.log import Lake, State, refuse_adopted, within
from braidstream.spark.options import SourceOptions, source_options
from braidstream.spark.source.offsets import Offset
from braidstream.spark.source.planning import UNCOUNTED, StreamReader
from braidstream.spark.source.rows import Shape
from braidstream.spark.source.slices import Range
from braidstream.spark.source.survey import StrandInfo, StrandInfos
from braidstream.spark.view import LakeSlice, lake_slices

Ends = dict[Strand, tuple[Id, int]]
Unread = tuple[Strand, Id, Id]  # a strand after one native ID up to another


class LakeStreamReader(StreamReader):
    """History from the lake, then the stream."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        assert options.lake is not None
        self.lake = Lake(options.lake, options.streams or None)
        self._state = State()
        self._history = dict[str, list[Unread]]()

    def _planned(self, before: Offset, after: Offset) -> list[InputPartition]:
        retries = Retries(
            f"{self.lake.root}: the archive keeps committing. Run it less often.", error=LakeError
        )
        while True:
            retries.count()
            self._state, self._history = self.lake.load(), {}  # before the engine is looked at
            try:
                live = super()._planned(before, after)
            except DataLossError:
                if self._is_current():
                    raise
                continue
            if self._is_current():
                return [*lake_slices(self._state, self._history, self.options), *live]

    def _is_current(self) -> bool:
        """False if the archive has meanwhile copied entries, which it may have trimmed too."""
        return self.lake.load().frontier == self._state.frontier

    def _part(
        self, strand: Strand, start: Id, before: Offset, after: Offset, info: StrandInfo
    ) -> list[Range]:
        archived, end = min(self._state.frontier[strand], info.limit), after.frontier[strand]
        if info.cut > start:
            super()._part(strand, start, before, after, info)  # reports entries that were deleted unread
            start, before = info.cut, Offset(Frontier({}))
            if end <= start:
                return []
        is_recreated = strand.is_plain and (end < start or (info.there and info.last < archived))
        if start >= archived or is_recreated:
            return self._live(strand, start, before, after, info)
        self._history.setdefault(name_text(strand.name), []).append((strand, start, min(archived, end)))
        if end <= archived:
            return []
        count = self._archived_count(self._state, strand)
        counts = {} if count == UNCOUNTED else {strand: count}
        known = Offset(Frontier({strand: archived}), counts, self.surveyor.region)
        return self._live(strand, archived, known, after, info)

    def _live(
        self, strand: Strand, start: Id, before: Offset, after: Offset, info: StrandInfo
    ) -> list[Range]:
        """What to read from the engine. The reader must detect every trim: the lake may have the entries."""
        parts = super()._part(strand, start, before, after, info)
        first = ids.LAST if info.first is None else info.first
        return [replace(part, guarded=part.guarded or first <= part.end) for part in parts]

    def _begin(self, before: Offset, infos: StrandInfos) -> None:
        if before.initial:
            refuse_adopted(self.lake.load(), infos, self.surveyor.region)
        super()._begin(before, infos)

    def _ends(self, begin: dict[Strand, Id], infos: StrandInfos) -> Ends:
        """An empty stream in place of a deleted one does not move a query back to the start of the lake."""
        ends = super()._ends(begin, infos)
        for strand, info in infos.items():
            if strand.is_plain and info.there and not info.added and info.last < begin[strand]:
                ends[strand] = begin[strand], 0
        return ends

    def _archived_count(self, state: State, strand: Strand) -> int:
        """How many entries had been added to a strand where its archive ends."""
        count = state.offset(strand).count(strand, self.surveyor.region)
        return UNCOUNTED if count is None else count

    def _is_too_little(self, before: Offset, begin: dict[Strand, Id], ends: Ends, infos: StrandInfos) -> bool:
        is_too_little = super()._is_too_little(before, begin, ends, infos)
        return is_too_little and not _with_history(self.lake.load(), begin, ends)

    def _limited(self, before: Offset, begin: dict[Strand, Id], ends: Ends, infos: StrandInfos) -> Ends:
        """With a limit, batches of history come first, of whole files; then those of the stream."""
        left = self.options.max_bytes if self.options.max_entries is None else self.options.max_entries
        if left is None:
            return ends
        state = self.lake.load()
        strands = _with_history(state, begin, ends)
        if not strands:
            return super()._limited(before, begin, ends, infos)
        limited = {strand: (begin[strand], count) for strand, (_, count) in ends.items()}
        for strand in sorted(strands, key=lambda each: begin[each]):
            if left > 0:
                archived = min(state.frontier[strand], ends[strand][0])
                upto, taken = self._history_end(state, (strand, begin[strand], archived), left)
                is_whole = upto == state.frontier[strand]
                limited[strand] = upto, self._archived_count(state, strand) if is_whole else UNCOUNTED
                left -= taken
        return limited

    def _history_end(self, state: State, unread: Unread, most: int) -> tuple[Id, int]:
        """The end of the first file with which a batch reaches a limit; how many entries or bytes that is."""
        strand, start, end = unread
        by_rows, taken = self.options.max_entries is not None, 0
        low, high = strand.user(start), strand.user(end)
        files = within(state.files.values(), name_text(strand.name), place_text(strand), low, high)
        for file in sorted(files, key=lambda each: each.last):
            taken += file.rows if by_rows else file.bytes
            upto = min(end, strand.floor(file.last))
            if taken >= most and upto > start:
                return upto, taken
        return end, taken

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeSlice):
            yield from partition.rows(self.lake.root, self.shape)
            return
        try:
            yield from self.read_slice(partition)
        except DataLossError as error:
            hint = "If the archive has trimmed them, start the query again: it reads them from the lake."
            raise DataLossError(f"{error} {hint}") from None


def _with_history(state: State, begin: dict[Strand, Id], ends: Ends) -> list[Strand]:
    """The strands of which the lake has unread entries."""
    return [strand for strand, (end, _) in ends.items() if begin[strand] < min(state.frontier[strand], end)]


def lake_stream_reader(texts: Mapping[str, str], schema: StructType) -> LakeStreamReader:
    options = source_options(texts)
    if not options.servers.urls:
        raise OptionError("url", "missing: a streaming query continues with the live stream")
    return LakeStreamReader(options, Shape.of(schema, options.mode, options.corrupt_column))
