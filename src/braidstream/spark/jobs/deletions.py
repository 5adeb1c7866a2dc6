"""Deletes in the lake what was deleted in the engine.

Entries of a strand that the lake has and the engine has not were trimmed or deleted:

    lake     1  2  3  4  5  6  7  8
    engine            4  5     7  8  9        6 was deleted. 1 to 3 were trimmed, or deleted before that

A trim keeps a stream short, so it removes nothing from the lake. Certainly deleted are: entries missing above
the engine's first entry (read last, because trims continue meanwhile), entries that a journal names, and
entries up to the cut of a DEL. A comparison reads all live entries, so it runs only if the count of removed
entries has changed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructType

from braidstream.model import ids, keys
from braidstream.model.fields import ConfigField
from braidstream.model.frontier import name_of_text, name_text, place_of_text, place_text
from braidstream.model.ids import Id
from braidstream.model.journal import deletions
from braidstream.model.strand import Strand, strand_of_label
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.protocol.retries import TRIES
from braidstream.spark.lake import distribute, files
from braidstream.spark.lake.lake_state import Change, Conflict, State, within
from braidstream.spark.lake.log import Lake
from braidstream.spark.lake.rewrite import Drop, holding, rewrite, without
from braidstream.spark.options import Servers
from braidstream.spark.source.entries import LakeRows, position
from braidstream.spark.source.reading import read
from braidstream.spark.source.slices import Range, Slice
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos
from braidstream.spark.source.survey import Surveyor, open_server

_PIECE: Final = StructType()
for _name in ("stream", "place", "low", "high", "alive_from", "paths"):
    _PIECE.add(_name, StringType())
_FACT: Final = StructType().add("path", StringType()).add("place", StringType())
_FACT.add("positions", BinaryType())  # concatenated
_FACT_ARROW: Final = pa.schema([("path", pa.string()), ("place", pa.string()), ("positions", pa.binary())])
_NOTHING: Final = pa.array([], pa.binary())

Named = tuple[str, str, bytes]  # stream, place, position


@dataclass(frozen=True, slots=True)
class Span:
    """A strand after `low` up to `high` (native IDs): entries missing in the engine there were deleted.

    is_cut: the engine has none of them, so it is not read. gone: how many entries the engine has removed.
    """

    strand: Strand
    low: Id
    high: Id
    gone: int = 0
    is_cut: bool = False

    def piece(self, state: State) -> tuple[str, ...] | None:
        """The work of a task; None if the lake has nothing there."""
        name, place = name_text(self.strand.name), place_text(self.strand)
        ends = self.strand.user(self.low), self.strand.user(self.high)
        found = within(state.files.values(), name, place, *ends)
        if not found or self.high <= self.low or not (self.gone or self.is_cut):
            return None
        paths = "\n".join(each.path for each in found)
        texts = (ids.text(each).decode() for each in (self.low, self.high))
        return name, place, *texts, "nothing" if self.is_cut else "engine", paths


def take_over(spark: SparkSession | None, lake: Lake, surveyor: Surveyor) -> tuple[State, int]:
    """Delete in the lake what was deleted in the engine: (state of the lake, number of entries).

    The driver needs some multiple of 16 bytes for each of them, until the files are written.
    """
    state, infos = lake.load(), surveyor.survey()
    spans = _changed(state, infos)
    named, journals = _journals(surveyor, state)
    pieces = [each.piece(state) for each in (*spans, *_cuts(state, infos))]
    finder = partial(_find, lake.root, surveyor.servers, surveyor.url)
    missing = distribute.run(spark, [each for each in pieces if each], _PIECE, finder, _FACT)
    drops = ((row["path"], row["place"], row["positions"]) for row in missing)
    tasks = without(state, chain(drops, _holding(state, named)))
    done = rewrite(spark, lake, tasks, "delete")
    if done.undone:
        return lake.load(), done.entries  # another job has rewritten these files: the next round tries again
    return _note(lake, state, spans, journals), done.entries


def _holding(state: State, named: list[Named]) -> Iterator[Drop]:
    """The files that may have entries that journals name."""
    found = dict[tuple[str, str], list[bytes]]()
    for stream, place, where in named:
        found.setdefault((stream, place), []).append(where)
    for (stream, place), positions in found.items():
        yield from holding(state, stream, place, sorted(positions))


def _note(lake: Lake, compared: State, spans: list[Span], journals: Mapping[str, Mapping[str, str]]) -> State:
    """Commit what was compared, so that it is not compared again; unless entries were archived meanwhile."""
    for _ in range(TRIES):
        state = lake.load()
        if state.offsets != compared.offsets:
            return state
        removed = {stream: dict(places) for stream, places in state.removed.items()}
        for span in spans:
            removed.setdefault(name_text(span.strand.name), {})[place_text(span.strand)] = span.gone
        if removed == state.removed and dict(journals) == dict(state.journals):
            return state
        try:
            return lake.commit(state, Change("compared", removed=removed, journals=journals))
        except Conflict:
            continue
    return lake.load()


def _changed(state: State, infos: StrandInfos) -> list[Span]:
    """Strands whose count of removed entries has changed since they were last compared."""
    spans = list[Span]()
    for strand, each in infos.items():
        known = state.removed.get(name_text(strand.name), {}).get(place_text(strand))
        gone = each.added - each.length
        if strand in state.frontier and each.there and known != gone:
            # A region that is behind has not received what comes after its last ID.
            upto = min(state.frontier[strand], each.last)
            spans.append(Span(strand, _before_first(each), upto, gone))
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
    root: str, servers: Servers, url: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: entries of a span that the lake has and the engine has not, file by file."""
    for batch in batches:
        for row in batch.to_pylist():
            strand = place_of_text(name_of_text(row["stream"]), row["place"])
            assert strand is not None, row
            low, high = (ids.native(row[name].encode()) for name in ("low", "high"))
            alive, head = _NOTHING, pa.scalar(b"", pa.binary())
            if row["alive_from"] == "engine":
                alive, head = _alive(servers, url, Range(strand, low, high, None, 64, False, 0))
            for path in row["paths"].split("\n"):
                ours = _archived(root, path, files.Wanted.of(strand, low, high))
                ours = ours.filter(pc.invert(pc.is_in(ours, alive)))
                ours = ours.filter(pc.greater_equal(ours, head))
                if len(ours):
                    fact = {"path": path, "place": row["place"], "positions": b"".join(ours.to_pylist())}
                    yield pa.RecordBatch.from_pylist([fact], _FACT_ARROW)


def _archived(root: str, path: str, wanted: files.Wanted) -> pa.Array:
    return _joined(
        [chunk for table in files.read(root, path, [wanted]) for chunk in table["position"].chunks]
    )


def _alive(servers: Servers, url: int, part: Range) -> tuple[pa.Array, pa.Scalar]:
    """The live entries of a range, and the strand's first entry afterwards: entries before it may be trimmed.

    Both from one server, because another region may be trimmed less far.
    """
    strand, one = part.strand, replace(servers, urls=(servers.urls[url],))
    alive = _joined([batch.column("position") for batch in read(Slice([part], 0), one, LakeRows, 0.0)])
    server = open_server(one, 0)
    try:
        head = server.run(_head(strand), strand.key)
    finally:
        server.close()
    return alive, pa.scalar(position(head), pa.binary())


def _head(strand: Strand) -> Plan[Id]:
    """The first ID of a strand (user ID); the largest ID if it is empty."""
    [page] = yield Batch([("XRANGE", strand.key, "-", "+", "COUNT", 1)], resend=True)
    return strand.user(ids.native(page[0][0])) if page else ids.LAST


def _joined(chunks: list[Any]) -> pa.Array:
    return pa.concat_arrays(chunks) if chunks else _NOTHING


def _journals(surveyor: Surveyor, state: State) -> tuple[list[Named], dict[str, dict[str, str]]]:
    """Deletions in journals, and up to where the journals were read."""
    found, positions = list[Named](), dict[str, dict[str, str]]()
    writers = surveyor.try_servers(lambda server: server.run(_writers(), keys.CONFIG))
    for name in sorted({strand.name for strand in state.frontier if not strand.is_plain}):
        known = dict(state.journals.get(name_text(name), {}))
        for writer in writers:
            for native, words in _journal(surveyor, name, writer, known.get(str(writer), "0-0")):
                found += _deletions(name, words)
                known[str(writer)] = native.decode()
        if known:
            positions[name_text(name)] = known
    return found, positions


def _writers() -> Plan[list[int]]:
    """The writers that may have a journal; empty on a server that is no region."""
    [reply] = yield Batch([("HMGET", keys.CONFIG, ConfigField.WRITERS, ConfigField.LEFT)], resend=True)
    return sorted(int(number) for each in reply if each for number in each.split())


def _journal(surveyor: Surveyor, name: bytes, writer: int, since: str) -> list[Any]:
    read = ("XRANGE", keys.journal(name, writer), f"({since}", "+")
    return surveyor.try_servers(lambda server: server.run(send_one(read, resend=True), keys.meta(name)))


def _deletions(name: bytes, words: list[bytes]) -> Iterator[Named]:
    registration, natives = deletions(words)
    if not natives:
        return
    label, _, life = registration.partition(b":")
    strand = strand_of_label(name, label, int(life))
    for native in natives:
        yield name_text(name), place_text(strand), position(strand.user(ids.native(native)))
