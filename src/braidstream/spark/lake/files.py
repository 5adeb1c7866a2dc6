"""Parquet files of a lake, written and read in Spark's tasks.

    position  16 bytes, the user ID as two big-endian numbers: sorts like IDs, also in Parquet's statistics
    id, region, timestamp, fields      the columns of the source
    place     the strand of an entry: s1, c1.2, p

A file is sorted by position. The archive writes files of one strand, in the order of reading; a rewrite
merges several into one.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from braidstream.errors import LakeError
from braidstream.model import ids, keys
from braidstream.model.frontier import name_of_text, name_text, place_of_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.lake.log import DATA, File
from braidstream.spark.source.columns import Irregular, Page
from braidstream.spark.source.rows import META, Rows, Shape, as_text

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.binary(), False),
        pa.field("id", pa.string(), False),
        pa.field("region", pa.int32()),
        pa.field("place", pa.string(), False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("fields", pa.map_(pa.string(), pa.field("value", pa.binary(), False)), False),
    ]
)
FACTS: Final = StructType()
for _name in ("path", "stream", "day", "rows", "bytes", "first", "last", "places"):
    FACTS.add(_name, LongType() if _name in ("rows", "bytes") else StringType())
FILE_ROWS: Final = 1_000_000
FILE_BYTES: Final = 128 << 20
GROUP_ROWS: Final = 100_000
DAY_MS: Final = 86_400_000
FAR: Final = "9999-12-31"  # where the calendar ends


def position(entry: Id) -> bytes:
    return entry[0].to_bytes(8) + entry[1].to_bytes(8)


def entry_of(where: bytes) -> Id:
    return int.from_bytes(where[:8]), int.from_bytes(where[8:])


def split(positions: bytes) -> list[bytes]:
    """Split concatenated positions."""
    return [positions[at : at + 16] for at in range(0, len(positions), 16)]


def day_of(ms: int) -> str:
    days = ms // DAY_MS
    last = (date(9999, 12, 31) - date(1970, 1, 1)).days
    return FAR if days >= last else (date(1970, 1, 1) + timedelta(days=days)).isoformat()


class LakeRows(Rows):
    """Pages of a strand as rows of the lake."""

    def __init__(self, strand: Strand) -> None:
        super().__init__(Shape(META, "PERMISSIVE", "_corrupt_record"), strand)

    def batch(self, page: Page) -> pa.RecordBatch:
        kind = pa.string()
        place = pa.repeat(pa.scalar(place_text(self.strand), kind), len(page))
        columns = [self._position(page), self._id(page), self._region(page), place, self._timestamp(page)]
        return pa.RecordBatch.from_arrays(
            [*columns, self._fields(page).cast(SCHEMA.field("fields").type)], schema=SCHEMA
        )

    def _position(self, page: Page) -> pa.Array:
        if isinstance(page, Irregular):
            users = (self.strand.user((ms, seq)) for ms, seq, _ in page.entries)
            return pa.array([position(user) for user in users], pa.binary())
        pair = np.empty((len(page), 2), ">u8")
        pair[:, 0] = page.ms
        pair[:, 1] = ids.user_seq(page.seq, self.strand.writer) if self.strand.has_generated_ids else page.seq
        return pa.Array.from_buffers(pa.binary(16), len(page), [None, pa.py_buffer(pair.tobytes())]).cast(
            pa.binary()
        )


class Writer:
    """Writes sorted entries to files of one stream and day each. `facts` lists a file once it is closed and
    synced to disk: files of a task that crashes are in no commit."""

    def __init__(self, root: Path, stream: str) -> None:
        self.root, self.stream = root, stream
        self.facts = list[File]()
        self._open: pq.ParquetWriter | None = None
        self._batches, self._rows, self._size = list[pa.RecordBatch](), 0, 0
        self._day, self._path = "", ""
        self._first, self._last, self._places = b"", b"", set[str]()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, split at the end of a day."""
        positions = batch.column(0).to_pylist() if batch.num_rows < 2 else None
        ends = [batch.column(0)[0].as_py(), batch.column(0)[-1].as_py()] if positions is None else positions
        days = [day_of(entry_of(end)[0]) for end in ends]
        if days[0] == days[-1]:
            return self._add(batch, days[0])
        ms = [entry_of(each)[0] for each in batch.column(0).to_pylist()]
        named = np.array([day_of(each) for each in ms])
        cuts = [0, *(np.flatnonzero(named[1:] != named[:-1]) + 1).tolist(), len(ms)]
        for low, high in zip(cuts, cuts[1:], strict=False):
            self._add(batch.slice(low, high - low), str(named[low]))
        return None

    def _add(self, batch: pa.RecordBatch, day: str) -> None:
        if self._path and (day != self._day or self._rows >= FILE_ROWS or self._size >= FILE_BYTES):
            self.close()
        if not self._path:
            self._day = day
            self._path = f"{DATA}/stream={_folder(self.stream)}/day={day}/{uuid.uuid4().hex}.parquet"
            self._first, self._rows, self._size, self._places = batch.column(0)[0].as_py(), 0, 0, set()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._size += batch.nbytes
        self._last = batch.column(0)[-1].as_py()
        self._places.update(pc.unique(batch.column("place")).to_pylist())
        if sum(each.num_rows for each in self._batches) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._open is None:
            target = self.root / self._path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._open = pq.ParquetWriter(
                target,
                SCHEMA,
                compression="zstd",
                use_dictionary=["place", "region", "fields.key_value.key"],
                write_page_index=True,
                sorting_columns=[pq.SortingColumn(0)],
            )
        if self._batches:
            self._open.write_table(pa.Table.from_batches(self._batches, SCHEMA), row_group_size=GROUP_ROWS)
            self._batches = []

    def close(self) -> None:
        """Finish the open file. It is synced to disk before `facts` lists it, because a trim may follow."""
        if not self._path:
            return
        self._flush()
        assert self._open is not None
        self._open.close()
        target = self.root / self._path
        for place in (target, target.parent):
            handle = os.open(place, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        ends = entry_of(self._first), entry_of(self._last)
        places = tuple(sorted(self._places))
        self.facts.append(
            File(self._path, self.stream, self._day, self._rows, target.stat().st_size, *ends, places)
        )
        self._open, self._path = None, ""


def _folder(stream: str) -> str:
    """The folder name of a stream. A long name is replaced by its digest; the log has the full name."""
    name = quote(stream, safe="")
    return name if 0 < len(name) <= 200 else f"sha256-{sha256(stream.encode()).hexdigest()}"


def facts_batch(files: Iterable[File]) -> pa.RecordBatch:
    """The files that a task wrote, as rows for the driver."""
    rows = [{**each.stored, "places": " ".join(each.places)} for each in files]
    return pa.RecordBatch.from_pylist(rows, to_arrow_schema(FACTS, timezone="UTC"))


def facts_of(row: Mapping[str, Any]) -> File:
    return File.parse({**row, "places": row["places"].split(" ")})


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


def read(path: Path, wanted: Sequence[Wanted]) -> Iterator[pa.Table]:
    """The wanted entries of a file, in order. Row groups without any are skipped."""
    try:
        source = pq.ParquetFile(path)
    except FileNotFoundError:
        raise LakeError(
            f"{path}: was deleted, because it was merged into another file over an hour ago. "
            "Start the query again."
        ) from None
    with source:
        for at in range(source.num_row_groups):
            stats = source.metadata.row_group(at).column(0).statistics
            if stats is not None and stats.has_min_max and not any(each.meets(stats) for each in wanted):
                continue
            table = source.read_row_group(at)
            kept = table.filter(_mask(table, wanted))
            if kept.num_rows:
                yield kept


def _mask(table: pa.Table, wanted: Sequence[Wanted]) -> Any:
    mask: Any = None
    for each in wanted:
        here = pc.and_(
            pc.equal(table["place"], each.place),
            pc.and_(pc.greater(table["position"], each.low), pc.less_equal(table["position"], each.high)),
        )
        mask = here if mask is None else pc.or_(mask, here)
    return mask


def rows_of(table: pa.Table, stream: str, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Entries of the lake as rows of the source."""
    name = name_of_text(stream)
    if [each.name for each in shape.schema] == [each.name for each in META]:
        rows = Rows(shape, Strand(name, keys.PLAIN, 0))
        for batch in table.to_batches():
            columns = [pa.repeat(pa.scalar(name_text(name), pa.string()), batch.num_rows)]
            columns += [batch.column(each) for each in ("id", "region", "timestamp")]
            fields = batch.column("fields")
            if pa.types.is_string(rows.arrow.field("fields").type.item_type):
                fields = pa.MapArray.from_arrays(fields.offsets, fields.keys, as_text(fields.items))
            columns.append(fields)
            yield pa.RecordBatch.from_arrays(
                [each.cast(f.type) for each, f in zip(columns, rows.arrow, strict=True)], schema=rows.arrow
            )
        return
    for place in pc.unique(table["place"]).to_pylist():
        strand = place_of_text(name, place)
        assert strand is not None, place
        part = table.filter(pc.equal(table["place"], place))
        for batch in part.to_batches():
            yield Rows(shape, strand).batch(_page(batch, strand))


def _page(batch: pa.RecordBatch, strand: Strand) -> Irregular:
    """Entries of the lake as a page, like one from the engine."""
    entries = list[tuple[int, int, dict[bytes, bytes]]]()
    for where, fields in zip(
        batch.column("position").to_pylist(), batch.column("fields").to_pylist(), strict=True
    ):
        ms, seq = strand.exact(entry_of(where)) or ids.ZERO
        entries.append((ms, seq, {name.encode(): value for name, value in fields}))
    return Irregular(entries)


def merged(
    root: Path, stream: str, paths: Sequence[str], dropped: Mapping[str, Sequence[bytes]]
) -> list[File]:
    """Merge several files of a stream and day, without the dropped entries (by place)."""
    tables = [pq.read_table(root / path, schema=SCHEMA) for path in paths]
    table = pa.concat_tables(tables)
    for place, positions in dropped.items():
        is_in = pc.is_in(table["position"], pa.array(positions, pa.binary()))
        table = table.filter(pc.invert(pc.and_(pc.equal(table["place"], place), is_in)))
    table = table.sort_by([("position", "ascending"), ("place", "ascending")])
    writer = Writer(root, stream)
    for batch in table.to_batches(max_chunksize=GROUP_ROWS):
        if batch.num_rows:
            writer.write(batch)
    writer.close()
    return writer.facts
