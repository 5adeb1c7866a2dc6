"""forget: deletes chosen entries for good, for example those of a person who asked for it.

    live entries that match -> deleted, then files with such entries -> rewritten without them, in one commit
                                           -> the old files are deleted from disk, at once

Readers that began before may fail, because the files they read are gone. It stores no state: kill it and run
it again at any time.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from braidstream.errors import LakeError
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_text
from braidstream.plan.retries import TRIES
from braidstream.spark.jobs.copies import copies, scopes
from braidstream.spark.jobs.removal import Removed, remove, steps
from braidstream.spark.lake.log import Change, Conflict, Lake, check_lake
from braidstream.spark.lake.rewrite import drop
from braidstream.spark.options import Servers
from braidstream.spark.source.offsets import Offset
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
    live = None if surveyor is None else _Live(spark, what, lake, surveyor)
    if what.dry_run:
        archived = _archived(spark, what, lake).count()
        return Forgotten(0 if live is None else sum(live.counts().values()), archived)
    deleted, held, dropped = 0, 0, 0
    if live is not None:
        deleted, held = live.delete()
    for _ in range(TRIES):
        done = drop(lake, _archived(spark, what, lake), "forget")
        dropped += done.entries
        if not done.undone:
            return Forgotten(deleted, dropped, held, lake.vacuum(grace_s=0))
    raise _busy(what.lake)


def _archived(spark: SparkSession, what: Forget, lake: Lake) -> DataFrame:
    """What the files have now, also of streams that were deleted since they were archived."""
    state = lake.load()
    scoped = scopes(None, state, what.streams, what.pattern, ids.LAST)
    return copies(spark, scoped, None, lake, state).where(what.where)


class _Live:
    """The live entries that match.

    archive   reads | ................. | commits          before the fence: its files are searched
    forget              deletes | fence                     after it: refused, so it reads again
    """

    def __init__(self, spark: SparkSession, what: Forget, lake: Lake, surveyor: Surveyor) -> None:
        self._lake, self._surveyor = lake, surveyor
        scoped = scopes(surveyor, lake.load(), what.streams, what.pattern, ids.LAST)
        self._streams = {name_text(scope.strand.name) for scope in scoped}
        self._named = self._streams & set(map(name_text, what.streams))
        self._found = copies(spark, scoped, surveyor, None, None).where(what.where)

    def counts(self) -> dict[str, int]:
        """How many, by stream."""
        return {row.stream: int(row["count"]) for row in self._found.groupBy("stream").count().collect()}

    def delete(self) -> tuple[int, int]:
        """Delete them, and fence. Returns how many, and how many are left.

        It fences also if there are none: what an archive has read may have been trimmed since.
        """
        counts, done = self.counts(), Removed()
        if counts:
            done = remove(self._surveyor, steps(self._found).toLocalIterator())
        _fence(self._lake, self._streams, new={*self._named, *counts})
        return done.entries, max(0, sum(counts.values()) - done.entries)


def _fence(lake: Lake, streams: set[str], *, new: set[str]) -> None:
    """Make a running archive read again: it may have read entries that are deleted now. It does so if the
    document of its table has changed. new: these get a table if they have none, for their first archive."""
    for _ in range(TRIES):
        state, nothing = lake.load(), Offset(Frontier({}))
        tables = {lake.table_of(stream) for stream in streams} & state.offsets.keys()
        tables |= {lake.table_of(stream) for stream in new}
        offsets = {table: state.offsets.get(table, nothing) for table in tables}
        try:
            lake.commit(state, Change("forget", offsets=offsets))
            return
        except Conflict:
            continue
    raise _busy(lake.root)


def _busy(lake: str) -> LakeError:
    return LakeError(f"{lake}: other jobs keep rewriting the files. Run it again.")
