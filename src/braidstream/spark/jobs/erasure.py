"""forget: deletes chosen entries for good, for example those of a person who asked for it.

    live entries that match -> deleted     files with such entries -> rewritten without them, in one commit
                                           -> the old files are deleted from disk, at once

Readers that began before may fail, because the files they read are gone. It stores no state: kill it and run
it again at any time.
"""

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from braidstream.errors import LakeError
from braidstream.model import ids
from braidstream.model.frontier import name_text
from braidstream.protocol.retries import TRIES
from braidstream.spark.jobs.copies import copies, scopes
from braidstream.spark.jobs.removal import Removed, remove, steps
from braidstream.spark.lake.lake_state import Change, Conflict, State
from braidstream.spark.lake.log import Lake, check_lake
from braidstream.spark.lake.rewrite import drop
from braidstream.spark.options import Servers
from braidstream.spark.source.survey import Surveyor


@dataclass(frozen=True, slots=True)
class Forget:
    """What to forget: entries for which an SQL condition holds, on stream, id, region, timestamp, fields."""

    lake: str
    where: str
    servers: Servers | None = None
    streams: tuple[bytes, ...] = ()
    pattern: bytes | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What it did; for a dry run, what it would do. deleted, dropped: in the live streams, in the lake.

    held: live entries that a group has not acknowledged; they are left. files: deleted from disk.
    """

    deleted: int = 0
    dropped: int = 0
    held: int = 0
    files: int = 0


def forget(spark: SparkSession, what: Forget) -> Forgotten:
    check_lake(what.lake)
    lake = Lake(what.lake, what.streams or None)
    surveyor = None if what.servers is None else Surveyor(what.servers, what.streams, what.pattern)
    try:
        return _forget(spark, what, lake, surveyor)
    finally:
        if surveyor is not None:
            surveyor.close()


def _forget(spark: SparkSession, what: Forget, lake: Lake, surveyor: Surveyor | None) -> Forgotten:
    deleted, dropped = 0, 0
    for _ in range(TRIES):
        state = lake.load()
        scoped = scopes(surveyor, state, what.streams, what.pattern, ids.LAST)
        found = copies(spark, scoped, surveyor, lake, state).where(what.where)
        counted = found.groupBy((f.col("path") == "").alias("is_live")).count().collect()
        counts = {row.is_live: int(row["count"]) for row in counted}
        if what.dry_run:
            return Forgotten(counts.get(True, 0), counts.get(False, 0))
        live = Removed()
        if surveyor is not None and counts.get(True):
            live = remove(surveyor, steps(found.where("path = ''")).toLocalIterator())
            deleted += live.entries
            now = _fence(lake, {name_text(scope.strand.name) for scope in scoped})
            if not now.files.keys() <= state.files.keys():
                continue  # an archive has committed since: search its files too
        done = drop(lake, found.where("path != ''"), "forget")
        dropped += done.entries
        if not done.undone:
            held = max(0, counts.get(True, 0) - live.entries)
            return Forgotten(deleted, dropped, held, lake.vacuum(grace_s=0))
    raise _busy(what.lake)


def _fence(lake: Lake, streams: set[str]) -> State:
    """Make a running archive read again: it may have read entries that are deleted now. It does so if the
    document of its table has changed."""
    for _ in range(TRIES):
        state, tables = lake.load(), {lake.table_of(stream) for stream in streams}
        offsets = {table: offset for table, offset in state.offsets.items() if table in tables}
        try:
            return lake.commit(state, Change("forget", offsets=offsets))
        except Conflict:
            continue
    raise _busy(lake.root)


def _busy(lake: str) -> LakeError:
    return LakeError(f"{lake}: other jobs keep rewriting the files. Run it again.")
