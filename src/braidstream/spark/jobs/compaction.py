"""compact: keeps the last entry of each key, in the live streams and in the lake.

    round    survey -> read all copies older than the horizon -> verdicts -> live: superseded
                    -> lake: superseded and tombstones, in one commit -> live: tombstones

A round can be killed at any point: the next one starts with a new survey. No state is kept between rounds,
because a superseded entry stays superseded. Tombstones are removed last, and only from streams where
everything else was removed, so an entry never outlives the tombstone after it.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from braidstream.errors import LakeError, OptionError
from braidstream.model import ids
from braidstream.model.frontier import name_text
from braidstream.model.strand import Strand
from braidstream.spark.jobs import deletions
from braidstream.spark.jobs.copies import about, copies, scopes
from braidstream.spark.jobs.removal import Removed, remove, steps
from braidstream.spark.lake.log import HIDDEN, PROBE, Lake, State, Store, check_lake
from braidstream.spark.lake.rewrite import Dropped, drop, tidy
from braidstream.spark.options import Servers
from braidstream.spark.source.rows import position
from braidstream.spark.source.survey import Surveyor
from braidstream.spark.tasks import TASK_ROWS

# ----------------------------------------------------------------------------------------------------
# Refuses logs where a job goes by the age of entries: an offset shows no time.

_INSTEAD: Final = {
    "trim": "Archive it without --trim, then evict by number: braid log evict",
    "compact": "--keep and --grace could not be honoured. Evict by number instead: braid log evict",
}


def refuse_logs(strands: Iterable[Strand], job: str) -> None:
    for strand in strands:
        if strand.is_of_log:
            why = f"{name_text(strand.name)} is a log, and its entries have no times. {_INSTEAD[job]}"
            raise OptionError(job, why)


# ----------------------------------------------------------------------------------------------------
#
# Which entries a log compaction removes: pure functions on frames.
#
#     id    1      2      3      4      5      6
#     key   a      b      a      b      -      a
#     value 1      1      2      none   x      3        4 is a tombstone: b was deleted
#
#     1, 3  superseded: a has a later entry. Entries that arrive later do not change that.
#     2     superseded by the tombstone.
#     4     removed after a grace time, once no entry of b is before it: else that one would be the last.
#     5     has no key: kept. 6 is the last of its key: kept.
#
# A copy that is not free (copies.py) is *held* for a later round.

SUPERSEDED, TOMBSTONE, HELD = "superseded", "tombstone", "held"


def key_of(field: str, sql: str) -> Column:
    """The key of an entry: one of its fields, or an SQL expression on the columns of the source."""
    return f.expr(sql) if sql else f.col("fields")[field]


def is_tombstone(field: str, sql: str) -> Column:
    """By an SQL condition; without one, where the key is a field: the entry has no other field."""
    if sql:
        return f.coalesce(f.expr(sql), f.lit(False))
    return f.size("fields") == 1 if field else f.lit(False)


def keyed(copies: DataFrame, key: Column, tombstone: Column) -> DataFrame:
    """The columns for a verdict. at: sorts in the order of the stream, and by strand for entries with the
    same chosen ID."""
    region = f.coalesce("region", f.lit(0)).alias("region")
    at = f.struct("position", region, "place").alias("at")
    return copies.select("stream", "path", at, key.alias("key"), tombstone.alias("tombstone"), "free")


def verdicts(copies: DataFrame, settled: bytes) -> DataFrame:
    """stream, path, place, position, verdict of each copy that is removed or held.

    settled: remove tombstones before this position. A tombstone is held as long as an entry before it is.
    """
    # `stays`: the first copy of a key that is not free.
    lasts = (
        copies.where("key is not null")
        .groupBy("stream", "key")
        .agg(f.max("at").alias("last"), f.min(f.when(~f.col("free"), f.col("at"))).alias("stays"))
    )
    at, last = f.col("at"), f.col("last")
    is_old = (at == last) & f.col("tombstone") & (f.col("at.position") < f.lit(settled))
    is_alone = f.coalesce(f.col("stays") >= last, f.lit(True))
    verdict = (
        f.when((at < last) & f.col("free"), SUPERSEDED)
        .when(at < last, HELD)
        .when(is_old & f.col("free") & is_alone, TOMBSTONE)
        .when(is_old, HELD)
    )
    joined = copies.join(lasts, ["stream", "key"]).withColumn("verdict", verdict)
    return joined.where("verdict is not null").select("stream", "path", "at.place", "at.position", "verdict")


# ----------------------------------------------------------------------------------------------------
#
# Refuses a store that loses commits, before a job starts.
#
# A commit creates an object and must fail if it exists. Some stores ignore that condition: with several
# writers they lose commits and report success. A test with one writer passes there, so several commit at
# once.

RACERS, RACES = 6, 8
_SCHEMA: Final = pa.schema([("n", pa.int64())])


def probe(store: Store) -> None:
    """LakeError if the store lets two commits with one number succeed. Local disks are not probed."""
    if store.is_local:
        return
    folder = f"{HIDDEN}/{PROBE}{uuid.uuid4().hex}"
    DeltaTable.create(store.uri(folder), schema=_SCHEMA, storage_options=store.options)
    try:
        for race in range(RACES):
            winners = _race(store, folder, race)
            if winners != 1:
                raise LakeError(
                    f"{store.root}: this store is not safe for a lake. Of {RACERS} commits with the same "
                    f"number {winners} succeeded, so commits of jobs that run at once would be lost. It "
                    "ignores conditional writes (If-None-Match): upgrade it, or use another store."
                )
    finally:
        store.delete_folder(folder)


def _race(store: Store, folder: str, race: int) -> int:
    """How many of several commits with one number succeed."""
    tables = [DeltaTable(store.uri(folder), storage_options=store.options) for _ in range(RACERS)]
    start, winners = threading.Barrier(RACERS), list[int]()

    def commit(number: int) -> None:
        how = CommitProperties(max_commit_retries=0, app_transactions=[Transaction("probe", race)])
        start.wait()
        try:
            tables[number].create_write_transaction([], "append", _SCHEMA, commit_properties=how)
            winners.append(number)
        except CommitFailedError:
            return

    racers = [threading.Thread(target=commit, args=(number,)) for number in range(RACERS)]
    for each in racers:
        each.start()
    for each in racers:
        each.join()
    return len(winners)


# ----------------------------------------------------------------------------------------------------
# Compaction

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
        chosen = found.where((f.col("path") == "") & (f.col("verdict") == verdict) & ~_among(undone))
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
        is_due |= (f.col("verdict") == TOMBSTONE) & ~_among(undone)
        dropped = drop(self.lake, found.where((f.col("path") != "") & is_due))
        tidy(self.spark, self.lake)
        return dropped


def _among(streams: Set[str]) -> Column:
    return f.col("stream").isin(sorted(streams))


def _tombstones(found: DataFrame, undone: Set[str]) -> int:
    """How many tombstones were removed; each may have two copies."""
    gone = found.where((f.col("verdict") == TOMBSTONE) & ~_among(undone))
    return gone.select("stream", "place", "position").distinct().count()


def _undone(found: DataFrame, undone: Set[str]) -> int:
    """How many copies in the lake are left because another job has rewritten the files."""
    left = found.where((f.col("path") != "") & (f.col("verdict") != HELD) & _among(undone))
    return left.count() if undone else 0
