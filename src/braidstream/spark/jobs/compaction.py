"""compact: keeps the last entry of each key, in the live streams and in the lake.

    round    survey -> read all copies older than the horizon -> verdicts -> live: superseded
                    -> lake: superseded and tombstones, in one commit -> live: tombstones

A round can be killed at any point: the next one starts with a new survey. No state is kept between rounds,
because a superseded entry stays superseded. Tombstones are removed last, and only from streams where
everything else was removed, so an entry never outlives the tombstone after it.
"""

import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from braidstream.errors import OptionError
from braidstream.model import ids
from braidstream.spark.jobs import deletions
from braidstream.spark.jobs.commit_probe import probe
from braidstream.spark.jobs.copies import about, copies, scopes
from braidstream.spark.jobs.lasts import HELD, SUPERSEDED, TOMBSTONE, is_tombstone, key_of, keyed, verdicts
from braidstream.spark.jobs.no_times import refuse_logs
from braidstream.spark.jobs.removal import Removed, remove, steps
from braidstream.spark.lake.lake_state import State
from braidstream.spark.lake.log import Lake, check_lake
from braidstream.spark.lake.rewrite import Dropped, drop, tidy
from braidstream.spark.options import Servers
from braidstream.spark.source.entries import position
from braidstream.spark.source.grouping import TASK_ROWS
from braidstream.spark.source.survey import Surveyor

Show = Callable[[str, int, int | None], None]  # shows progress: the phase, how much is done, of how much
_KEPT_FOR_USE: Final = StorageLevel.MEMORY_AND_DISK


@dataclass(frozen=True, slots=True)
class Compact:
    """What to compact: a lake, live streams, or both. key: a field; key_sql: an expression instead.

    keep_s: ignore younger entries. grace_s: how long tombstones are kept.
    """

    lake: str | None
    servers: Servers | None
    streams: tuple[bytes, ...] = ()
    pattern: bytes | None = None
    key: str = ""
    key_sql: str = ""
    tombstone_sql: str = ""
    keep_s: float = 3600.0
    grace_s: float = 86_400.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did; for a dry run, what it would do.

    entries: copies it read. deleted, dropped: removed from the live streams, from the lake; `tombstones` of
    the entries were tombstones. held: copies that a group or the archive still needs. left: not done, because
    a peer is far behind or another job has rewritten the files. files: rewritten.
    """

    entries: int = 0
    deleted: int = 0
    dropped: int = 0
    tombstones: int = 0
    held: int = 0
    left: int = 0
    files: int = 0


def check(what: Compact) -> Compact:
    if what.lake is None and what.servers is None:
        raise OptionError("lake", "give a lake, a server, or both")
    if bool(what.key) == bool(what.key_sql):
        raise OptionError("key", "give either a field or an expression")
    if what.lake is not None:
        check_lake(what.lake)
    return what


class Compactor:
    """Compacts, round by round."""

    def __init__(
        self, spark: SparkSession, what: Compact, show: Show = lambda phase, done, total: None
    ) -> None:
        self.spark, self.what, self.show = spark, check(what), show
        self.lake = None if what.lake is None else Lake(what.lake, what.streams or None)
        if self.lake is not None:
            probe(self.lake.store)
        self.surveyor = None if what.servers is None else Surveyor(what.servers, what.streams, what.pattern)

    def close(self) -> None:
        if self.surveyor is not None:
            self.surveyor.close()

    def round(self, now_s: float | None = None) -> Round:
        """One round, as of a time."""
        now_s = time.time() if now_s is None else now_s
        read = self._copies(int((now_s - self.what.keep_s) * 1000)).persist(_KEPT_FOR_USE)
        try:
            entries = read.count()
            settled = position((max(0, int((now_s - self.what.grace_s) * 1000)), 0))
            found = verdicts(read, settled).persist(_KEPT_FOR_USE)
            try:
                return self._carry_out(found, entries)
            finally:
                found.unpersist()
        finally:
            read.unpersist()

    def _copies(self, horizon_ms: int) -> DataFrame:
        """All copies older than the horizon."""
        self.show("reading", 0, None)
        state = self._state()
        what, horizon = self.what, (max(0, horizon_ms - 1), ids.MAX)
        scoped = scopes(self.surveyor, state, what.streams, what.pattern, horizon)
        refuse_logs((scope.strand for scope in scoped), "compact")
        most = about(scoped, state)
        self.show(f"reading {most:,} entries", 0, None)
        frame = copies(self.spark, scoped, self.surveyor, self.lake, state)
        frame = keyed(frame, key_of(what.key, what.key_sql), is_tombstone(what.key, what.tombstone_sql))
        # One shuffle, into as many partitions as the entries need: `verdicts` joins and groups by the same
        # keys.
        return frame.repartition(max(1, -(-most // TASK_ROWS)), "stream", "key")

    def _state(self) -> State | None:
        """The state of the lake, after deletions of the streams were applied: a deleted entry supersedes
        nothing."""
        if self.lake is None:
            return None
        if self.surveyor is None or self.what.dry_run:
            return self.lake.load()
        return deletions.take_over(self.spark, self.lake, self.surveyor).state

    def _carry_out(self, found: DataFrame, entries: int) -> Round:
        counted = found.groupBy((f.col("path") == "").alias("is_live"), "verdict").count().collect()
        counts = {(row.is_live, row.verdict): int(row["count"]) for row in counted}
        due = {
            live: sum(counts.get((live, verdict), 0) for verdict in (SUPERSEDED, TOMBSTONE))
            for live in (True, False)
        }
        held = counts.get((True, HELD), 0) + counts.get((False, HELD), 0)
        has_tombstones = any(verdict == TOMBSTONE for _, verdict in counts)
        if self.what.dry_run:
            tombstones = _tombstones(found, set()) if has_tombstones else 0
            return Round(entries, due[True], due[False], tombstones, held)
        superseded = self._live(found, SUPERSEDED, counts.get((True, SUPERSEDED), 0), set())
        dropped = self._lake(found, due[False], superseded.undone)
        undone = superseded.undone | dropped.undone
        buried = self._live(found, TOMBSTONE, counts.get((True, TOMBSTONE), 0), undone)
        return Round(
            entries,
            superseded.entries + buried.entries,
            dropped.entries,
            _tombstones(found, undone) if has_tombstones else 0,
            held,
            superseded.left + buried.left + _undone(found, dropped.undone),
            dropped.files,
        )

    def _live(self, found: DataFrame, verdict: str, count: int, undone: Set[str]) -> Removed:
        """Remove entries from the live streams, except from those where an earlier step is incomplete."""
        if self.surveyor is None or not count:
            return Removed()
        chosen = found.where((f.col("path") == "") & (f.col("verdict") == verdict) & ~_of(undone))
        done = 0

        def show(entries: int) -> None:
            nonlocal done
            done += entries
            self.show(f"deleting, {verdict}", done, count)

        self.show(f"deleting, {verdict}", 0, count)
        return remove(self.surveyor, steps(chosen).toLocalIterator(prefetchPartitions=True), show)

    def _lake(self, found: DataFrame, count: int, undone: Set[str]) -> Dropped:
        if self.lake is None or not count:
            return Dropped()
        self.show("rewriting files", 0, None)
        is_due = f.col("verdict") == SUPERSEDED
        is_due |= (f.col("verdict") == TOMBSTONE) & ~_of(undone)
        dropped = drop(self.lake, found.where((f.col("path") != "") & is_due))
        tidy(self.spark, self.lake)
        return dropped


def _of(streams: Set[str]) -> Column:
    return f.col("stream").isin(sorted(streams))


def _tombstones(found: DataFrame, undone: Set[str]) -> int:
    """How many tombstones were removed; each may have two copies."""
    gone = found.where((f.col("verdict") == TOMBSTONE) & ~_of(undone))
    return gone.select("stream", "place", "position").distinct().count()


def _undone(found: DataFrame, undone: Set[str]) -> int:
    """How many copies in the lake are left because another job has rewritten the files."""
    left = found.where((f.col("path") != "") & (f.col("verdict") != HELD) & _of(undone))
    return left.count() if undone else 0
