"""Keeps what clients wrote to a server that was flushed, before they noticed it.

The server no longer knows its earlier IDs, so such an entry may lie among those that the peers have:

    peers     1 2 . 4        3 was deleted
    home          3'         written after FLUSHALL

The peers lack it although it was never deleted. It is marked like a restored entry (`m:`), so a link keeps it
and sends it to the peers (heal.py). Only while the region is fenced, before anything is restored.

Offsets of a log were given twice, and a region that is not its home may have taken it for a new one. So such
entries are set aside, under a key of their own, and appended at the home when the log is restored. Not so a
log that peers have restored meanwhile: their daemons do so as soon as they see the fence.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.registry import Registry, offset_id
from braidstream.model.strand import Strand
from braidstream.operations import log_upkeep
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.replication.detect.feed import all_keys
from braidstream.replication.endpoint import Endpoint, PlanRunner
from braidstream.replication.link.stream_state import read_state


async def mark_written(home: Endpoint, writer: int, peers: Sequence[PlanRunner]) -> None:
    """Mark all entries in the region's own strands, and set those of logs aside."""
    async for found in all_keys(home, keys.of_writer(writer)):
        for strand in [Strand(*parts) for key in found if (parts := keys.parse_strand(key))]:
            if strand.is_of_log:
                if not await _is_restored(strand, home, peers):
                    await home.run(_set_aside(strand))
                continue
            extent = (await home.run(read_state(strand.name, [strand], []))).strands.get(strand)
            if extent and extent.first:
                where = b"%d %b %b" % (strand.life, ids.text(extent.first), ids.text(extent.last))
                mark = ("HSETNX", keys.meta(strand.name), MetaField.MENDED + strand.label, where)
                await home.run(send_one(mark))


async def set_reused_aside(home: Endpoint, writer: int, peers: Sequence[PlanRunner]) -> None:
    """Set logs aside whose offsets were given twice. For a cluster: after a loss of some of its primaries its
    facts do not say what was written since. The first entries of the log do, if peers have others there."""
    async for found in all_keys(home, keys.of_writer(writer)):
        for strand in [Strand(*parts) for key in found if (parts := keys.parse_strand(key))]:
            if strand.is_of_log and await _is_reused(strand, home, peers):
                await home.run(_set_aside(strand))


async def _is_reused(strand: Strand, home: PlanRunner, peers: Sequence[PlanRunner]) -> bool:
    """A log that began again differs from the first entry on that both have. Later differences are those of
    an earlier loss, with common entries around them: they stay."""
    for peer in peers:
        for first in await peer.run(_first(strand, b"-")):
            if any(
                ours[0] == first[0] and ours != first for ours in await home.run(_first(strand, first[0]))
            ):
                return True
    return False


async def _is_restored(strand: Strand, home: PlanRunner, peers: Sequence[PlanRunner]) -> bool:
    """A log that peers have restored begins with an entry that a peer has too."""
    ours = await home.run(_first(strand, b"-"))
    return any([ours == await peer.run(_first(strand, first[0])) for peer in peers for first in ours])


def _first(strand: Strand, at: bytes) -> Plan[list[Any]]:
    found: list[Any] = yield from send_one(("XRANGE", strand.key, at, b"+", "COUNT", 1), resend=True)
    return found


def _set_aside(strand: Strand) -> Plan[None]:
    """The name of the key is unique, so that each entry is appended once."""
    [(seconds, micros)] = yield Batch([("TIME",)], resend=True)
    mark = b"f%d.%d%06d" % (strand.writer, int(seconds), int(micros))
    fields = (strand.label, MetaField.HOMES, MetaField.LOG, MetaField.NEW + strand.label)
    rename = ("RENAME", strand.key, keys.aside(strand.name, mark))
    yield Batch([rename, ("HDEL", keys.meta(strand.name), *fields)], atomic=True)


async def set_aside(home: Endpoint) -> AsyncIterator[tuple[bytes, bytes]]:
    """What was set aside: the name of the log, and the mark."""
    async for found in all_keys(home, keys.ASIDE):
        for key in found:
            if parts := keys.parse_aside(key):
                yield parts


def home_of(name: bytes, writer: int) -> Plan[int]:
    """The region that a log is written in. If no other region knows it, it is a new log of this one."""
    registry = Registry.parse(name, (yield from send_one(registry_of(name), resend=True)))
    if registry.home is None:
        yield from send_one(ensure_command(Strand(name, keys.LOG, writer), registry.bell))
        return writer
    return registry.home.writer


async def append_aside(name: bytes, mark: bytes, region: PlanRunner, home: PlanRunner) -> int:
    """Append at the home what was set aside in a region, each entry once. Returns how many entries."""
    key, done = keys.aside(name, mark), 0
    while entries := await region.run(log_upkeep.read_page(key, 0)):
        done += await home.run(log_upkeep.append_once(name, mark, entries))
        natives = [offset_id(offset) for offset, _, _ in entries]
        await region.run(send_one(("XDEL", key, *natives)))
    await region.run(send_one(("UNLINK", key)))
    return done
