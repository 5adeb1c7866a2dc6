"""Shows a query's position as a consumer group, so that tools that monitor groups show its lag.

Spark's checkpoint is authoritative: the group is written after each batch and never read. It delivers
nothing, so it has no pending entries.
"""

from collections.abc import Sequence
from typing import Final

from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.net.bulk import Server
from braidstream.protocol.identify import read_any_region
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View
from braidstream.spark.source.offsets import Offset
from braidstream.spark.source.survey import Surveyor

STRANDS: Final = 500  # in a round trip


def show(surveyor: Surveyor, group: bytes, offset: Offset) -> None:
    """Move the group to an offset, on every strand; create it if it is missing."""

    def work(server: Server) -> None:
        for strands in server.by_node(offset.frontier, lambda strand: strand.key):
            for at in range(0, len(strands), STRANDS):
                plan = _move(strands[at : at + STRANDS], group, offset, surveyor.region)
                server.run(plan, strands[0].key)

    surveyor.try_servers(work)


def _move(strands: Sequence[Strand], group: bytes, offset: Offset, region: int | None) -> Plan[None]:
    replies = yield Batch([_setid(strand, group, offset, region) for strand in strands], attempt=True)
    without = [
        strand
        for strand, reply in zip(strands, replies, strict=True)
        if isinstance(reply, ReplyError) and reply.code == "NOGROUP"
    ]
    for first in {strand.name: strand for strand in without}.values():
        yield from _create(first, group)
    if without:
        yield Batch([_setid(strand, group, offset, region) for strand in without], attempt=True)


def _setid(strand: Strand, group: bytes, offset: Offset, region: int | None) -> tuple[bytes | str | int, ...]:
    count = offset.count(strand, region)
    read: tuple[str | int, ...] = () if count is None else ("ENTRIESREAD", count)
    return ("XGROUP", "SETID", strand.key, group, ids.text(offset.frontier[strand]), *read)


def _create(strand: Strand, group: bytes) -> Plan[None]:
    """Create the group on the stream of a strand."""
    if strand.is_plain:
        yield Batch([("XGROUP", "CREATE", strand.name, group, "0")], attempt=True)
        return
    region: Region = yield from read_any_region()
    command = [b"XGROUP", b"CREATE", strand.name, group, b"0"]
    try:
        yield from TABLE[b"XGROUP"].plan(View(region), command)
    except ReplyError as error:
        if error.code not in ("BUSYGROUP", "ERR"):
            raise
