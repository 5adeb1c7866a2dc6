"""For /metrics: the lag of a region's consumer groups, and native streams beside streams of ours (strays).

Streams are looked at one after the other, round after round, so the load on the engine is small and even.
What the daemon's user may not read is unknown: there is no metric then, and an event names the right.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from braidstream.admin.link_rights import COUNT_STRAYS, missing_right
from braidstream.commands.groups.group_status import groups
from braidstream.errors import BraidError, DamagedError, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import parse_each
from braidstream.model.region_config import Region
from braidstream.model.strand import facts
from braidstream.protocol.lookup import checked_now, registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View
from braidstream.replication.cluster_endpoint import spares_others
from braidstream.replication.cluster_region import region_of
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.feed import all_streams

EVERY_S: Final = 15.0
# Of more groups than this the others are not shown: each is a time series of Prometheus.
MOST: Final = 1_000
# The metrics that a right is needed for.
GROUPS: Final = "braid_group_lag_entries,braid_group_pending_entries"
STRAYS: Final = "braid_stray_entries,braid_stray_streams"


@dataclass(frozen=True, slots=True)
class GroupLag:
    """lag: entries that were not read; pending: those that were read and not acknowledged."""

    stream: str
    group: str
    lag: int
    pending: int


@dataclass(frozen=True, slots=True)
class Strays:
    """Native streams under the names of streams of ours: a client wrote them past us, at the engine."""

    streams: int = 0
    entries: int = 0


@dataclass(slots=True)
class GroupMetrics:
    """What one round found. strays: None if unknown. damaged: streams whose registry cannot be read. denied:
    rights that the user lacks, and the metrics that are absent without them."""

    lags: list[GroupLag] = field(default_factory=list)
    damaged: list[DamagedError] = field(default_factory=list)
    strays: Strays | None = None
    denied: dict[str, str] = field(default_factory=dict)


async def measure(source: PlanRunner, is_mine: Callable[[bytes], bool]) -> GroupMetrics:
    """One round over the streams that are ours to look at, except those of a cluster's lost node."""
    region, found = await region_of(source), GroupMetrics(strays=Strays())
    try:
        async for names in all_streams(source):
            mine = [*filter(is_mine, names)]
            await _look_for_strays(source, mine, found)
            room = mine if len(found.lags) < MOST and GROUPS not in found.denied.values() else []
            grouped, damaged = await source.run(with_groups(room))
            found.damaged += damaged
            for name in grouped:
                found.lags += await _lags_of(source, region, name, found.denied)
    except BraidError as error:
        if not spares_others(error, source):
            raise
    found.lags = found.lags[:MOST]
    return found


async def _look_for_strays(source: PlanRunner, names: list[bytes], found: GroupMetrics) -> None:
    here = await source.run(count_strays(names))
    if here is None:
        found.denied[COUNT_STRAYS] = STRAYS
        found.strays = None
    elif found.strays is not None:
        found.strays = Strays(found.strays.streams + here.streams, found.strays.entries + here.entries)


async def _lags_of(source: PlanRunner, region: Region, name: bytes, denied: dict[str, str]) -> list[GroupLag]:
    """The groups of one stream; none if it was deleted meanwhile, or may not be read."""
    try:
        return await source.run(read_lags(region, name))
    except ReplyError as error:
        if error.code == "NOPERM":
            denied[missing_right(error.text) or error.text] = GROUPS
        return []


def count_strays(names: list[bytes]) -> Plan[Strays | None]:
    """One round trip. A fence and another type count as none. None if this user may not read the names."""
    if not names:
        return Strays()
    commands: list[Command] = [("XLEN", key) for name in names for key in (name, keys.stray(name))]
    replies = yield Batch(commands, resend=True, attempt=True)
    if any(isinstance(reply, ReplyError) and reply.code == "NOPERM" for reply in replies):
        return None
    lengths = [0 if isinstance(reply, ReplyError) else int(reply) for reply in replies]
    found = [beside + aside for beside, aside in zip(lengths[::2], lengths[1::2], strict=True)]
    return Strays(sum(entries > 0 for entries in found), sum(found))


def with_groups(names: list[bytes]) -> Plan[tuple[list[bytes], list[DamagedError]]]:
    """Those of the streams that have groups, and why others cannot be read. One round trip."""
    if not names:
        return [], []
    reads = [registry_of(name) for name in names]
    replies = yield Batch(reads, resend=True, attempt=True)
    known = [[] if isinstance(reply, ReplyError) else reply for reply in replies]  # another type, say
    found = yield from checked_now(reads, parse_each(names, known))
    damaged = [registry.damaged for registry in found.values() if registry.damaged is not None]
    return [name for name, registry in found.items() if registry.exists and registry.groups], damaged


def read_lags(region: Region, name: bytes) -> Plan[list[GroupLag]]:
    """The groups of one stream. ReplyError if it was deleted meanwhile."""
    rows = yield from groups(View(region), name)
    found = []
    for row in map(facts, rows):
        stream, group = (word.decode("utf-8", "backslashreplace") for word in (name, row[b"name"]))
        found.append(GroupLag(stream, group, int(row[b"lag"] or 0), int(row[b"pending"])))
    return found
