"""replay: copies entries of a lake or a stream into a stream, by windows of time.

    source    |    w0     |    w1     |    w2     |      windows of the IDs' time, the same in every run
    target    <- w0, w1 ...                               each is one transaction of the sink

To resume a killed run, start it again with the same arguments: it skips windows that the target has, and
finishes the one in progress. New IDs are generated, or the old ones kept: then the target's last ID is the
progress. Without a pace, the next window is staged while one is published.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from braidstream.errors import OptionError, SinkError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text
from braidstream.model.ids import Id
from braidstream.operations.open_region import AnyClient, open_region
from braidstream.spark import tasks
from braidstream.spark.compat import arrow_schema, spread
from braidstream.spark.sink.ledger import Stage
from braidstream.spark.sink.writer import BatchWriter, Staged, batch_writer
from braidstream.spark.source.rows import META
from braidstream.spark.view import batch_reader

# ----------------------------------------------------------------------------------------------------
#
# One window of a replay. A task for each core but one reads a part of it, sorts the entries, and stages
# them. They are published in the order of the parts. Entries that keep their IDs are appended by one task.
#
#     |                    window                    |
#     |         part          |         part         |     a task each
#     |  slice  |    slice    | slice | slice | slice|     one after the other, so memory stays bounded
#
# The entries do not become rows of Spark: that would cost more than all the rest. Only an SQL condition
# needs Spark; it sorts what the condition has chosen.

# What a task returns: how many entries, and what it has staged.
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

    def replay(self, parts: Iterator[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """In a task: read parts of the window, and stage or append their entries."""
        for low, high in parts:
            tables = in_slices(self._read, low, high)
            yield from self.take(batch for table in tables for batch in table.to_batches(_ROWS))

    def take(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: stage or append entries, which are in order."""
        if self.job is None:
            yield _facts(append(self.url, self.target, _entries(batches)))
            return
        staged = self.writer.write(map(_named, batches))
        stage = staged.stages[0] if staged.stages else Stage(b"", "", 0, 0)
        yield _facts(stage.rows, staged.url, stage.token, stage.chunks)

    @property
    def writer(self) -> BatchWriter:
        transaction = {"txnAppId": str(self.job), "txnVersion": str(self.number)}
        options = {"url": self.url, "stream": self.target, **transaction}
        schema = StructType([StructField("fields", MapType(BinaryType(), BinaryType(), False), False)])
        return batch_writer(options, schema, overwrite=False)

    def publish(self, facts: Facts) -> int:
        """In the driver: publish what tasks have staged. Counts entries."""
        if self.job is not None:
            try:
                self.writer.publish(self._staged(facts), self.number, in_sequence=False)
            except BaseException:
                self.abandon(facts)
                raise
        return sum(each["entries"] for each in facts)

    def abandon(self, facts: Facts) -> None:
        """Delete what tasks have staged."""
        if self.job is not None:
            self.writer.abort(self._staged(facts))

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
            yield window_in_order(pa.Table.from_batches(found))
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


def window_in_order(table: pa.Table) -> pa.Table:
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
        [pa.array(each, of.type) for each, of in zip(columns, arrow_schema(FACTS), strict=True)],
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


# ----------------------------------------------------------------------------------------------------
# Replay

_Waiting = deque[tuple[Window, int, Future[Facts]]]


@dataclass(frozen=True, slots=True)
class Replay:
    """What to replay (options of a batch read), into which stream. Times in milliseconds, until: exclusive.

    where: an SQL condition on stream, id, region, timestamp, fields. rate: entries per second. speed: 10 is
    ten times as fast as the original.
    """

    source: dict[str, str]
    url: str
    target: str
    job: str
    since_ms: int
    until_ms: int
    where: str = ""
    window_ms: int = 3_600_000
    rate: float | None = None
    speed: float | None = None
    keep_ids: bool = False

    @property
    def transaction(self) -> str | None:
        return None if self.keep_ids else self.job


def windows(since_ms: int, until_ms: int, width_ms: int) -> Iterator[tuple[int, int, int]]:
    """(number, from, to): numbered by start time, so that every run has the same windows."""
    for number in range(since_ms // width_ms, -(-until_ms // width_ms)):
        yield number, max(since_ms, number * width_ms), min(until_ms, (number + 1) * width_ms)


def parts_of(low: int, high: int, count: int) -> list[tuple[int, int]]:
    """A window (times in milliseconds) in parts of equal time."""
    width = -(-(high - low) // max(1, count))
    return [(at, min(at + width, high)) for at in range(low, high, width)]


def in_order(frame: DataFrame, parts: list[tuple[int, int]]) -> DataFrame:
    """Entries in the order of their IDs: a partition for each part of a window."""
    low, width = parts[0][0], parts[0][1] - parts[0][0]
    ms, seq = (f.split_part("id", f.lit("-"), f.lit(at)) for at in (1, 2))
    part = ((ms.cast("decimal(20)") - low) / width).cast("int")
    keys = (f.lpad(f.conv(each, 10, 16), 16, "0") for each in (ms, seq))
    tasks_of = spread(frame.select(*COLUMNS, part.alias("part")), len(parts), "part")
    return tasks_of.sortWithinPartitions(*keys, "region").select(*COLUMNS)


def pause_s(what: Replay, *, began_s: float, now_s: float, done: int, from_ms: int) -> float:
    """How long to wait before the entries at `from_ms`, after `done` entries."""
    due = began_s
    if what.rate:
        due = max(due, began_s + done / what.rate)
    if what.speed:
        due = max(due, began_s + (from_ms - what.since_ms) / 1000 / what.speed)
    return max(0.0, due - now_s)


def replay(
    spark: SparkSession, what: Replay, show: Callable[[int, int], None] = lambda entries, upto_ms: None
) -> int:
    """Replay all windows. Returns the number of entries, also of windows that an earlier run has done."""
    if what.keep_ids:
        _check_target(spark, what)
    began, done = time.monotonic(), 0

    def pace(low: int) -> None:
        time.sleep(pause_s(what, began_s=began, now_s=time.monotonic(), done=done, from_ms=low))

    with closing(_staged(spark, what, pace)) as staged:
        for window, high, facts in staged:
            done += window.publish(facts)
            show(done, high)
    return done


def _staged(
    spark: SparkSession | None, what: Replay, pace: Callable[[int], None]
) -> Generator[tuple[Window, int, Facts]]:
    """The windows, with the ends of their times and what was staged of them. IDs that are kept must be
    appended in turn."""
    most = 1 if what.rate or what.speed or what.keep_ids else 2
    waiting = _Waiting()
    with ThreadPoolExecutor(1) as pool:
        try:
            for number, low, high in windows(what.since_ms, what.until_ms, what.window_ms):
                pace(low)
                window = Window(what.source, what.url, what.target, what.transaction, number)
                waiting.append((window, high, pool.submit(_stage, spark, what, window, low, high)))
                if len(waiting) == most:
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        finally:
            for window, _, facts in reversed(waiting):  # after an error; cancel those that have not begun
                if not facts.cancel() and facts.exception() is None:
                    window.abandon(facts.result())


def _first(waiting: _Waiting) -> tuple[Window, int, Facts]:
    """Wait for the first window. It leaves the list only then, so that Ctrl-C does not forget its stage."""
    window, high, facts = waiting[0]
    staged = facts.result()
    waiting.popleft()
    return window, high, staged


def _stage(spark: SparkSession | None, what: Replay, window: Window, low: int, high: int) -> Facts:
    is_one = what.keep_ids or what.rate or what.speed
    # One core publishes meanwhile: on two, a second task would make it slower.
    parts = parts_of(low, high, 1 if is_one or spark is None else tasks.slots(spark) - 1)
    if not what.where:
        return tasks.run(spark, parts, window.replay, FACTS)
    assert spark is not None
    frame = in_order(_between(spark, what, low, high).where(what.where), parts)
    return [row.asDict() for row in frame.mapInArrow(window.take, FACTS).collect()]


def _between(spark: SparkSession, what: Replay, low: int, high: int) -> DataFrame:
    return spark.read.format("braidstream").options(**between(what.source, low, high)).load()


def _check_target(spark: SparkSession, what: Replay) -> None:
    """To keep IDs, the target must be new, or have entries of an earlier run of this replay.

    A stream that is empty now accepts no ID up to its last one, also if its entries are gone.
    """
    with open_region(what.url) as client:
        found: Any = client.xrange(what.target, count=1)
        last = last_of(client, what.target)
    if found:
        _check_part(spark, what, found[0][0].decode(), "begins with")
    elif last > ids.ZERO:
        _check_part(spark, what, ids.text(last).decode(), "is empty, and its last ID is")


def _check_part(spark: SparkSession, what: Replay, entry: str, how: str) -> None:
    ms = key_of(entry)[0]
    is_in_time = what.since_ms <= ms < what.until_ms
    if is_in_time:
        around = _between(spark, what, ms, ms + 1).where(what.where or "true")
        if not around.where(f.col("id") == entry).isEmpty():
            return
    raise SinkError(
        f"stream {what.target}: {how} {entry}, which is not part of this replay. IDs can be kept "
        "only in a stream of its own: name a new one, or omit --keep-ids to generate new IDs."
    )


def check(what: Replay) -> Replay:
    if what.since_ms >= what.until_ms:
        raise OptionError("until", "must be later than since")
    if what.window_ms < 1:
        raise OptionError("window", "must be a millisecond or more")
    return what
