"""One view over a lake and the live streams: `option("lake", PATH)`. It returns each entry once.

    lake     | ........................ |F           F: the end of the strand in the lake, by its log
    engine         | ........................... |
    view     | ...... from the lake ... | live . |

F is read when the query is planned. The archive may continue meanwhile and trim what it has archived. If a
reader of the live part finds that the head of the strand was trimmed, it reads the missing entries from the
lake, which has them by then, because a trim comes after the commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from braidstream.clusters.bulk import Server
from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text, strand_of_row
from braidstream.model.glob import matcher
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand
from braidstream.spark.lake.files import Needs, Wanted, read
from braidstream.spark.lake.log import File, Lake, State, refuse_adopted, within
from braidstream.spark.lake.typed_columns import column_of
from braidstream.spark.options import SourceOptions, source_options
from braidstream.spark.plain_errors import plain_errors
from braidstream.spark.source import columns
from braidstream.spark.source.planning import BatchReader, FilteringReader, check_logs, resolve
from braidstream.spark.source.read_slice import PAGE_BYTES, PAGE_ROWS, await_copies, page_command
from braidstream.spark.source.rows import ENTRIES, Rows, Shape, StoredRows
from braidstream.spark.source.slices import Range, Slice
from braidstream.spark.source.survey import StrandInfo, StrandInfos, open_server
from braidstream.spark.tasks import grouped, tasks_for

_NOT_THERE = StrandInfo(ids.ZERO, 0, 0, None, ids.ZERO, 64, there=False)


class LakeSlice(InputPartition):
    """Files of the lake, and the strands and ranges to read from each."""

    def __init__(self, parts: Sequence[tuple[File, tuple[Wanted, ...]]]) -> None:
        super().__init__(None)
        self.parts = tuple(parts)

    def __repr__(self) -> str:
        more = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return f"LakeSlice({self.parts[0][0].path}{more})"

    def rows(self, root: str, shape: Shape) -> Iterator[pa.RecordBatch]:
        for file, wanted in self.parts:
            yield from rows_of(root, file, wanted, shape)


class ViewReader(BatchReader):
    """History from the lake, the rest from the engine. Without a `url`, the lake alone."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        assert options.lake is not None
        self.lake = Lake(options.lake, options.streams or None)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        has_server = bool(self.options.servers.urls)
        return self.surveyor.in_one_region(self._partitions) if has_server else self._partitions()

    def _partitions(self) -> list[InputPartition]:
        state = self.lake.load()  # before the engine: entries that are trimmed by then are in the lake
        archived = {strand.name for strand in state.frontier}
        infos = self.first_survey(archived) if self.options.servers.urls else StrandInfos()
        refuse_adopted(state, infos, self.surveyor.region)
        wanted, live = dict[str, list[tuple[Strand, Id, Id]]](), list[Range]()
        for strand in dict.fromkeys([*infos, *self._archived(state, infos)]):
            info = infos.get(strand, _NOT_THERE)
            cut = state.frontier[strand]
            found = self._range(strand, info, cut)
            if found is None:
                continue
            low, high = found
            if low < cut:
                wanted.setdefault(name_text(strand.name), []).append((strand, low, min(high, cut)))
            if info.there and high > max(low, cut):
                live.append(Range(strand, max(low, cut), high, size=info.size, weight=info.length))
        return [*lake_slices(state, wanted, self.options), *self.slices(live)]

    def _wanted(self, infos: StrandInfos) -> StrandInfos:
        """Also strands that are not part of their log (limit 0-0): the lake may have them, and must not add
        them."""
        check_logs(self.options, infos)
        return {strand: each for strand, each in infos.items() if self._is_wanted(strand)}

    def _archived(self, state: State, infos: StrandInfos) -> Iterator[Strand]:
        """Strands in the lake of the streams to read."""
        matches = None if self.options.pattern is None else matcher(self.options.pattern)
        lives = {(each.name, each.label): each.life for each in infos}
        for strand in state.frontier:
            is_named = matches(strand.name) if matches else strand.name in self.options.streams
            is_deleted = lives.get((strand.name, strand.label), 0) > strand.life
            if is_named and not is_deleted and self._is_wanted(strand):
                yield strand

    def _range(self, strand: Strand, info: StrandInfo, cut: Id) -> tuple[Id, Id] | None:
        last = min(max(cut, info.last), info.limit)
        known = StrandInfo(last, 0, 0, None, info.cut, info.size)
        low = max(resolve(self.options.start, strand, known), info.cut)
        return self.bounds.narrow(strand, low, min(last, resolve(self.options.end, strand, known)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeSlice):
            yield from partition.rows(self.lake.root, self.shape)
        elif isinstance(partition, Slice):
            server = open_server(self.options.servers, partition.url)
            try:
                # After a failover it may have less than when the query was planned.
                copies = [part for part in partition.parts if not part.strand.is_plain]
                await_copies(server, copies, self.options.replication_wait_s)
                for part in partition.parts:
                    yield from _live(server, part, self.shape, self.lake.root)
            finally:
                server.close()


class FilteringViewReader(ViewReader, FilteringReader):
    """The same, with filters pushed into files and ranges."""


def lake_slices(
    state: State, wanted: Mapping[str, Sequence[tuple[Strand, Id, Id]]], options: SourceOptions
) -> list[LakeSlice]:
    """The files to read; small ones share a task. wanted: by stream, strands after one native ID up to
    another."""
    parts = list[tuple[File, tuple[Wanted, ...]]]()
    for file in sorted(state.files.values(), key=lambda each: (each.stream, each.first)):
        here = tuple(
            Wanted.of(strand, low, high)
            for strand, low, high in wanted.get(file.stream, ())
            if within([file], file.stream, place_text(strand), strand.user(low), strand.user(high))
        )
        if here:
            parts.append((file, here))
    rows, most = [file.rows for file, _ in parts], options.max_per_partition
    tasks = tasks_for(sum(rows), options.min_partitions, most)
    return [LakeSlice(each) for each in grouped(parts, rows, tasks, most)]


def _live(server: Server, part: Range, shape: Shape, root: str) -> Iterator[pa.RecordBatch]:
    """The live part of a strand, page by page.

    Each request also checks whether an entry is left at or before the start of the page before. If not, a
    trim may have removed entries of that page before it was read.
    """
    rows, cursor = Rows(shape, part.strand), part.start
    count = max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, part.size)))
    with server.wire(part.strand.key) as wire:
        page, page_start = columns.parse(wire.receive(wire.send(page_command(part, cursor, count)))), cursor
        while True:
            cursor = page.id(-1) if len(page) else part.end
            head: Command = ("XRANGE", part.strand.key, "-", ids.text(page_start), "COUNT", 1)
            mark = wire.send(head, page_command(part, cursor, count))
            made = rows.batch(page) if len(page) else None
            reply = wire.receive(mark)
            if not columns.take_first(reply):
                upto = ids.before(page.id(0)) if len(page) else part.end
                yield from _from_lake(root, part.strand, page_start, upto or ids.ZERO, shape)
            if made is None:
                return
            yield made
            page, page_start = columns.parse(reply), cursor


def _from_lake(root: str, strand: Strand, low: Id, high: Id, shape: Shape) -> Iterator[Any]:
    """Entries after `low` up to `high`, from the lake as it is now."""
    lake, wanted, name = Lake(root, [strand.name]), Wanted.of(strand, low, high), name_text(strand.name)
    files = within(lake.load().files.values(), name, wanted.place, strand.user(low), strand.user(high))
    for file in sorted(files, key=lambda each: each.first):
        yield from rows_of(root, file, [wanted], shape)


def rows_of(root: str, file: File, wanted: Sequence[Wanted], shape: Shape) -> Iterator[pa.RecordBatch]:
    """The wanted entries of a file as rows of the source."""
    strand = strand_of_row(file.stream, wanted[0].place)
    fields = {} if strand.is_of_log else shape.fields  # a log has no typed columns
    typed = {name: column for name in fields if (column := column_of(name_text(name)))}
    own = set(map(shape.own_column, shape.schema.names))
    if strand.is_of_log or len(typed) < len(fields):
        own.add("fields")
    needs = Needs(
        tuple(name for name in ENTRIES.names if name in own),
        {column: fields[name] for name, column in typed.items()},
    )
    rows = StoredRows(shape, strand, typed)
    for table in read(root, file.path, wanted, needs):
        yield from map(rows.batch, table.to_batches())


def batch_reader(texts: Mapping[str, str], schema: StructType) -> BatchReader:
    """The reader of `spark.read`: for streams, or for a lake and streams."""
    options = source_options(texts)
    shape = Shape.of(schema, options.mode, options.corrupt_column)
    if options.lake is None:
        return FilteringReader(options, shape) if options.push_filters else BatchReader(options, shape)
    return FilteringViewReader(options, shape) if options.push_filters else ViewReader(options, shape)
