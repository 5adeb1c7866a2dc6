"""Every copy of every entry below a horizon, in the files of a lake and in the live streams, as one frame.

    lake     | e1  e2  e3  e4 ............. |F
    live             | e3  e4  e5 ................... e9 |
    copies     e1  e2  e3  e4  e3  e4  e5 ......| horizon

A copy is *free* if every group has acknowledged the entry and, with a lake, the entry is archived, so that no
later archive run adds it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructField, StructType

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.frontier import name_text, place_text
from braidstream.model.glob import matcher
from braidstream.model.ids import Id
from braidstream.model.journal import deletions
from braidstream.model.registry import Registry
from braidstream.model.strand import Strand, facts
from braidstream.plan.lookup import current
from braidstream.plan.plan import Batch, Plan
from braidstream.spark import tasks
from braidstream.spark.compat import arrow_schema
from braidstream.spark.jobs.removal import acknowledged
from braidstream.spark.lake import files
from braidstream.spark.lake.log import File, Lake, State, within
from braidstream.spark.options import Servers
from braidstream.spark.source.read_slice import read
from braidstream.spark.source.rows import META, LakeRows, as_map, position
from braidstream.spark.source.slices import Range, Slice, cut_up
from braidstream.spark.source.survey import StrandInfo, StrandInfos, Surveyor, look, region_or_none

WAIT_S: Final = 30.0
# In addition to the columns of the source: the strand, a sortable ID, the file (empty: live), whether it is
# free.
COPIES: Final = StructType(
    [
        *META,
        StructField("place", StringType(), False),
        StructField("position", BinaryType(), False),
        StructField("path", StringType(), False),
        StructField("free", BooleanType(), False),
    ]
)


@dataclass(frozen=True, slots=True)
class Scope:
    """A strand: copies after `low` up to `high`, of which those up to `free` are free (native IDs).

    info: None if no engine has it, or if only the lake is read.
    """

    strand: Strand
    low: Id
    high: Id
    free: Id
    info: StrandInfo | None = None


def scopes(
    surveyor: Surveyor | None, state: State | None, names: Iterable[bytes], pattern: bytes | None, horizon: Id
) -> list[Scope]:
    """The strands of the streams, in the engine and in the lake, up to a user ID."""
    infos = surveyor.survey() if surveyor else StrandInfos()
    found = list[Scope]()
    for strand, info in infos.items():
        if info.there and surveyor is not None:
            free = _acknowledged(surveyor, strand)
            free = free if state is None else min(free, state.frontier[strand])
            found.append(Scope(strand, info.cut, strand.floor(horizon), free, info))
    lives = {(each.name, each.label): each.life for each in infos}
    wanted, matches = set(names), None if pattern is None else matcher(pattern)
    for strand in () if state is None else state.frontier:
        is_named = matches(strand.name) if matches else strand.name in wanted
        is_deleted = lives.get((strand.name, strand.label), 0) > strand.life
        if is_named and not is_deleted and not (strand in infos and infos[strand].there):
            # A region without a copy does not know what its groups have read.
            cut = infos[strand].cut if strand in infos else ids.ZERO
            found.append(Scope(strand, cut, strand.floor(horizon), ids.ZERO if surveyor else ids.LAST))
    return found


def _acknowledged(surveyor: Surveyor, strand: Strand) -> Id:
    return surveyor.run(lambda: acknowledged(strand), strand.key)


def about(scoped: list[Scope], state: State | None) -> int:
    """The maximum number of copies to read."""
    streams = {name_text(scope.strand.name) for scope in scoped}
    files_of = () if state is None else (file for file in state.files.values() if file.stream in streams)
    live = sum(scope.info.length for scope in scoped if scope.info is not None)
    return live + sum(file.rows for file in files_of)


def copies(
    spark: SparkSession,
    scoped: list[Scope],
    surveyor: Surveyor | None,
    lake: Lake | None,
    state: State | None,
) -> DataFrame:
    """The frame (COPIES), evaluated lazily."""
    frame = spark.createDataFrame([], COPIES)
    if surveyor is not None:
        live = [each for scope in scoped for each in _ranges(surveyor, scope)]
        weights = [part.weight for part, _ in live]
        worker = partial(_read_live, surveyor.servers, surveyor.url)
        frame = frame.unionByName(tasks.frame(spark, live, worker, COPIES, weights))
    if lake is not None and state is not None:
        parts = list(_files(state, scoped))
        weights = [file.rows for file, _ in parts]
        worker = partial(_read_file, lake.root)
        frame = frame.unionByName(tasks.frame(spark, parts, worker, COPIES, weights))
    return frame


def _ranges(surveyor: Surveyor, scope: Scope) -> Iterator[tuple[Range, bytes]]:
    """The ranges to read from the engine, and up to which position copies are free."""
    info, strand = scope.info, scope.strand
    end = scope.low if info is None else min(scope.high, info.last)
    if info is None or end <= scope.low or not info.length:
        return
    whole = Range(strand, scope.low, end, size=info.size, weight=info.length)
    for part in surveyor.run(lambda: cut_up(whole, info.length), strand.key):
        yield part, position(strand.user(scope.free))


def _files(state: State, scoped: list[Scope]) -> Iterator[tuple[File, list[tuple[files.Wanted, bytes]]]]:
    """The ranges to read from each file, and up to which position copies are free."""
    for file in state.files.values():
        wanted = list[tuple[files.Wanted, bytes]]()
        for scope in scoped:
            strand = scope.strand
            if name_text(strand.name) == file.stream and scope.high > scope.low:
                ends = strand.user(scope.low), strand.user(scope.high)
                if within([file], file.stream, place_text(strand), *ends):
                    where = files.Wanted.of(strand, scope.low, scope.high)
                    wanted.append((where, position(strand.user(scope.free))))
        if wanted:
            yield file, wanted


def _read_live(servers: Servers, url: int, parts: Iterator[tuple[Range, bytes]]) -> Iterator[pa.RecordBatch]:
    """In a task: ranges of strands."""
    for part, free in parts:
        stream, place = name_text(part.strand.name), place_text(part.strand)
        for rows in read(Slice([part], url), servers, LakeRows, WAIT_S):
            yield _rows(pa.Table.from_batches([rows]), stream, "", {place: free})


def _read_file(
    root: str, parts: Iterator[tuple[File, list[tuple[files.Wanted, bytes]]]]
) -> Iterator[pa.RecordBatch]:
    """In a task: files of the lake."""
    for file, wanted in parts:
        free = {each.place: upto for each, upto in wanted}
        for table in files.read(root, file.path, [each for each, _ in wanted]):
            yield _rows(table, file.stream, file.path, free)


def _rows(table: pa.Table, stream: str, path: str, free: dict[str, bytes]) -> pa.RecordBatch:
    mask = pa.repeat(False, table.num_rows)
    for place, upto in free.items():
        here = pc.and_(pc.equal(table["place"], place), pc.less_equal(table["position"], upto))
        mask = pc.or_(mask, here)
    texts = {"stream": pa.repeat(stream, table.num_rows), "path": pa.repeat(path, table.num_rows)}
    fields = as_map(table["fields"].combine_chunks())
    columns = {**{name: table[name] for name in table.column_names}, **texts, "free": mask, "fields": fields}
    schema = arrow_schema(COPIES)
    made = pa.Table.from_arrays([columns[each.name] for each in schema], names=schema.names).cast(schema)
    [batch] = made.combine_chunks().to_batches()
    return batch


# ----------------------------------------------------------------------------------------------------
# A stream in every region: the extent of its copies, their groups, and what was deleted.

_NOTHING: Final = StrandInfo(ids.ZERO, 0, 0, None, ids.ZERO, 64, there=False)


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """One region. journals: {writer: (last ID, {deleted entry: journal ID}, whether it has been trimmed)}."""

    writer: int
    registry: Registry
    infos: StrandInfos
    groups: Mapping[Strand, frozenset[bytes]]
    journals: Mapping[int, tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]

    def journal_at(self, writer: int) -> Id:
        """How far a writer's journal was applied here."""
        return self.journals[writer][0] if writer in self.journals else ids.ZERO


def read_snapshot(name: bytes) -> Plan[RegionSnapshot]:
    """Read a stream in one region. A few round trips; the journals before the strands."""
    region, registry = (yield from region_or_none()), (yield from current(name))
    writers = [] if region is None else sorted({*region.everyone})
    journals = dict[int, tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]()
    for writer in writers:
        journals[writer] = yield from _journal(name, writer)
    infos = yield from look(name)
    groups = dict[Strand, frozenset[bytes]]()
    there = [strand for strand in registry.strands if infos.get(strand, _NOTHING).there]
    if there:
        replies = yield Batch(
            [("XINFO", "GROUPS", strand.key) for strand in there], resend=True, attempt=True
        )
        for strand, reply in zip(there, replies, strict=True):
            if not isinstance(reply, ReplyError):
                groups[strand] = frozenset(facts(group)[b"name"] for group in reply)
    return RegionSnapshot(0 if region is None else region.writer, registry, infos, groups, journals)


def _journal(name: bytes, writer: int) -> Plan[tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]:
    key = keys.journal(name, writer)
    batch = Batch([("XINFO", "STREAM", key), ("XRANGE", key, "-", "+")], resend=True, attempt=True)
    reply, entries = yield batch
    if isinstance(reply, ReplyError) or isinstance(entries, ReplyError):
        return ids.ZERO, {}, False
    info = facts(reply)
    deleted = dict[tuple[bytes, Id], Id]()
    for native, words in entries:
        registration, listed = deletions(words)
        for each in listed:
            deleted[registration, ids.native(each)] = ids.native(native)
    trimmed = int(info.get(b"entries-added", 0)) > int(info[b"length"])
    return ids.native(info[b"last-generated-id"]), deleted, trimmed


@dataclass(frozen=True)
class Snapshots:
    """A stream in all regions."""

    name: bytes
    by_region: Mapping[int, RegionSnapshot]

    @cached_property
    def strands(self) -> list[Strand]:
        found = {
            strand for here in self.by_region.values() for strand, each in here.infos.items() if each.there
        }
        return sorted(found, key=lambda strand: (strand.label, strand.life))

    def copy(self, region: int, strand: Strand) -> StrandInfo:
        return self.by_region[region].infos.get(strand, _NOTHING)

    def copies(self, strand: Strand) -> dict[int, StrandInfo]:
        return {region: self.copy(region, strand) for region in self.by_region}

    def home(self, strand: Strand) -> int:
        """The region that writes this strand; 0 if it is none of these."""
        return next((region for region, here in self.by_region.items() if here.writer == strand.writer), 0)

    def is_over(self, region: int, strand: Strand) -> bool:
        """Whether that region has a later life of the strand."""
        registry = self.by_region[region].registry
        return any(each.label == strand.label and each.life > strand.life for each in registry.cuts)

    @property
    def lost_groups(self) -> list[tuple[int, Strand, bytes]]:
        """Groups that the registry of a region has and one of its strands has not."""
        return [
            (region, strand, group)
            for region, here in self.by_region.items()
            for strand in here.registry.strands
            for group in here.registry.groups
            if group not in here.groups.get(strand, frozenset()) and here.infos.get(strand)
        ]

    def deletion(self, strand: Strand, native: Id) -> tuple[int, Id] | None:
        """The writer and the journal entry that deleted an entry, if a journal still has it."""
        for here in self.by_region.values():
            for writer, (_, deleted, _) in here.journals.items():
                if (strand.registration, native) in deleted:
                    return writer, deleted[strand.registration, native]
        return None

    @property
    def forgot_deletions(self) -> bool:
        """Whether a journal was trimmed: daemons do that once all peers have applied it."""
        return any(trimmed for here in self.by_region.values() for _, _, trimmed in here.journals.values())
