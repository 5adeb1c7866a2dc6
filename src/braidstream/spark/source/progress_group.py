"""Shows a query's position as a consumer group, so that tools that monitor groups show its lag.

Spark's checkpoint is authoritative: the group is written after each batch and never read. It delivers
nothing, so it has no pending entries.
"""

from collections.abc import Iterable

from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.protocol.identify import read_region
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View
from braidstream.spark.source.offsets import Offset
from braidstream.spark.source.survey import Surveyor


def show(surveyor: Surveyor, group: bytes, offset: Offset) -> None:
    """Move the group to an offset, on every strand; create it if it is missing."""
    by_name = dict[bytes, list[Strand]]()
    for strand in offset.frontier:
        by_name.setdefault(strand.name, []).append(strand)
    for name, strands in by_name.items():
        key = strands[0].key
        surveyor.try_servers(
            lambda server, name=name, strands=strands, key=key: server.run(  # type: ignore[misc]
                _move(name, strands, group, offset, surveyor.region), key
            )
        )


def _move(
    name: bytes, strands: Iterable[Strand], group: bytes, offset: Offset, region: int | None
) -> Plan[None]:
    listed = list(strands)
    replies = yield Batch([_setid(strand, group, offset, region) for strand in listed], attempt=True)
    if not any(isinstance(reply, ReplyError) and reply.code == "NOGROUP" for reply in replies):
        return
    yield from _create(name, listed, group)
    yield Batch([_setid(strand, group, offset, region) for strand in listed], attempt=True)


def _setid(strand: Strand, group: bytes, offset: Offset, region: int | None) -> tuple[bytes | str | int, ...]:
    count = offset.count(strand, region)
    read: tuple[str | int, ...] = () if count is None else ("ENTRIESREAD", count)
    return ("XGROUP", "SETID", strand.key, group, ids.text(offset.frontier[strand]), *read)


def _create(name: bytes, strands: list[Strand], group: bytes) -> Plan[None]:
    if strands[0].is_plain:
        yield Batch([("XGROUP", "CREATE", name, group, "0")], attempt=True)
        return
    region: Region = yield from read_region()
    command = [b"XGROUP", b"CREATE", name, group, b"0"]
    try:
        yield from TABLE[b"XGROUP"].plan(View(region), command)
    except ReplyError as error:
        if error.code not in ("BUSYGROUP", "ERR"):
            raise
