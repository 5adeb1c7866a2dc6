"""replay: copies entries of a lake or a stream into a stream, by windows of time.

    source    |    w0     |    w1     |    w2     |      windows of the IDs' time, the same in every run
    target    <- w0, w1 ...                               each is one transaction of the sink

To resume a killed run, start it again with the same arguments: it skips windows that the target has, and
finishes the one in progress. New IDs are generated, or the old ones kept: then the target's last ID is the
progress.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from braidstream.clients.any_region import AnyClient, open_region
from braidstream.errors import OptionError, SinkError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text

AT_ONCE: Final = 500
# A map has names of fields as `name_text` makes them; this is `name_of_text`.
_BYTES: Final = (
    "transform_keys(fields, (k, v) -> IF(k LIKE 'base64:%', unbase64(substr(k, 8)), CAST(k AS BINARY)))"
)


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


def windows(since_ms: int, until_ms: int, width_ms: int) -> Iterator[tuple[int, int, int]]:
    """(number, from, to): numbered by start time, so that every run has the same windows."""
    for number in range(since_ms // width_ms, -(-until_ms // width_ms)):
        yield number, max(since_ms, number * width_ms), min(until_ms, (number + 1) * width_ms)


def in_order(frame: DataFrame) -> DataFrame:
    """Entries in the order of their IDs, as one partition."""
    ms, seq = (f.conv(f.split_part("id", f.lit("-"), f.lit(at)), 10, 16) for at in (1, 2))
    keys = f.lpad(ms, 16, "0"), f.lpad(seq, 16, "0"), "region"
    return frame.coalesce(1).sortWithinPartitions(*keys)


def chosen(frame: DataFrame, where: str) -> DataFrame:
    return frame.where(where) if where else frame


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
    for number, low, high in windows(what.since_ms, what.until_ms, what.window_ms):
        time.sleep(pause_s(what, began_s=began, now_s=time.monotonic(), done=done, from_ms=low))
        frame = in_order(chosen(_between(spark, what, low, high), what.where)).cache()
        try:
            count = frame.count()
            if count:
                _write(frame, what, number)
        finally:
            frame.unpersist()
        done += count
        show(done, high)
    return done


def _between(spark: SparkSession, what: Replay, low: int, high: int) -> DataFrame:
    bounds = {"startingTimestamp": str(low), "endingTimestamp": str(high)}
    reader = spark.read.format("braidstream").options(**what.source, **bounds)
    return reader.load()


def _write(frame: DataFrame, what: Replay, number: int) -> None:
    if what.keep_ids:
        frame.select("id", "fields").foreachPartition(partial(_append, what.url, what.target))
        return
    writer = frame.select(f.expr(_BYTES).alias("fields")).write.format("braidstream").mode("append")
    options = {"url": what.url, "stream": what.target, "txnAppId": what.job, "txnVersion": str(number)}
    writer.options(**options).save()


def _append(url: str, target: str, rows: Iterator[Row]) -> None:
    """In a task: append entries after the target's last one, with their IDs. Idempotent."""
    with open_region(url) as client:
        last, pending, before = _last(client, target), list[Row](), ""
        for row in rows:
            if row.id == before:
                raise SinkError(
                    f"stream {target}: two entries have the ID {row.id}, of two streams or two regions. "
                    'Replay one of them: with --streams, or --where "region = 1". Or omit --keep-ids.'
                )
            before = row.id
            if _key(row.id) > last:
                pending.append(row)
            if len(pending) == AT_ONCE:
                _send(client, target, pending)
                pending = []
        _send(client, target, pending)


def _send(client: AnyClient, target: str, rows: list[Row]) -> None:
    if not rows:
        return
    with client.pipeline(transaction=True) as pipe:
        for row in rows:
            words = [
                word for name, value in row.fields.items() for word in (name_of_text(name), bytes(value))
            ]
            pipe.execute_command("XADD", target, row.id, *words)
        pipe.execute()


def _last(client: AnyClient, target: str) -> tuple[int, int]:
    if not client.exists(target):
        return 0, 0
    last: Any = client.xinfo_stream(target)["last-generated-id"]
    return _key(last.decode() if isinstance(last, bytes) else last)


def _key(entry: str) -> tuple[int, int]:
    return ids.native(entry.encode())


def _check_target(spark: SparkSession, what: Replay) -> None:
    """To keep IDs, the target must be new, or have entries of an earlier run of this replay.

    A stream that is empty now accepts no ID up to its last one, also if its entries are gone.
    """
    with open_region(what.url) as client:
        found: Any = client.xrange(what.target, count=1)
        last = _last(client, what.target)
    if found:
        _check_part(spark, what, found[0][0].decode(), "begins with")
    elif last > ids.ZERO:
        _check_part(spark, what, ids.text(last).decode(), "is empty, and its last ID is")


def _check_part(spark: SparkSession, what: Replay, entry: str, how: str) -> None:
    ms = _key(entry)[0]
    is_in_time = what.since_ms <= ms < what.until_ms
    if is_in_time:
        around = chosen(_between(spark, what, ms, ms + 1), what.where)
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
