"""One window of a replay, in a task: reads its entries, sorts them, and stages them (or appends them).

    |                    window                    |
    |    slice    |  slice  |        slice         |     one after the other, so memory stays bounded

The entries do not become rows of Spark: that would cost more than all the rest. Only an SQL condition needs
Spark; it sorts what the condition has chosen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from braidstream.clients.any_region import AnyClient, open_region
from braidstream.errors import SinkError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text
from braidstream.model.ids import Id
from braidstream.spark.sink.ledger import Stage
from braidstream.spark.sink.writer import BatchWriter, Staged, batch_writer
from braidstream.spark.source.rows import META
from braidstream.spark.view import batch_reader

# What a task gets: the times of a window, as text because they may be above 2^63. What it returns: how many
# entries, and what it has staged.
PIECE: Final = StructType([StructField("low", StringType()), StructField("high", StringType())])
FACTS: Final = StructType(
    [
        StructField("entries", LongType()),
        StructField("url", IntegerType()),
        StructField("token", StringType()),
        StructField("chunks", IntegerType()),
    ]
)
COLUMNS: Final = ("id", "region", "fields")
AT_ONCE: Final = 500
# A slice that turns out to have more is read again in parts. A millisecond is not divided.
MOST_ROWS: Final = 1_000_000
MOST_BYTES: Final = 256 << 20
_WANTED_ROWS: Final = MOST_ROWS // 2
_WANTED_BYTES: Final = MOST_BYTES // 2
_ROWS: Final = 20_000

Facts = list[dict[str, Any]]
Read = Callable[[int, int], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Window:
    """source: options of a batch read. job, number: the transaction; None: entries keep their IDs."""

    source: dict[str, str]
    url: str
    target: str
    job: str | None
    number: int

    def replay(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: read the window, and stage or append its entries."""
        for piece in pieces:
            for row in piece.to_pylist():
                entries = in_slices(self._read, int(row["low"]), int(row["high"]))
                yield from self.take(batch for table in entries for batch in table.to_batches(_ROWS))

    def take(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: stage or append entries, which are in order."""
        if self.job is None:
            yield _facts(append(self.url, self.target, _entries(batches)))
            return
        staged = self.writer.stage(map(_named, batches))
        stage = staged.stages[0] if staged.stages else Stage(b"", "", 0, 0)
        yield _facts(stage.rows, staged.url, stage.token, stage.chunks)

    @property
    def writer(self) -> BatchWriter:
        transaction = {"txnAppId": str(self.job), "txnVersion": str(self.number)}
        options = {"url": self.url, "stream": self.target, **transaction}
        schema = StructType([StructField("fields", MapType(BinaryType(), BinaryType(), False), False)])
        return batch_writer(options, schema, overwrite=False)

    def publish(self, facts: Facts) -> int:
        """In the driver: publish what a task has staged. Counts entries."""
        if self.job is not None:
            try:
                self.writer.publish(self._staged(facts), self.number, in_sequence=False)
            except BaseException:
                self.abandon(facts)
                raise
        return sum(each["entries"] for each in facts)

    def abandon(self, facts: Facts) -> None:
        """Delete what a task has staged."""
        if self.job is not None:
            self.writer.abandon(self._staged(facts))

    def _staged(self, facts: Facts) -> list[WriterCommitMessage | None]:
        name, sink = name_of_text(self.target), str(self.job)
        return [
            Staged(sink, "", each["url"], (Stage(name, each["token"], each["chunks"], each["entries"]),))
            for each in facts
            if each["chunks"]
        ]

    def _read(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        reader = batch_reader(between(self.source, low, high), META)
        for part in reader.partitions():
            for batch in reader.read(part):
                yield batch.select([*COLUMNS])


def between(source: dict[str, str], low: int, high: int) -> dict[str, str]:
    """The options of a batch read, for these times only."""
    return {**source, "startingTimestamp": str(low), "endingTimestamp": str(high)}


def in_slices(read: Read, low: int, high: int) -> Iterator[pa.Table]:
    """The entries of a window, in order. Times in milliseconds, high: exclusive."""
    width = high - low
    while low < high:
        width = max(1, min(width, high - low))
        found = _gather(read(low, low + width), whole=width == 1)
        if found is None:
            width //= 4
            continue
        rows, size = sum(batch.num_rows for batch in found), sum(batch.nbytes for batch in found)
        if rows:
            yield in_order(pa.Table.from_batches(found))
        low += width
        by_rows, by_size = width * _WANTED_ROWS // max(1, rows), width * _WANTED_BYTES // max(1, size)
        width = min(4 * width, by_rows, by_size)


def _gather(batches: Iterator[pa.RecordBatch], *, whole: bool) -> list[pa.RecordBatch] | None:
    """None: they are too many."""
    found, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        found.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if not whole and (rows > MOST_ROWS or size > MOST_BYTES):
            return None
    return found


def in_order(table: pa.Table) -> pa.Table:
    """Entries in the order of their IDs, then of their regions."""
    halves = pc.split_pattern(table["id"].combine_chunks(), "-")
    ms, seq = (pc.list_element(halves, at).cast(pa.uint64()).to_numpy() for at in (0, 1))
    region = pc.fill_null(table["region"], 0).to_numpy()
    order = np.lexsort((region, seq, ms))
    is_sorted = bool((order[1:] > order[:-1]).all())
    return table if is_sorted else table.take(order)


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Only the fields, with their names as bytes."""
    column = batch.column("fields")
    offsets = column.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    coded = column.keys.slice(first, count).dictionary_encode()
    names = pa.array([name_of_text(name) for name in coded.dictionary.to_pylist()], pa.binary())
    starts = pa.array(offsets - first, pa.int32())
    fields = pa.MapArray.from_arrays(starts, names.take(coded.indices), column.items.slice(first, count))
    return pa.RecordBatch.from_arrays([fields], ["fields"])


def _entries(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    for batch in batches:
        yield from zip(batch.column("id").to_pylist(), batch.column("fields").to_pylist(), strict=True)


def _facts(entries: int, url: int = 0, token: str = "", chunks: int = 0) -> pa.RecordBatch:
    columns = [[entries], [url], [token], [chunks]]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, of.type) for each, of in zip(columns, to_arrow_schema(FACTS), strict=True)],
        FACTS.names,
    )


def append(url: str, target: str, entries: Iterator[tuple[str, list[tuple[str, bytes]]]]) -> int:
    """Append entries after the target's last one, with their IDs. Idempotent. Counts all."""
    with open_region(url) as client:
        last, pending, before, count = last_of(client, target), list[tuple[str, Any]](), "", 0
        for entry, fields in entries:
            if entry == before:
                raise SinkError(
                    f"stream {target}: two entries have the ID {entry}, of two streams or two regions. "
                    'Replay one of them: with --streams, or --where "region = 1". Or omit --keep-ids.'
                )
            before, count = entry, count + 1
            if key_of(entry) > last:
                pending.append((entry, fields))
            if len(pending) == AT_ONCE:
                _send(client, target, pending)
                pending = []
        _send(client, target, pending)
        return count


def _send(client: AnyClient, target: str, entries: list[tuple[str, Any]]) -> None:
    if not entries:
        return
    with client.pipeline(transaction=True) as pipe:
        for entry, fields in entries:
            words = chain.from_iterable((name_of_text(name), value) for name, value in fields)
            pipe.execute_command("XADD", target, entry, *words)
        pipe.execute()


def last_of(client: AnyClient, target: str) -> Id:
    if not client.exists(target):
        return ids.ZERO
    last: Any = client.xinfo_stream(target)["last-generated-id"]
    return key_of(last.decode() if isinstance(last, bytes) else last)


def key_of(entry: str) -> Id:
    return ids.native(entry.encode())
