"""Deletes in the lake what was deleted in the engine; archives what came back after a loss.

Entries of a strand that the lake has and the engine has not were trimmed or deleted:

    lake     1  2  3  4  5  6  7  8
    engine            4  5     7  8  9        6 was deleted. 1 to 3 were trimmed, or deleted before that

A trim keeps a stream short, so it removes nothing from the lake. Deleted are: entries missing above the
engine's first entry (read last, because trims do not stop for us), entries that a journal names, and entries
up to the cut of a DEL. A comparison reads all live entries, so it runs only if the count of removed entries
has changed. Some trims remove single entries above the first one; the registry then has up to where (`d:`),
and a comparison begins after that.

Absence alone proves no deletion: after a failover or from a backup a server lacks entries that it has lost.
It has not counted those as removed, and XDEL moves its highest deleted ID. So a comparison ends at that ID,
and if more entries are missing than were removed since the last one, the lake keeps all of them, and compares
only later entries from then on (`doubts`).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.journal import deletions, is_trim
from braidstream.model.registry import mended_range, trimmed_upto
from braidstream.model.strand import Command, Strand, facts, strand_of_label
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import TRIES
from braidstream.spark import tasks
from braidstream.spark.compat import arrow_schema
from braidstream.spark.lake import files
from braidstream.spark.lake.log import Change, Conflict, File, Lake, State, place_in, within
from braidstream.spark.lake.rewrite import Drop, holding, rewrite, without
from braidstream.spark.options import Servers
from braidstream.spark.source.read_slice import read
from braidstream.spark.source.rows import LakeRows, entry_of, position
from braidstream.spark.source.slices import Range, Slice
from braidstream.spark.source.survey import (
    StrandInfo,
    StrandInfos,
    Surveyor,
    info_of,
    open_server,
    region_or_none,
)

# ----------------------------------------------------------------------------------------------------
#
# Finds entries that came back to a server below the archive's position.
#
# A server that has lost entries gets them back from a peer, at their place (lua/mend.lua). The registry
# then has the range (`m:`), and counts how often (`y:`). The archive may be past it already:
#
#     lake      1  2        5  6 |               3 and 4 were lost before they were archived
#     server    1  2  3  4  5  6  7              3 and 4 were restored:  m: 3 4
#
# So if that note has changed, the archive reads what the range has and the lake has not. Until then it
# trims nothing of the strand.

PAGE: Final = 1_000
# Each becomes a file. More of them wait for the next round.
MOST_RANGES: Final = 100

Mended = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Restored:
    """Ranges to archive, and what the lake notes of the region then; None: as it is."""

    parts: list[Range] = field(default_factory=list)
    mended: Mended | None = None


def is_noted(state: State, strand: Strand, info: StrandInfo, region: int | None) -> bool:
    """Whether restored entries of a strand are archived."""
    noted = state.mended.get(name_text(strand.name), {}).get(place_in(strand, region), "")
    return noted.encode() == info.mended


def find_restored(
    root: str, surveyor: Surveyor, state: State, infos: StrandInfos, *, guarded: bool
) -> Restored:
    """What was restored below the frontier since the last look. The driver lists the IDs of these ranges."""
    region, parts = surveyor.region, list[Range]()
    mended = {stream: dict(places) for stream, places in state.mended.items()}
    for strand, info in infos.items():
        if is_noted(state, strand, info, region):
            continue
        found = list[Range]()
        if (where := _range_below(state, strand, info)) is not None:
            alive = surveyor.run(partial(_alive_restored, strand, where), strand.key)
            archived = _archived(root, state, strand, where)
            found = list(_ranges(strand, info, _runs(alive, archived), guarded=guarded))
        parts += found[: MOST_RANGES - len(parts)]
        if len(parts) == MOST_RANGES:
            break
        mended.setdefault(name_text(strand.name), {})[place_in(strand, region)] = info.mended.decode()
    return Restored(parts, None if mended == state.mended else mended)


def _range_below(state: State, strand: Strand, info: StrandInfo) -> tuple[Id, Id] | None:
    """The restored range, as far as it is below the frontier: after one ID up to another."""
    where = mended_range(info.mended, strand.life)
    if where is None or strand not in state.frontier:
        return None
    first, last = max(where[0], ids.after(info.cut) or ids.LAST), min(where[1], state.frontier[strand])
    return (ids.before(first) or ids.ZERO, last) if first <= last else None


def _alive_restored(strand: Strand, where: tuple[Id, Id]) -> Plan[set[Id]]:
    found, (after, high) = set[Id](), where
    while True:
        page = ("XRANGE", strand.key, b"(" + ids.text(after), ids.text(high), "COUNT", PAGE)
        [entries] = yield Batch([page], resend=True)
        found |= {ids.native(entry[0]) for entry in entries}
        if len(entries) < PAGE:
            return found
        after = ids.native(entries[-1][0])


def _archived(root: str, state: State, strand: Strand, where: tuple[Id, Id]) -> set[Id]:
    low, high = where
    ends = strand.user(low), strand.user(high)
    paths = within(state.files.values(), name_text(strand.name), place_text(strand), *ends)
    wanted = files.Wanted.of(strand, low, high)
    positions = (archived_positions(root, each.path, wanted).to_pylist() for each in paths)
    return {strand.native(entry_of(each)) for some in positions for each in some}


def _runs(alive: set[Id], archived: set[Id]) -> Iterator[list[Id]]:
    """Live entries that are not archived, as runs without an archived entry in between: one may just come
    back, and would be archived twice."""
    run = list[Id]()
    for each in sorted(alive | archived):
        if each not in archived:
            run.append(each)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _ranges(strand: Strand, info: StrandInfo, runs: Iterable[list[Id]], *, guarded: bool) -> Iterator[Range]:
    for run in runs:
        start = ids.before(run[0]) or ids.ZERO
        first = info.first if info.first is not None and info.first > start else None
        yield Range(strand, start, run[-1], first=first, size=info.size, guarded=guarded, weight=len(run))


def mends_of(state: State, infos: Mapping[Strand, StrandInfo], region: int | None) -> dict[Strand, bytes]:
    """What was restored, of each strand whose restored entries are all archived."""
    return {strand: info.mended for strand, info in infos.items() if is_noted(state, strand, info, region)}


# ----------------------------------------------------------------------------------------------------
# Deletions

# positions: concatenated. Without a path: more entries of the strand are missing than were removed.
_FACT: Final = StructType().add("stream", StringType()).add("path", StringType()).add("place", StringType())
_FACT.add("positions", BinaryType())
_FACT_ARROW: Final = arrow_schema(_FACT)
_NOTHING: Final = pa.array([], pa.binary())
_IDS: Final = files.Needs(())
POSITION_BYTES: Final = 16

Named = tuple[str, str, bytes]  # stream, place, position


@dataclass(frozen=True, slots=True)
class Span:
    """A strand after `low` up to `high` (native IDs): entries missing in the engine there were deleted.

    is_cut: the engine has none of them, so it is not read. gone: how many entries the engine has removed.
    known: how many of those when they were last compared.
    """

    strand: Strand
    low: Id
    high: Id
    gone: int = 0
    known: int = 0
    is_cut: bool = False

    def files(self, state: State) -> list[File]:
        """The files of the lake that may have some of them."""
        if self.high <= self.low or not (self.gone or self.is_cut):
            return []
        name, place = name_text(self.strand.name), place_text(self.strand)
        return within(state.files.values(), name, place, *map(self.strand.user, (self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Taken:
    """The lake afterwards; how many entries were deleted; (stream, place) whose server has lost entries."""

    state: State
    entries: int
    doubtful: frozenset[tuple[str, str]] = frozenset()

    @property
    def notes(self) -> list[str]:
        return [
            f"stream {stream}, strand {place}: the server lacks more archived entries than it removed. It "
            "has lost some, so the lake keeps all. Later deletions of entries up to here reach the lake "
            "only if a journal names them. To delete them: braid spark forget"
            for stream, place in sorted(self.doubtful)
        ]


def take_over(
    spark: tasks.Session, lake: Lake, surveyor: Surveyor, refused: Container[bytes] = (), *, local: int = 0
) -> Taken:
    """Delete in the lake what was deleted in the engine. refused: streams to leave out. local: as in
    tasks.run.

    The driver needs some multiple of 16 bytes for each entry, until the files are written.
    """
    state = lake.load()
    infos = {strand: each for strand, each in surveyor.survey().items() if strand.name not in refused}
    region, url = surveyor.region, surveyor.url
    spans = _changed(state, infos, region)
    named, journals = _journals(surveyor, state, refused)
    pieces, weights = list[tuple[Span, list[str]]](), list[int]()
    for span in (*spans, *_cuts(state, infos)):
        if found := span.files(state):
            pieces.append((span, [each.path for each in found]))
            weights.append(sum(each.rows for each in found))
    finder = partial(_find, lake.root, surveyor.servers, url)
    try:
        with lake.reading(state):
            missing = tasks.run(spark, pieces, finder, _FACT, weights, local=local)
    except Conflict:
        return Taken(lake.load(), 0)  # the next round compares
    doubtful = frozenset((row["stream"], row["place"]) for row in missing if not row["path"])
    drops: Iterator[Drop] = ((row["path"], row["place"], row["positions"]) for row in missing if row["path"])
    drops = chain(drops, _holding(state, named))
    done = rewrite(spark, lake, state, without(state, drops), "delete", local=local)
    if done.undone:
        # Another job has rewritten these files: the next round tries again.
        return Taken(lake.load(), done.entries)
    compared = Compared(spans, region, journals, doubtful)
    return Taken(_note(lake, state, compared), done.entries, doubtful)


def _holding(state: State, named: list[Named]) -> Iterator[Drop]:
    """The files that may have entries that journals name."""
    found = dict[tuple[str, str], list[bytes]]()
    for stream, place, where in named:
        found.setdefault((stream, place), []).append(where)
    for (stream, place), positions in found.items():
        yield from holding(state, stream, place, sorted(positions))


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared, in which region, and which strands had too few entries there."""

    spans: list[Span]
    region: int | None
    journals: Mapping[str, Mapping[str, str]]
    doubtful: frozenset[tuple[str, str]]

    def notes(self, state: State) -> Change:
        removed = {stream: dict(places) for stream, places in state.removed.items()}
        doubts = {stream: dict(places) for stream, places in state.doubts.items()}
        for span in self.spans:
            stream, place = name_text(span.strand.name), place_in(span.strand, self.region)
            removed.setdefault(stream, {})[place] = span.gone
            if (stream, place_text(span.strand)) in self.doubtful:
                doubts.setdefault(stream, {})[place] = ids.text(span.high).decode()
        return Change("compared", removed=removed, journals=self.journals, doubts=doubts)


def _note(lake: Lake, before: State, compared: Compared) -> State:
    """Commit what was compared, so that it is not compared again; unless entries were archived meanwhile."""
    for _ in range(TRIES):
        state = lake.load()
        if state.offsets != before.offsets:
            return state
        change = compared.notes(state)
        if change.removed == state.removed and dict(compared.journals) == dict(state.journals):
            return state
        try:
            return lake.commit(state, change)
        except Conflict:
            continue
    return lake.load()


def _changed(state: State, infos: StrandInfos, region: int | None) -> list[Span]:
    """Strands whose count of removed entries has changed since they were last compared in this region."""
    spans = list[Span]()
    for strand, each in infos.items():
        stream, place = name_text(strand.name), place_in(strand, region)
        known = state.removed.get(stream, {}).get(place)
        gone = each.added - each.length
        if strand in state.frontier and each.there and known != gone:
            doubt = ids.native(state.doubts.get(stream, {}).get(place, "0-0").encode())
            # A region that is behind has not received what comes after its last ID.
            upto = min(state.frontier[strand], each.last, each.deleted)
            low = max(_before_first(each), doubt, each.trimmed)
            spans.append(Span(strand, low, upto, gone, known or 0))
    return spans


def _before_first(info: StrandInfo) -> Id:
    """The last position before the first entry; of an empty strand no entry is known to be deleted."""
    return info.last if info.first is None else ids.before(info.first) or ids.ZERO


def _cuts(state: State, infos: StrandInfos) -> Iterator[Span]:
    """What DEL deleted: everything up to a strand's cut, or a whole earlier life."""
    lives = {(each.name, each.label): each.life for each in infos}
    for strand in state.frontier:
        if not strand.is_plain and lives.get((strand.name, strand.label), 0) > strand.life:
            yield Span(strand, ids.ZERO, ids.LAST, is_cut=True)
        elif strand in infos and infos[strand].cut > ids.ZERO:
            yield Span(strand, ids.ZERO, infos[strand].cut, is_cut=True)


def _find(
    root: str, servers: Servers, url: int, pieces: Iterator[tuple[Span, list[str]]]
) -> Iterator[pa.RecordBatch]:
    """In a task: entries of a span that the lake has and the engine has not, file by file."""
    for span, paths in pieces:
        strand = span.strand
        alive = Alive() if span.is_cut else _alive(servers, url, Range(strand, span.low, span.high))
        missing = dict[str, bytes]()
        for path in paths:
            ours = archived_positions(root, path, files.Wanted.of(strand, span.low, span.high))
            ours = ours.filter(pc.invert(pc.is_in(ours, alive.positions)))
            ours = ours.filter(pc.greater_equal(ours, alive.head))
            if len(ours):
                missing[path] = b"".join(ours.to_pylist())
        count = sum(map(len, missing.values())) // POSITION_BYTES
        if not span.is_cut and count > max(0, alive.gone - span.known):
            missing = {"": b""}
        where = {"stream": name_text(strand.name), "place": place_text(strand)}
        for path, positions in missing.items():
            yield pa.RecordBatch.from_pylist([{**where, "path": path, "positions": positions}], _FACT_ARROW)


def archived_positions(root: str, path: str, wanted: files.Wanted) -> pa.Array:
    return _joined(
        [chunk for table in files.read(root, path, [wanted], _IDS) for chunk in table["position"].chunks]
    )


@dataclass(frozen=True, slots=True)
class Alive:
    """The live entries of a range. head: the strand's first entry afterwards: entries before it may be
    trimmed. gone: how many entries were removed by then."""

    positions: pa.Array = field(default_factory=lambda: _NOTHING)
    head: pa.Scalar = field(default_factory=lambda: pa.scalar(b"", pa.binary()))
    gone: int = 0


def _alive(servers: Servers, url: int, part: Range) -> Alive:
    """All from one server, because another region may be trimmed less far."""
    strand, one = part.strand, replace(servers, urls=(servers.urls[url],))
    alive = _joined([batch.column("position") for batch in read(Slice([part], 0), one, LakeRows, 0.0)])
    server = open_server(one, 0)
    try:
        info = server.run(_info(strand), strand.key)
    finally:
        server.close()
    head, gone = ids.LAST, 0 if info is None else info.added - info.length
    if info is not None and info.first is not None:
        head = strand.user(max(info.first, ids.after(info.trimmed) or info.first))
    return Alive(alive, pa.scalar(position(head), pa.binary()), gone)


def _info(strand: Strand) -> Plan[StrandInfo | None]:
    """What the server says of a strand; None if it no longer exists."""
    note: Command = ("HGET", keys.meta(strand.name), MetaField.TRIMMED + strand.label)
    notes = [] if strand.is_plain else [note]
    reply, *noted = yield Batch([strand.xinfo(), *notes], resend=True, attempt=True)
    if isinstance(reply, ReplyError):
        return None
    trimmed = trimmed_upto(noted[0] or b"", strand.life) if noted else ids.ZERO
    return replace(info_of(facts(reply), ids.ZERO), trimmed=trimmed)


def _joined(chunks: list[Any]) -> pa.Array:
    return pa.concat_arrays(chunks) if chunks else _NOTHING


def _journals(
    surveyor: Surveyor, state: State, refused: Container[bytes]
) -> tuple[list[Named], dict[str, dict[str, str]]]:
    """Deletions in journals, and up to where the journals were read."""
    found, positions = list[Named](), dict[str, dict[str, str]]()
    region = surveyor.run(region_or_none)
    writers = [] if region is None else sorted({*region.everyone})
    for name in sorted({strand.name for strand in state.frontier if not strand.is_plain}):
        known = dict(state.journals.get(name_text(name), {}))
        for writer in writers if name not in refused else ():
            since = f"({known.get(str(writer), '0-0')}"
            read = partial(send_one, ("XRANGE", keys.journal(name, writer), since, "+"), resend=True)
            for native, words in surveyor.run(read, keys.meta(name)):
                found += _deletions(name, words)
                known[str(writer)] = native.decode()
        if known:
            positions[name_text(name)] = known
    return found, positions


def _deletions(name: bytes, words: list[bytes]) -> Iterator[Named]:
    registration, natives = deletions(words)
    if not natives or is_trim(words):
        return
    label, _, life = registration.partition(b":")
    strand = strand_of_label(name, label, int(life))
    for native in natives:
        yield name_text(name), place_text(strand), position(strand.user(ids.native(native)))
