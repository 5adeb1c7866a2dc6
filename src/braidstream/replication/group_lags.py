"""For /metrics: the lag of a region's consumer groups, and native streams beside streams of ours (strays).

Streams are looked at one after the other, round after round, so the load on the engine is small and even.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from braidstream.commands.groups.group_status import groups
from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import Registry
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


async def measure(source: PlanRunner, is_mine: Callable[[bytes], bool]) -> tuple[list[GroupLag], Strays]:
    """One round over the streams that are ours to look at, except those of a cluster's lost node."""
    region, found, strays = await region_of(source), list[GroupLag](), Strays()
    try:
        async for names in all_streams(source):
            mine = [*filter(is_mine, names)]
            here = await source.run(count_strays(mine))
            strays = Strays(strays.streams + here.streams, strays.entries + here.entries)
            room = mine if len(found) < MOST else []
            for name in await source.run(with_groups(room)):
                found += await source.run(read_lags(region, name))
    except BraidError as error:
        if not spares_others(error, source):
            raise
    return found[:MOST], strays


def count_strays(names: list[bytes]) -> Plan[Strays]:
    """One round trip. A fence, another type and a name that this user may not read count as none."""
    if not names:
        return Strays()
    commands: list[Command] = [("XLEN", key) for name in names for key in (name, keys.stray(name))]
    replies = yield Batch(commands, resend=True, attempt=True)
    lengths = [0 if isinstance(reply, ReplyError) else int(reply) for reply in replies]
    found = [beside + aside for beside, aside in zip(lengths[::2], lengths[1::2], strict=True)]
    return Strays(sum(entries > 0 for entries in found), sum(found))


def with_groups(names: list[bytes]) -> Plan[list[bytes]]:
    """Those of the streams that have groups. One round trip."""
    if not names:
        return []
    reads = [registry_of(name) for name in names]
    replies = yield Batch(reads, resend=True, attempt=True)
    known = [[] if isinstance(reply, ReplyError) else reply for reply in replies]  # another type, say
    found = {name: Registry.parse(name, reply) for name, reply in zip(names, known, strict=True)}
    found = yield from checked_now(reads, found)
    return [name for name, registry in found.items() if registry.exists and registry.groups]


def read_lags(region: Region, name: bytes) -> Plan[list[GroupLag]]:
    """The groups of one stream; none if it was deleted meanwhile."""
    try:
        rows = yield from groups(View(region), name)
    except ReplyError:
        return []
    found = []
    for row in map(facts, rows):
        stream, group = (word.decode("utf-8", "backslashreplace") for word in (name, row[b"name"]))
        found.append(GroupLag(stream, group, int(row[b"lag"] or 0), int(row[b"pending"])))
    return found
