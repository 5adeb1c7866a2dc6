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
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from braidstream.clients.any_region import open_region
from braidstream.errors import OptionError, SinkError
from braidstream.model import ids
from braidstream.spark.jobs.replay_window import (
    COLUMNS,
    FACTS,
    PIECE,
    Facts,
    Window,
    between,
    key_of,
    last_of,
)
from braidstream.spark.lake.distribute import run

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


def in_order(frame: DataFrame) -> DataFrame:
    """Entries in the order of their IDs, as one partition."""
    ms, seq = (f.conv(f.split_part("id", f.lit("-"), f.lit(at)), 10, 16) for at in (1, 2))
    keys = f.lpad(ms, 16, "0"), f.lpad(seq, 16, "0"), "region"
    return frame.select(*COLUMNS).coalesce(1).sortWithinPartitions(*keys)


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
            for window, _, facts in reversed(waiting):  # after an error; one that has not begun never shall
                if not facts.cancel() and facts.exception() is None:
                    window.abandon(facts.result())


def _first(waiting: _Waiting) -> tuple[Window, int, Facts]:
    """Wait for the first window. It leaves the list only then, so that Ctrl-C does not forget its stage."""
    window, high, facts = waiting[0]
    staged = facts.result()
    waiting.popleft()
    return window, high, staged


def _stage(spark: SparkSession | None, what: Replay, window: Window, low: int, high: int) -> Facts:
    if not what.where:
        return run(spark, [(str(low), str(high))], PIECE, window.replay, FACTS)
    assert spark is not None
    frame = in_order(_between(spark, what, low, high).where(what.where))
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
