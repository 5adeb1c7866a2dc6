"""Removes entries from live streams, at a pace that peers can follow; trims what is archived.

Each step deletes up to 200 entries of a strand, checks the groups again in the same step, and writes one
entry to the region's journal for the peers. A journal has 10,000 entries per stream; a peer that is further
behind compares whole streams instead. So when the journal is half full, the job waits; and if it does not
shrink for a while, because a peer is away, the job leaves the rest for another time.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructType

from braidstream.commands.removal import AT_ONCE, drop_command
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.frontier import name_text, strand_of_row
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.ask_peers import NO_DAEMON, Needs, ask
from braidstream.plan.lookup import read_any_region
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.view import View
from braidstream.spark.jobs.deletions import mends_of
from braidstream.spark.lake.log import State, place_in
from braidstream.spark.source.rows import entry_of
from braidstream.spark.source.survey import Surveyor

JOURNAL_ROOM: Final = 5_000
PATIENCE_S: Final = 10.0
POLL_S: Final = 0.1
KEPT: Final = 2  # the answer of XDELEX if a group needs the entry

_STEP: Final = StructType().add("stream", StringType()).add("place", StringType())
_STEP.add("natives", StringType()).add("entries", LongType())
_STEP_ARROW: Final = pa.schema(
    [("stream", pa.string()), ("place", pa.string()), ("natives", pa.string()), ("entries", pa.int64())]
)
_NONE: Final = Strand(b"", keys.PLAIN, 0)


@dataclass(slots=True)
class Removed:
    """entries: how many were deleted. left: how many were not, because the journal was full, or another
    region could not be asked what its groups need.

    undone: streams in which entries to remove are left.
    """

    entries: int = 0
    left: int = 0
    undone: set[str] = field(default_factory=set)


def steps(frame: DataFrame) -> DataFrame:
    """Entries (stream, place, position) as steps, so that few rows reach the driver."""
    ordered = frame.select("stream", "place", "position").sortWithinPartitions("stream", "place", "position")
    return ordered.mapInArrow(_steps, _STEP)


def _steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made, natives, now, strand = list[tuple[str, str, str, int]](), list[bytes](), None, _NONE
        for row in batch.to_pylist():
            where = row["stream"], row["place"]
            if where != now or len(natives) == AT_ONCE:
                made += _step(now, natives)
                strand, natives, now = strand_of_row(*where), [], where
            user = entry_of(row["position"])
            native = strand.exact(user)
            assert native is not None, row
            natives.append(ids.text(native))
        made += _step(now, natives)
        yield pa.RecordBatch.from_pylist(
            [dict(zip(_STEP_ARROW.names, each, strict=True)) for each in made], _STEP_ARROW
        )


def _step(where: tuple[str, str] | None, natives: list[bytes]) -> list[tuple[str, str, str, int]]:
    return [(*where, b" ".join(natives).decode(), len(natives))] if where and natives else []


def remove(
    surveyor: Surveyor, rows: Iterable[Any], show: Callable[[int], None] = lambda entries: None
) -> Removed:
    """Run steps (rows of `steps`) on the server. show: called after each with its number of entries.

    Idempotent: kill it and run it again at any time.
    """
    removed, full = Removed(), set[str]()
    region: Region | None = None
    for row in rows:
        strand = strand_of_row(row.stream, row.place)
        if not strand.is_plain and region is None:
            region = surveyor.run(read_any_region)
        if row.stream in full or not _has_room(surveyor, strand, region):
            full.add(row.stream)
            removed.left += row.entries
        else:
            natives = row.natives.encode().split(b" ")
            done = surveyor.run(partial(_drop, strand, natives, region), strand.key)
            if done is None:
                full.add(row.stream)
                removed.left += row.entries
            else:
                removed.entries += done[0]
                removed.undone |= {row.stream} if done[1] else set()
        show(row.entries)
    removed.undone |= full
    return removed


def _drop(strand: Strand, natives: list[bytes], region: Region | None) -> Plan[tuple[int, int] | None]:
    """(how many were deleted, how many a group needs). None if a region cannot be asked. Idempotent."""
    if strand.is_plain:  # acknowledged entries stay acknowledged, unless a user moves a group back
        free = yield from _acknowledged(strand, natives)
        [gone] = (yield Batch([("XDEL", strand.key, *free)], resend=True)) if free else [0]
        return int(gone), len(natives) - len(free)
    assert region is not None
    view = View(region)
    needs = yield from ask(view, strand.name)
    if needs.unknown:
        return None
    limit = needs.limit(strand)
    free = [native for native in natives if ids.native(native) <= limit]
    command = drop_command(view, strand, free, (b"ACKED", b""))
    [answers] = (yield Batch([command], resend=True)) if free else [[]]
    return answers.count(1), answers.count(KEPT) + len(natives) - len(free)


def _acknowledged(strand: Strand, natives: list[bytes]) -> Plan[list[bytes]]:
    """Which of the entries every group has acknowledged."""
    [reply] = yield Batch([("XINFO", "GROUPS", strand.key)], resend=True, attempt=True)
    if isinstance(reply, ReplyError):
        if reply.text.startswith("ERR no such key"):
            return natives
        raise reply
    groups = [facts(group) for group in reply]
    delivered = min((ids.native(group[b"last-delivered-id"]) for group in groups), default=ids.LAST)
    free = [native for native in natives if ids.native(native) <= delivered]
    busy = [group[b"name"] for group in groups if group[b"pending"]]
    reads: list[Command] = [("XPENDING", strand.key, name, each, each, 1) for name in busy for each in free]
    replies = (yield Batch(reads, resend=True)) if reads else []
    pending = {entry[0] for found in replies for entry in found}
    return [native for native in free if native not in pending]


def _has_room(surveyor: Surveyor, strand: Strand, region: Region | None) -> bool:
    """Whether the journal has room. Waits as long as it shrinks."""
    if region is None or not region.journal_writer:
        return True
    journal = keys.journal(strand.name, region.journal_writer)

    read = partial(send_one, ("XLEN", journal), resend=True)
    least, deadline = surveyor.run(read, strand.key), time.monotonic() + PATIENCE_S
    while least >= JOURNAL_ROOM:
        time.sleep(POLL_S)
        length = surveyor.run(read, strand.key)
        if length < least:
            least, deadline = length, time.monotonic() + PATIENCE_S
        elif time.monotonic() > deadline:
            return False
    return True


# ----------------------------------------------------------------------------------------------------
#
# Safe trimming: removes entries from the engine that are in the lake and that every group has acknowledged.
#
# A native XTRIM MINID of each strand, which is replicated like any trim. Only if no entries were deleted
# since the lake was last compared with the engine (deletions.py): trimmed entries can no longer be
# compared. And only if no entries were restored that the lake lacks (deletions.py).

# Trims if the number of removed entries and what was restored (model/registry.py join_mend) are as the caller
# expects, else returns -1. Why a script: the lake would miss an XDEL or restored entries between the check
# and the trim.
SCRIPT: Final = """
local noted = {}
for at = 4, KEYS[2] and #ARGV or 0 do noted[#noted + 1] = redis.call('HGET', KEYS[2], ARGV[at]) or nil end
if table.concat(noted, ' ') ~= ARGV[3] then return -1 end
local facts, info = {}, redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do facts[info[at]] = info[at + 1] end
if facts['entries-added'] - facts['length'] ~= tonumber(ARGV[1]) then return -1 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[2])
"""


def acknowledged(strand: Strand) -> Plan[Id]:
    """Up to where every group of a strand has acknowledged all entries. Two round trips."""
    [replies] = yield Batch([("XINFO", "GROUPS", strand.key)], resend=True)
    groups = [facts(reply) for reply in replies]
    upto = [ids.native(group[b"last-delivered-id"]) for group in groups]
    busy = [group[b"name"] for group in groups if group[b"pending"]]
    if busy:
        pending = yield Batch([("XPENDING", strand.key, name) for name in busy], resend=True)
        upto += [ids.before(ids.native(each[1])) or ids.ZERO for each in pending if each[0]]
    return min(upto, default=ids.LAST)


class PeerNeeds:
    """What groups of other regions need, asked once for each stream. notes: streams that wait."""

    def __init__(self) -> None:
        self._asked = dict[bytes, Needs]()
        self.notes = list[str]()

    def of(self, server: Any, strand: Strand) -> Needs:
        if strand.is_plain:
            return Needs()
        if strand.name not in self._asked:
            # If no daemon answers, do not wait for each stream.
            waits = not any(NO_DAEMON in each.unknown.values() for each in self._asked.values())
            needs = self._asked[strand.name] = server.run(_ask(strand.name, waits=waits), strand.key)
            if needs.unknown:
                name = name_text(strand.name)
                self.notes.append(f"{name} is not trimmed: it is not known what groups need in {needs.waits}")
        return self._asked[strand.name]


def _ask(name: bytes, *, waits: bool) -> Plan[Needs]:
    return (yield from ask(View((yield from read_any_region())), name, waits=waits))


def _is_empty(strand: Strand, upto: Id) -> Plan[bool]:
    """Whether there is nothing to trim up to here."""
    [page] = yield Batch([("XRANGE", strand.key, "-", ids.text(upto), "COUNT", 1)], resend=True)
    return not page


def _cut(strand: Strand, upto: Id, removed: int, mended: bytes) -> Plan[int]:
    following = ids.after(upto)
    if following is None:
        return 0
    where: Command = (1, strand.key) if strand.is_plain else (2, strand.key, keys.meta(strand.name))
    fields = (MetaField.MENDED + strand.label, MetaField.RESTORES + strand.label)
    [reply] = yield Batch([("EVAL", SCRIPT, *where, removed, ids.text(following), mended, *fields)])
    return int(reply)


def trim(
    surveyor: Surveyor, state: State, refused: Container[bytes] = (), *, keep_s: float, now_s: float
) -> tuple[dict[Strand, int], list[str]]:
    """Trim; returns how many entries of each strand were removed, and which streams wait for which region.

    keep_s: keep younger entries.
    refused: streams to leave out. If the server is lost and another region answers, nothing more is trimmed:
    the lake's counts are those of the first region.
    """
    oldest, region = int((now_s - keep_s) * 1000), surveyor.region
    peers = PeerNeeds()
    cut = {
        strand: _trim_strand(surveyor, state, (strand, peers), region, (oldest, mended))
        for strand, mended in _strands(surveyor, state, region).items()
        if strand.name not in refused
    }
    return cut, peers.notes


def noted(state: State, cut: Mapping[Strand, int], region: int | None) -> dict[str, dict[str, int]]:
    """The counts of removed entries after the trim, so that the trim causes no comparison."""
    removed = {stream: dict(places) for stream, places in state.removed.items()}
    for strand, count in cut.items():
        if count:
            removed[name_text(strand.name)][place_in(strand, region)] += count
    return removed


def _strands(surveyor: Surveyor, state: State, region: int | None) -> dict[Strand, bytes]:
    """The strands to trim, and what was restored in each, which is archived."""
    infos = {
        strand: each for strand, each in surveyor.survey().items() if each.there and strand in state.frontier
    }
    return mends_of(state, infos, region)


def _trim_strand(
    surveyor: Surveyor,
    state: State,
    what: tuple[Strand, PeerNeeds],
    region: int | None,
    limits: tuple[int, bytes],
) -> int:
    """limits: keep entries from this millisecond on; what was restored."""
    (strand, peers), (oldest_ms, mended) = what, limits
    removed = state.removed.get(name_text(strand.name), {}).get(place_in(strand, region))
    if removed is None:
        return 0

    def work(server: Any) -> int:
        if surveyor.region != region:
            return 0
        upto: Id = min(server.run(acknowledged(strand), strand.key), state.frontier[strand])
        upto = min(upto, (max(0, oldest_ms), 0))
        if server.run(_is_empty(strand, upto), strand.key):
            return 0
        upto = min(upto, peers.of(server, strand).limit(strand))
        return max(0, int(server.run(_cut(strand, upto, removed, mended), strand.key)))

    return surveyor.try_servers(work)
