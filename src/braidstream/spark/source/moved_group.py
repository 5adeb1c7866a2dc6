"""Moves a consumer group to a position: of a query (option `group`) or of an archive (`--group lake`).

By native XGROUP SETID on each strand. The group delivers nothing, so it has no pending entries. Spark's
checkpoint, or the lake, is authoritative: the group is written after each batch and never read. If the job is
killed between the two steps, the group is behind, never ahead.

    of a query      tools that monitor groups show its lag
    of an archive   XTRIM ACKED, XDELEX ACKED and retention with `acked`, in every region, keep what is not in
                    the lake: links take the moves for acknowledgements, and replicate them
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from braidstream.clusters.bulk import Server
from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.frontier import Frontier
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand
from braidstream.plan.lookup import read_any_region
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from braidstream.spark.source.survey import Surveyor

_STRANDS: Final = 500  # in a round trip


def move_group(
    surveyor: Surveyor,
    group: bytes,
    ends: Frontier | Mapping[Strand, Id],
    *,
    read: Callable[[Strand], int | None] = lambda strand: None,
    is_needed: bool = False,
) -> None:
    """Move the group on every strand; create it where it is missing.

    read: how many entries of a strand it has read. is_needed: an error if a stream refuses the group.
    """

    def work(server: Server) -> None:
        for strands in server.by_node(ends, lambda strand: strand.key):
            for at in range(0, len(strands), _STRANDS):
                some = strands[at : at + _STRANDS]
                moves = {strand: _setid(strand, group, ends[strand], read(strand)) for strand in some}
                server.run(_move(group, moves, is_needed=is_needed), strands[0].key)

    surveyor.try_servers(work)


def _setid(strand: Strand, group: bytes, end: Id, count: int | None) -> Command:
    read: tuple[str | int, ...] = () if count is None else ("ENTRIESREAD", count)
    return ("XGROUP", "SETID", strand.key, group, ids.text(end), *read)


def _move(group: bytes, moves: Mapping[Strand, Command], *, is_needed: bool) -> Plan[None]:
    replies = yield Batch([*moves.values()], attempt=True)
    without = [
        strand
        for strand, reply in zip(moves, replies, strict=True)
        if isinstance(reply, ReplyError) and reply.code == "NOGROUP"
    ]
    refused: Sequence[str] = ("BUSYGROUP",) if is_needed else ("BUSYGROUP", "ERR")
    for first in {strand.name: strand for strand in without}.values():
        yield from _create(first, group, refused)
    if without:
        yield Batch([moves[strand] for strand in without], attempt=True)


def _create(strand: Strand, group: bytes, refused: Sequence[str]) -> Plan[None]:
    """Create the group on the stream of a strand. refused: codes of errors that change nothing."""
    if strand.is_plain:
        yield Batch([("XGROUP", "CREATE", strand.name, group, "0")], attempt=True)
        return
    region = yield from read_any_region()
    command = [b"XGROUP", b"CREATE", strand.name, group, b"0"]
    try:
        yield from TABLE[b"XGROUP"].plan(View(region), command)
    except ReplyError as error:
        if error.code not in refused:
            raise
