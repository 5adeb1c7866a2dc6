"""Removes entries from live streams, like XDELEX ... ACKED, at a pace that peers can follow.

Each step deletes up to 200 entries of a strand, checks the groups again in the same step, and writes one
entry to the region's journal for the peers. A journal has 10,000 entries per stream; a peer that is further
behind compares whole streams instead. So when the journal is half full, the job waits; and if it does not
shrink for a while, because a peer is away, the job leaves the rest for another time.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructType

from braidstream.commands.drop import AT_ONCE, drop_command
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.frontier import name_of_text, place_of_text
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand, facts
from braidstream.protocol.identify import read_any_region
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View
from braidstream.spark.source.entries import entry_of
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
    """entries: how many were deleted. left: how many were not, because the journal was full.

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
                strand, natives, now = _strand(*where), [], where
            user = entry_of(row["position"])
            native = strand.exact(user)
            assert native is not None, row
            natives.append(ids.text(native))
        made += _step(now, natives)
        yield pa.RecordBatch.from_pylist(
            [dict(zip(_STEP_ARROW.names, each, strict=True)) for each in made], _STEP_ARROW
        )


def _strand(stream: str, place: str) -> Strand:
    strand = place_of_text(name_of_text(stream), place)
    assert strand is not None, place
    return strand


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
        strand = _strand(row.stream, row.place)
        if not strand.is_plain and region is None:
            region = surveyor.try_servers(lambda server: server.run(read_any_region()))
        if row.stream in full or not _has_room(surveyor, strand, region):
            full.add(row.stream)
            removed.left += row.entries
        else:
            natives = row.natives.encode().split(b" ")
            gone, kept = _run(surveyor, strand, partial(_drop, strand, natives, region))
            removed.entries += gone
            if kept:
                removed.undone.add(row.stream)
        show(row.entries)
    removed.undone |= full
    return removed


def _run(surveyor: Surveyor, strand: Strand, make: Callable[[], Plan[Any]]) -> Any:
    """Run a plan. If the server is lost before it ends, another one runs a new plan from its start."""
    return surveyor.try_servers(lambda server: server.run(make(), strand.key))


def _drop(strand: Strand, natives: list[bytes], region: Region | None) -> Plan[tuple[int, int]]:
    """(how many were deleted, how many a group needs). One round trip, three if plain; idempotent."""
    if strand.is_plain:  # acknowledged entries stay acknowledged, unless a user moves a group back
        free = yield from _acknowledged(strand, natives)
        [gone] = (yield Batch([("XDEL", strand.key, *free)], resend=True)) if free else [0]
        return int(gone), len(natives) - len(free)
    assert region is not None
    command = drop_command(View(region), strand, natives, (b"ACKED", b""))
    [answers] = yield Batch([command], resend=True)
    return answers.count(1), answers.count(KEPT)


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

    def length_of() -> Plan[int]:
        [length] = yield Batch([("XLEN", journal)], resend=True)
        return int(length)

    least, deadline = _run(surveyor, strand, length_of), time.monotonic() + PATIENCE_S
    while least >= JOURNAL_ROOM:
        time.sleep(POLL_S)
        length = _run(surveyor, strand, length_of)
        if length < least:
            least, deadline = length, time.monotonic() + PATIENCE_S
        elif time.monotonic() > deadline:
            return False
    return True
