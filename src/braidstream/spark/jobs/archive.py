"""archive: copies streams into a lake, exactly once; which it leaves out; how fresh tables are.

    round   end of the lake -> new entries -> files -> one commit -> deletions -> trim

A round can be killed at any point. Before its commit nothing of it counts; after it the next round continues
there. Only the commit has the archive's position, so there is no checkpoint to lose or to contradict it.

    engine   | trimmed . . . . | archived, live ......... | not archived yet |
    lake     | ........................................... |
                               ^ entries missing here were deleted: they are deleted in the lake too

Tasks convert entries of the engine to Parquet columns; the driver gets only the list of files.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa

from braidstream.errors import BraidError, DataLossError, LakeError
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.observability.metrics import Family, Histogram
from braidstream.plan.retries import TRIES, Retries
from braidstream.spark import tasks
from braidstream.spark.jobs import deletions
from braidstream.spark.jobs.compaction import probe, refuse_logs
from braidstream.spark.jobs.deletions import find_restored
from braidstream.spark.jobs.removal import noted, trim
from braidstream.spark.lake.files import FACTS, Writer, facts_batch, facts_of, new_fields_batch
from braidstream.spark.lake.log import Change, Conflict, File, Lake, State, adopted_since
from braidstream.spark.lake.rewrite import tidy
from braidstream.spark.lake.typed_columns import RESCUED, Typer, Typing, new_columns
from braidstream.spark.options import Servers
from braidstream.spark.source import offsets as source_offsets
from braidstream.spark.source.moved_group import move_group
from braidstream.spark.source.offsets import Offset
from braidstream.spark.source.read_slice import read
from braidstream.spark.source.rows import LakeRows
from braidstream.spark.source.slices import Range, Slice, cut_up
from braidstream.spark.source.survey import Loss, StrandInfo, StrandInfos, Surveyor, missing

# ----------------------------------------------------------------------------------------------------
#
# Which streams an archive refuses, and why. One that is refused stops no other.
#
# Nothing of a refused stream is read, compared or trimmed: its entries would be wrong or missing in the
# lake.

Refused = dict[bytes, BraidError]


def find_refused(state: State, infos: StrandInfos, region: int | None, *, allow_loss: bool) -> Refused:
    """The streams to leave out. allow_loss: not those that were trimmed before they were archived."""
    refused: Refused = dict(adopted_since(state, infos, region))
    found: Iterator[tuple[bytes, BraidError]] = _recreated(state, infos)
    if not allow_loss:
        found = chain(found, _trimmed(state, infos, region))
    for name, error in found:
        refused.setdefault(name, error)
    return refused


def is_unread(state: State, strand: Strand, info: StrandInfo) -> bool:
    return info.there and info.last > state.frontier[strand]


def counted(state: State, strand: Strand, info: StrandInfo, region: int | None) -> int | None:
    """How many entries were added to a strand up to where it is archived, if known."""
    if info.lost > state.frontier[strand]:
        return 0  # its key was lost since, and the server counts from there
    return state.offset(strand).count(strand, region)


def notes_of_loss(state: State, unread: StrandInfos) -> Iterator[str]:
    """Strands whose keys were lost since they were archived. unread: those with new entries."""
    for strand, info in unread.items():
        start = state.frontier[strand]
        if strand in state.frontier and info.lost > start:
            yield (
                f"stream {name_text(strand.name)}, strand {place_text(strand)}: the server has lost its key, "
                f"and began again. The lake keeps what it has. Entries after {ids.text(start).decode()} "
                "(native) that were not archived are lost, unless a peer restores them"
            )


def missed(state: State, strand: Strand, info: StrandInfo, region: int | None) -> int:
    """How many entries were removed before they were archived."""
    before, start = counted(state, strand, info, region), state.frontier[strand]
    is_behind = info.first is not None and info.first <= start
    if strand not in state.frontier or info.cut > start or before is None or is_behind:
        return 0
    return max(0, info.added - before - info.length)


def _recreated(state: State, infos: StrandInfos) -> Iterator[tuple[bytes, LakeError]]:
    for strand, info in infos.items():
        here = state.frontier[strand]
        if strand.is_plain and info.there and info.last < here:
            yield (
                strand.name,
                LakeError(
                    f"stream {name_text(strand.name)}: ends at {ids.text(info.last).decode()}, archived up "
                    f"to {ids.text(here).decode()}: it was deleted and created again, or the server has "
                    "lost entries. Archive it to another lake. After a loss, newer entries end this."
                ),
            )


def _trimmed(state: State, infos: StrandInfos, region: int | None) -> Iterator[tuple[bytes, DataLossError]]:
    """Entries were removed before they were archived, and they were not deleted."""
    for strand, info in infos.items():
        start = state.frontier[strand]
        if strand not in state.frontier or info.cut > start or not is_unread(state, strand, info):
            continue
        loss = missing(start, info, counted(state, strand, info, region))
        if loss is not None:
            where = f"stream {name_text(strand.name)}, strand {place_text(strand)}"
            count, there = missed(state, strand, info, region), (region, state.offset(strand).region)
            yield strand.name, DataLossError(f"{where}: {_describe(loss, there, start, count)}")


def _describe(loss: Loss, regions: tuple[int | None, int | None], start: Id, count: int) -> str:
    """regions: this one, and the one that has counted the archived entries."""
    after, (here, there) = f"after {ids.text(start).decode()} (native)", regions
    if loss is Loss.UNCOUNTED:
        return (
            f"in region {here} all archived entries are trimmed, and entries {after} may "
            f"be trimmed too: the archive has counted them in region {there} only. Run it there, or once "
            "with --allow-loss here."
        )
    how = "trimmed" if loss is Loss.TRIMMED else "trimmed, or deleted (the server cannot tell which),"
    return (
        f"{count} entries {after} were {how} before they were archived. Archive more often or keep more "
        "of the stream. To continue without them: --allow-loss."
    )


# ----------------------------------------------------------------------------------------------------
#
# How fresh the tables of a lake are: for Prometheus, and for people who watch an archive.
#
# The age of a commit is the age of its oldest entry, by its ID, when readers can see it. So no entry of the
# commit took longer from XADD to the table. Logs have no times in their IDs: they have no age.

MOST_STREAMS: Final = 64  # of others the label is `other`
OTHER: Final = "other"


class Freshness:
    """Counts of one archive job since it started."""

    def __init__(self) -> None:
        self.entries = dict[str, int]()
        self.rescued = dict[str, int]()
        self.ages = dict[str, Histogram]()
        self.left, self.refused, self.round_s = 0, 0, 0.0

    def committed(self, files: Iterable[File]) -> float | None:
        """Note files that readers can see from now on. Returns the age of the oldest entry."""
        now_s, oldest = time.time(), dict[str, float]()
        for each in files:
            stream = self._label(each.stream)
            self.entries[stream] = self.entries.get(stream, 0) + each.rows
            self.rescued[stream] = self.rescued.get(stream, 0) + rescued_of(each)
            if "timestamp" in json.loads(each.stats)["minValues"]:
                oldest[stream] = max(oldest.get(stream, 0.0), now_s - each.first[0] / 1000)
        for stream, age_s in oldest.items():
            self.ages.setdefault(stream, Histogram()).observe(age_s)
        return max(oldest.values(), default=None)

    def ended(self, left: int, refused: int) -> None:
        """A round has ended: how many entries are still to be archived, how many streams were refused."""
        self.left, self.refused, self.round_s = left, refused, time.time()

    def _label(self, stream: str) -> str:
        return stream if stream in self.entries or len(self.entries) < MOST_STREAMS else OTHER

    def families(self) -> list[Family]:
        def by_stream(counts: dict[str, int]) -> dict[tuple[str, ...], float]:
            return {(stream,): count for stream, count in dict(counts).items()}

        return [
            Family.counter(
                "braid_lake_entries_total", "Entries archived.", by_stream(self.entries), ("stream",)
            ),
            Family.counter(
                "braid_lake_rescued_total",
                "Archived entries with something in `_rescued`: a value that does not fit its column, a "
                "repeated field, or a field without a column.",
                by_stream(self.rescued),
                ("stream",),
            ),
            Family.histogram(
                "braid_lake_freshness_seconds",
                "Time from XADD, by the ID, until readers of the table can see the entry: of the oldest "
                "entry of each commit.",
                dict(self.ages),
                "stream",
            ),
            Family.gauge("braid_lake_left_entries", "Entries not archived yet, about.", {(): self.left}),
            Family.gauge(
                "braid_lake_refused_streams",
                "Streams that the archive refuses: deleted and created again, adopted, or trimmed before "
                "they were archived.",
                {(): self.refused},
            ),
            Family.gauge(
                "braid_lake_last_round_timestamp_seconds",
                "When the archive last looked for new entries and finished (Unix time).",
                {(): self.round_s},
            ),
        ]


def rescued_of(file: File) -> int:
    """How many entries of a new file have something in `_rescued`."""
    nulls = json.loads(file.stats)["nullCount"]
    return file.rows - int(nulls[RESCUED]) if RESCUED in nulls else 0


# ----------------------------------------------------------------------------------------------------
# Archive

WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Archive:
    """What to archive, from where, how. max_entries: of one round. schema: of the tables' typed columns.

    upkeep_s: how often a round also takes over deletions, trims and merges small files; 0: always.
    local_entries: up to this many entries are handled in this process, because a Spark job takes longer; a
    session that is given as a function is started for the first larger work.
    group: it moves with the archive (source/moved_group.py); empty for none.
    """

    lake: str
    servers: Servers
    streams: tuple[bytes, ...] = ()
    pattern: bytes | None = None
    max_entries: int = 5_000_000
    trim: bool = False
    keep_s: float = 3600.0
    allow_loss: bool = False
    schema: Typing | None = None
    upkeep_s: float = 0.0
    local_entries: int = 0
    group: bytes = b""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did. left: approximate number of entries that are not archived yet.

    rescued: entries with something in `_rescued`. age_s: of the oldest entry, when it could be read.
    notes: what an operator should know. refused: streams that were left out.
    """

    entries: int = 0
    files: int = 0
    bytes: int = 0
    deleted: int = 0
    trimmed: int = 0
    merged: int = 0
    missed: int = 0
    left: int = 0
    version: int = 0
    rescued: int = 0
    age_s: float | None = None
    notes: tuple[str, ...] = ()
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What a round reads: ranges, and the end of each strand with its count of entries."""

    parts: list[Range] = field(default_factory=list)
    ends: dict[Strand, Id] = field(default_factory=dict)
    counts: dict[Strand, int] = field(default_factory=dict)
    missed: int = 0
    left: int = 0
    refused: Refused = field(default_factory=dict)
    mended: Mapping[str, Mapping[str, str]] | None = None
    notes: tuple[str, ...] = ()


class Span(NamedTuple):
    """A strand after one ID up to another; how many entries were added up to the first, if known."""

    strand: Strand
    start: Id
    end: Id
    counted: int | None


class Archiver:
    """Archives the streams of one server, round by round."""

    def __init__(self, spark: tasks.Session, what: Archive) -> None:
        self.spark, self.what = spark, what
        self.lake = Lake(what.lake, what.streams or None, is_one=what.pattern is not None)
        probe(self.lake.store)
        self.surveyor = Surveyor(what.servers, what.streams, what.pattern)
        self.freshness = Freshness()
        self._typed = set[str]()  # tables that have the columns of the schema
        self._kept_up = -math.inf
        self._there = list[Strand]()
        self._moved = dict[Strand, Id]()  # where the group is

    def close(self) -> None:
        self.surveyor.close()

    def backlog(self) -> int:
        """The approximate number of entries that are not archived yet."""
        return self._plan(self.lake.load(), self.surveyor.survey(), None).left

    def round(self) -> Round:
        """One round, also if there is nothing to do. If every stream is refused, it raises why."""
        retries = Retries(
            f"{self.what.lake}: other jobs keep committing. Run one archive per lake.", error=LakeError
        )
        archived = list[File]()
        while True:
            retries.count()
            state, files = self.lake.load(), list[File]()
            try:
                with self.lake.reading(state):
                    work = self.surveyor.in_one_region(partial(self._plan_round, state))
                files = self._read(work)
                offsets = _moved(self.lake, state, work.ends, work.counts, self.surveyor.region)
                if files or offsets or work.mended is not None:
                    change = Change("archive", add=tuple(files), offsets=offsets, mended=work.mended)
                    self._commit(state, change)
            except Conflict as conflict:
                archived += conflict.added
                # They may have entries that were deleted since, and forget wants those off the disk.
                self.lake.store.delete({each.path for each in files} - set(self.lake.load().files))
                continue  # another job has committed: continue from there
            if self.what.group:
                self._move_group()
            return self._tend(work, [*archived, *files])

    def _move_group(self) -> None:
        """A strand is moved again only if more of it was archived."""
        frontier = self.lake.load().frontier
        ends = {strand: frontier[strand] for strand in self._there if not strand.is_of_log}
        moved = {strand: end for strand, end in ends.items() if self._moved.get(strand) != end}
        move_group(self.surveyor, self.what.group, moved, is_needed=True)
        self._moved |= moved

    def _plan_round(self, state: State) -> Work:
        infos = self.surveyor.survey()
        self._there = [strand for strand, each in infos.items() if each.there]
        if self.what.trim:
            refuse_logs(infos, "trim")
        work = self._plan(state, infos, self.what.max_entries)
        if work.refused and not {strand.name for strand in infos} - set(work.refused):
            raise next(iter(work.refused.values()))
        return work

    def _commit(self, state: State, change: Change) -> None:
        """Commit. Repeat it if another job has only rewritten files or added columns since the read.

        If it has noted deletions, entries that were read before may be among them: they are read again.
        """
        for turn in range(TRIES):
            now = self.lake.load()
            if _committed(now) != _committed(state):
                raise Conflict("another archive has committed")
            try:
                self.lake.commit(now, change)
                return
            except Conflict as conflict:
                if turn == TRIES - 1 or conflict.added:
                    raise

    def _tend(self, work: Work, files: list[File]) -> Round:
        """After the commit: apply deletions, trim, and merge small files."""
        age_s = self.freshness.committed(files)
        deleted, trimmed, merged, notes = 0, 0, 0, list[str]()
        local = self.what.local_entries
        if time.monotonic() - self._kept_up >= self.what.upkeep_s:
            taken = deletions.take_over(self.spark, self.lake, self.surveyor, work.refused, local=local)
            deleted, notes = taken.entries, taken.notes
            trimmed, kept = self._trim(taken.state, work.refused) if self.what.trim else (0, [])
            notes = [*notes, *kept]
            merged = tidy(self.spark, self.lake, local=local)
            self._kept_up = time.monotonic()
        self.freshness.ended(work.left, len(work.refused))
        return Round(
            entries=sum(each.rows for each in files),
            files=len(files),
            bytes=sum(each.bytes for each in files),
            deleted=deleted,
            trimmed=trimmed,
            merged=merged,
            missed=work.missed,
            left=work.left,
            version=self.lake.load().version,
            rescued=sum(map(rescued_of, files)),
            age_s=age_s,
            notes=(*map(str, work.refused.values()), *work.notes, *notes),
            refused=len(work.refused),
        )

    def _trim(self, state: State, refused: Refused) -> tuple[int, list[str]]:
        """How many entries were removed, and what waits for other regions."""
        region = self.surveyor.region
        cut, notes = trim(self.surveyor, state, refused, keep_s=self.what.keep_s, now_s=time.time())
        if any(cut.values()):
            with contextlib.suppress(Conflict):  # the next round compares once more
                self.lake.commit(state, Change("trim", removed=noted(state, cut, region)))
        return sum(cut.values()), notes

    def _plan(self, state: State, infos: StrandInfos, most: int | None) -> Work:
        region = self.surveyor.region
        refused = find_refused(state, infos, region, allow_loss=self.what.allow_loss)
        infos = {strand: each for strand, each in infos.items() if strand.name not in refused}
        unread = {strand: each for strand, each in infos.items() if is_unread(state, strand, each)}
        starts = {strand: max(state.frontier[strand], each.cut) for strand, each in unread.items()}
        sizes = {strand: self._new(state, strand, each) for strand, each in unread.items()}
        ends = {strand: (each.last, each.added) for strand, each in unread.items()}
        total = sum(sizes.values())
        if most is None:
            return Work(left=total)
        gone = sum(missed(state, strand, each, region) for strand, each in unread.items())
        if total > most:
            backlogs = {
                strand: source_offsets.Backlog(starts[strand], each.last, sizes[strand], each.size)
                for strand, each in unread.items()
            }
            cut = self.surveyor.try_servers(lambda server: source_offsets.cut(server, backlogs, most, None))
            for strand, (end, count) in cut.items():
                if end != ends[strand][0]:
                    ends[strand] = end, unread[strand].added - sizes[strand] + count
        again = find_restored(self.lake.root, self.surveyor, state, infos, guarded=not self.what.allow_loss)
        parts = list(again.parts)
        for strand, each in unread.items():
            start, (end, _) = starts[strand], ends[strand]
            if end > start:
                is_counted = start == state.frontier[strand]
                before = counted(state, strand, each, region) if is_counted else None
                parts += self._slices(Span(strand, start, end, before), each, min(sizes[strand], most))
        taken = min(total, most)
        return Work(
            parts,
            {strand: end for strand, (end, _) in ends.items()},
            self._idle(state, infos) | {strand: count for strand, (_, count) in ends.items()},
            gone,
            total - taken,
            refused,
            again.mended,
            tuple(notes_of_loss(state, unread)),
        )

    def _slices(self, span: Span, info: StrandInfo, size: int) -> list[Range]:
        strand, start, end, counted = span
        if not info.length:  # all were deleted: there is nothing that a trim could remove
            return []
        first = info.first if info.first is not None and info.first > start else None
        guarded = not self.what.allow_loss
        part = Range(
            strand, start, end, first=first, size=info.size, guarded=guarded, weight=size, count=counted
        )
        return self.surveyor.run(lambda: cut_up(part, size), strand.key)

    def _new(self, state: State, strand: Strand, info: StrandInfo) -> int:
        """The approximate number of new entries."""
        before = counted(state, strand, info, self.surveyor.region)
        if before is None:
            return info.length
        return max(0, min(info.added - before, info.length))  # a server that has lost entries counts less

    def _idle(self, state: State, infos: StrandInfos) -> dict[Strand, int]:
        """Counts of entries for strands that are archived to their end but not counted in this region."""
        region, at = self.surveyor.region, state.frontier
        ended = (strand for strand in at if state.offset(strand).count(strand, region) is None)
        return {
            strand: infos[strand].added
            for strand in ended
            if strand in infos and infos[strand].there and infos[strand].last == at[strand]
        }

    def _add_columns(self, streams: Iterable[str]) -> None:
        """Before entries are written: tables have the columns of the schema."""
        if self.what.schema is not None:
            for table in set(map(self.lake.table_of, streams)) - self._typed:
                self.lake.widen(table, self.what.schema.columns)
                self._typed.add(table)

    def _widen(self, new_fields: Mapping[str, set[str]]) -> None:
        for table, fields in new_fields.items():
            columns = self.lake.columns(table)
            assert columns is not None, table
            self.lake.widen(table, new_columns(fields, columns))

    def _typings(self, work: Work) -> dict[str, Typing]:
        """The typed columns of the streams to read. An archive without a schema fills those that exist."""
        streams = {name_text(part.strand.name) for part in work.parts}
        self._add_columns({*streams, *map(name_text, self.what.streams)})
        is_open = self.what.schema is not None and self.what.schema.is_open
        columns = {stream: self.lake.columns(self.lake.table_of(stream)) for stream in streams}
        return {stream: Typing(each, is_open) for stream, each in columns.items() if each is not None}

    def _read(self, work: Work) -> list[File]:
        """Run the job: read each slice, and write it as files. Fields that get a column are added first."""
        while True:
            where = self.surveyor.url, self.surveyor.region
            worker = partial(_archive, self.lake, self.what.servers, where, self._typings(work))
            weights = [part.weight for part in work.parts]
            files, new_fields = list[File](), dict[str, set[str]]()
            local = self.what.local_entries
            for row in tasks.run(self.spark, work.parts, worker, FACTS, weights, local=local):
                if row["path"]:
                    files.append(facts_of(row))
                else:
                    table = self.lake.table_of(row["stream"])
                    new_fields.setdefault(table, set()).update(json.loads(row["stats"]))
            if not new_fields:
                return files
            self.lake.store.delete([each.path for each in files])
            self._widen(new_fields)


def _committed(state: State) -> dict[str, int]:
    """The documents of the tables that an archive has committed to. A table may only have columns yet."""
    return {folder: number for folder, number in state.documents.items() if number is not None}


def _moved(
    lake: Lake, state: State, ends: Mapping[Strand, Id], counts: Mapping[Strand, int], region: int | None
) -> dict[str, Offset]:
    """The offsets of tables after more entries were archived, up to `ends`; of those that change."""
    found = dict[str, Offset]()
    for folder in {lake.table_of(name_text(strand.name)) for strand in (*ends, *counts)}:
        before = state.offsets.get(folder, Offset(Frontier({})))

        def here(given: Mapping[Strand, Any], folder: str = folder) -> dict[Strand, Any]:
            return {each: given[each] for each in given if lake.table_of(name_text(each.name)) == folder}

        kept = dict(before.counts) if before.region == region else {}
        frontier = before.frontier.join(Frontier(here(ends)))
        after = replace(before, frontier=frontier, counts={**kept, **here(counts)}, region=region)
        if after != before:
            found[folder] = replace(after, initial=False)
    return found


def _archive(
    lake: Lake,
    servers: Servers,
    where: tuple[int, int | None],
    typings: Mapping[str, Typing],
    parts: Iterator[Range],
) -> Iterator[pa.RecordBatch]:
    """In a task: write ranges to files. Once a field needs a new column, it only looks for more of them."""
    for part in parts:
        stream = name_text(part.strand.name)
        writer = Writer(lake.root, lake.prefix(stream), stream)
        typer = Typer(typings[stream]) if stream in typings else None
        for rows in read(Slice([part], *where), servers, LakeRows, WAIT_S):
            made = rows if typer is None else typer.typed(rows)
            if typer is None or not typer.new_fields:
                writer.write(made)
        writer.close()
        yield facts_batch(writer.facts)
        if typer is not None and typer.new_fields:
            yield new_fields_batch(stream, typer.new_fields)
