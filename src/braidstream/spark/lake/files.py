"""Parquet files of a lake, written and read in Spark's tasks.

    stream, id, region, timestamp      the columns of the source
    position  16 bytes, the user ID as two big-endian numbers: sorts like IDs, also in Parquet's statistics
    place     the strand of an entry: s1, c1.2, p
    fields    array of (name, value), as the entry has them: repeated names and their order are kept
    and the typed columns of its table, if it has any (typed_columns.py)

A file is sorted by position. The archive writes files of one strand, in the order of reading; a rewrite
merges several into one.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructType

from braidstream.errors import LakeError
from braidstream.model import ids
from braidstream.model.frontier import place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.compat import arrow_schema
from braidstream.spark.lake.log import STORED, TABLE, File, store_of
from braidstream.spark.lake.typed_columns import RESCUED
from braidstream.spark.source.rows import ENTRIES, entry_of, position

FACTS: Final = StructType()
for _name in ("path", "stream", "day", "rows", "bytes", "first", "last", "places", "stats"):
    FACTS.add(_name, LongType() if _name in ("rows", "bytes") else StringType())
FILE_ROWS: Final = 1_000_000
FILE_BYTES: Final = 128 << 20
GROUP_ROWS: Final = 100_000
DAY_MS: Final = 86_400_000
FAR: Final = "9999-12-31"  # where the calendar ends


def day_of(ms: int) -> str:
    days = ms // DAY_MS
    last = (date(9999, 12, 31) - date(1970, 1, 1)).days
    return FAR if days >= last else (date(1970, 1, 1) + timedelta(days=days)).isoformat()


class Writer:
    """Writes sorted entries to files of one stream and day each. `facts` lists a file once it is synced to
    disk: files of a task that crashes are in no commit.

    prefix: where the files of the stream are, below the root. A file is made in memory (it is compressed, of
    at most FILE_BYTES), because its name has the first and the last ID, for readers that skip files.
    """

    def __init__(self, root: str, prefix: str, stream: str) -> None:
        self.store, self.prefix, self.stream = store_of(root), prefix, stream
        self.facts = list[File]()
        self._open: pq.ParquetWriter | None = None
        self._sink = pa.BufferOutputStream()
        self._batches, self._rows, self._size, self._nulls = list[pa.RecordBatch](), 0, 0, dict[str, int]()
        self._day = ""
        self._first, self._last, self._places = b"", b"", set[str]()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, split at the end of a day."""
        positions = batch.column("position")
        days = [day_of(entry_of(positions[at].as_py())[0]) for at in (0, -1)]
        if days[0] == days[1]:
            return self._add(batch, days[0])
        named = np.array([day_of(entry_of(each)[0]) for each in positions.to_pylist()])
        cuts = [0, *(np.flatnonzero(named[1:] != named[:-1]) + 1).tolist(), batch.num_rows]
        for low, high in zip(cuts, cuts[1:], strict=False):
            self._add(batch.slice(low, high - low), str(named[low]))
        return None

    def _add(self, batch: pa.RecordBatch, day: str) -> None:
        if self._day and (day != self._day or self._rows >= FILE_ROWS or self._size >= FILE_BYTES):
            self.close()
        positions = batch.column("position")
        if not self._day:
            self._day = day
            self._first, self._rows, self._size = positions[0].as_py(), 0, 0
            self._places, self._nulls = set(), {}
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._size += batch.nbytes
        for name in {"timestamp", RESCUED} & {*batch.schema.names}:
            self._nulls[name] = self._nulls.get(name, 0) + batch.column(name).null_count
        self._last = positions[-1].as_py()
        self._places.update(pc.unique(batch.column("place")).to_pylist())
        if sum(each.num_rows for each in self._batches) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        if self._open is None:
            typed = [each for each in table.schema if each.name not in ENTRIES.names]
            texts = [each.name for each in typed if pa.types.is_string(each.type)]
            self._sink = pa.BufferOutputStream()
            self._open = pq.ParquetWriter(
                self._sink,
                pa.schema([*STORED, *typed]),
                compression="zstd",
                use_dictionary=["stream", "place", "region", "fields.list.element.name", *texts],
                write_page_index=True,
                sorting_columns=[pq.SortingColumn(STORED.get_field_index("position"))],
            )
        stream = pa.repeat(pa.scalar(self.stream, pa.string()), table.num_rows)
        table = table.add_column(0, STORED.field("stream"), stream)
        self._open.write_table(table, row_group_size=GROUP_ROWS)
        self._batches = []

    def close(self) -> None:
        """Finish the open file. It is synced to disk before `facts` lists it, because a trim may follow."""
        if not self._day:
            return
        self._flush()
        assert self._open is not None
        self._open.close()
        ends = entry_of(self._first), entry_of(self._last)
        name = "_".join([*(ids.text(each).decode() for each in ends), uuid.uuid4().hex])
        path = f"{self.prefix}/day={self._day}/{name}.parquet"
        with self.store.create(path) as out:
            out.write(self._sink.getvalue())
        size = self.store.sync(path)
        places = min(self._places), max(self._places)
        stats = self._stats(ends, places)
        self.facts.append(File(path, self.stream, self._day, self._rows, size, *ends, places, stats))
        self._open, self._day, self._sink = None, "", pa.BufferOutputStream()

    def _stats(self, ends: tuple[Id, Id], places: tuple[str, str]) -> str:
        """Statistics for Delta: readers skip files by time and strand.

        None of the values of fields: they would outlive a deletion in the log, for a day.
        """
        times = [{} if self._nulls["timestamp"] else {"timestamp": _moment(ms)} for ms, _ in ends]
        least, most = ({"place": place, **time} for place, time in zip(places, times, strict=True))
        nulls = {"place": 0, **self._nulls}
        return json.dumps(
            {"numRecords": self._rows, "minValues": least, "maxValues": most, "nullCount": nulls}
        )


def _moment(ms: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def facts_batch(files: Iterable[File]) -> pa.RecordBatch:
    """The files that a task wrote, as rows for the driver."""
    rows = [
        {
            **{name: getattr(each, name) for name in FACTS.names},
            "first": ids.text(each.first).decode(),
            "last": ids.text(each.last).decode(),
            "places": " ".join(each.places),
        }
        for each in files
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(FACTS))


def new_fields_batch(stream: str, fields: Iterable[str]) -> pa.RecordBatch:
    """Fields that need a column before files can be written, as a row for the driver: without a path."""
    row = {"path": "", "stream": stream, "stats": json.dumps(sorted(fields))}
    return pa.RecordBatch.from_pylist([row], arrow_schema(FACTS))


def facts_of(row: Mapping[str, Any]) -> File:
    first, last = (ids.native(row[name].encode()) for name in ("first", "last"))
    low, high = row["places"].split(" ")
    return File(**{**row, "first": first, "last": last, "places": (low, high)})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Entries of a strand (its place) after `low`, up to and including `high`, as positions."""

    place: str
    low: bytes
    high: bytes

    @staticmethod
    def of(strand: Strand, low: Id, high: Id) -> "Wanted":
        """From native IDs."""
        return Wanted(place_text(strand), position(strand.user(low)), position(strand.user(high)))

    def meets(self, stats: Any) -> bool:
        """Whether a row group may have such entries."""
        return bool(self.high >= stats.min and self.low < stats.max)


@dataclass(frozen=True, slots=True)
class Needs:
    """Which columns of entries a reader needs: our own ones, and typed columns in place of `fields`.

    A typed column is read if it has the type and a value in every row: a null may also be a value that did
    not fit, or older than the column. Else `fields` are read.
    """

    own: tuple[str, ...] = tuple(ENTRIES.names)
    typed: Mapping[str, pa.DataType] = field(default_factory=dict)

    def of(self, source: pq.ParquetFile, group: int) -> list[str]:
        """The columns to read of a row group."""
        leaves, full = source.metadata.row_group(group), set[str]()
        for leaf in map(leaves.column, range(leaves.num_columns if self.typed else 0)):
            if leaf.statistics is not None and leaf.statistics.null_count == 0:
                full.add(leaf.path_in_schema)
        there = source.schema_arrow
        typed = [name for name in self.typed if name in full and _kind(there, name) == self.typed[name]]
        rest = ["fields"] if len(typed) < len(self.typed) else []
        return list(dict.fromkeys(["position", "place", *self.own, *typed, *rest]))


ENTIRE: Final = Needs()


def _kind(schema: pa.Schema, name: str) -> pa.DataType:
    return _stored_type(schema.field(name).type)


def read(root: str, path: str, wanted: Sequence[Wanted], needs: Needs = ENTIRE) -> Iterator[pa.Table]:
    """The wanted entries of a file, in order. Row groups without any are skipped."""
    with _open(root, path) as source:
        columns = source.schema.names  # of the leaves
        for at in range(source.num_row_groups):
            stats = source.metadata.row_group(at).column(columns.index("position")).statistics
            if stats is not None and stats.has_min_max and not any(each.meets(stats) for each in wanted):
                continue
            names = needs.of(source, at)
            found = source.read_row_group(at, names).select(names)
            schema = pa.schema(
                [ENTRIES.field(n) if n in ENTRIES.names else (n, _kind(found.schema, n)) for n in names]
            )
            table = found.cast(schema)
            kept = table.filter(_mask(table, wanted))
            if kept.num_rows:
                yield kept


def _open(root: str, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(store_of(root).open(path))
    except FileNotFoundError:
        raise LakeError(
            f"{root}/{path}: is missing. If another job has rewritten it since this one began (merge, "
            "compact, forget), start this one again."
        ) from None


def _mask(table: pa.Table, wanted: Sequence[Wanted]) -> Any:
    mask: Any = None
    for each in wanted:
        here = pc.and_(
            pc.equal(table["place"], each.place),
            pc.and_(pc.greater(table["position"], each.low), pc.less_equal(table["position"], each.high)),
        )
        mask = here if mask is None else pc.or_(mask, here)
    return mask


def _whole(table: pa.Table) -> pa.Table:
    """A file without the columns by which its table is partitioned, and with the typed ones last."""
    made = table.select(ENTRIES.names).cast(ENTRIES)
    for each in table.schema:
        if each.name not in TABLE.names:
            kind = _stored_type(each.type)
            made = made.append_column(pa.field(each.name, kind), table[each.name].cast(kind))
    return made


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """How we store a type that another program may have stored in another form."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.timestamp("us", tz=kind.tz) if pa.types.is_timestamp(kind) else kind


def merged(
    root: str, stream: str, paths: Sequence[str], dropped: Mapping[str, Sequence[bytes]]
) -> list[File]:
    """Merge several files of a stream and day, without the dropped entries (by place)."""
    tables = list[pa.Table]()
    for path in paths:
        with _open(root, path) as source:
            tables.append(_whole(source.read()))
    table = pa.concat_tables(tables, promote_options="permissive")  # a file may be older than a column
    for place, positions in dropped.items():
        is_in = pc.is_in(table["position"], pa.array(positions, pa.binary()))
        table = table.filter(pc.invert(pc.and_(pc.equal(table["place"], place), is_in)))
    table = table.sort_by([("position", "ascending"), ("place", "ascending")])
    writer = Writer(root, paths[0].partition("/day=")[0], stream)
    for batch in table.to_batches(max_chunksize=GROUP_ROWS):
        if batch.num_rows:
            writer.write(batch)
    writer.close()
    return writer.facts
