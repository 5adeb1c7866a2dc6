"""Two copies of a strand, compared entry by entry: what the source has seen and no longer has, goes.

The slow, exact way to tell deletions: for a region that joins, or was away for longer than a journal
remembers. It needs no tombstones, because a copy is a prefix: an ID at or below the source's last one
that the source does not have was deleted there. Of its own strand an engine can also have lost entries (it
came back from an old snapshot, and was written to before its peers brought them back): what it lacks above
everything that it ever deleted is spared.
"""

from collections.abc import Sequence
from typing import Final

from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.state import State, read_state

AT_ONCE: Final = 1_000


def list_ids(strand: Strand, start: Id, end: Id) -> Plan[list[bytes]]:
    """The native IDs of at most AT_ONCE entries."""
    listing = ("FCALL_RO", "bs_entry_list", 1, strand.key, ids.text(start), ids.text(end))
    [reply] = yield Batch([listing], resend=True)
    return list(reply)


def list_back(strand: Strand, end: Id) -> Plan[list[bytes]]:
    """The native IDs of the last AT_ONCE entries up to `end`, the last of them first."""
    listing = ("FCALL_RO", "bs_entry_list", 1, strand.key, "-", ids.text(end), "REV")
    [reply] = yield Batch([listing], resend=True)
    return list(reply)


def list_between(strand: Strand, start: Id, end: Id) -> Plan[list[bytes]]:
    """All native IDs from start to end, however many."""
    found, at = list[bytes](), start
    while True:
        page = yield from list_ids(strand, at, end)
        found += page
        following = ids.after(ids.native(page[-1])) if len(page) == AT_ONCE else None
        if following is None:
            return found
        at = following


def deleted_upto(strand: Strand) -> Plan[Id]:
    """No entry of a strand above this ID was deleted by the engine that is asked."""
    [info] = yield Batch([strand.xinfo()], resend=True, attempt=True)
    return ids.ZERO if isinstance(info, ReplyError) else ids.native(facts(info)[b"max-deleted-entry-id"])


def drop(strand: Strand, natives: Sequence[bytes]) -> Plan[int]:
    """Delete what a peer has deleted. Its journal has told the others already, or they compare too."""
    [gone] = yield Batch([("XDEL", strand.key, *natives)])
    return int(gone)


async def delete_missing(source: PlanRunner, target: PlanRunner, ours: State, own: int) -> int | None:
    """Entry by entry: what the source had seen and no longer has, goes. own: the source's writer.

    None: a copy at the target does not reach as far as ours yet, and what has not come cannot be deleted.
    Of every strand: one that was not there a moment ago may have come since, over another link.
    """
    theirs = await target.run(read_state(ours.name, ours.registry.strands, []))
    for strand, extent in ours.strands.items():
        end = theirs.end(strand)
        if end is not None and end < extent.last:
            return None
    gone = 0
    for strand, extent in ours.strands.items():
        if not (ours.is_lost(strand) or (strand.writer == own and extent.whole)):
            gone += await _delete_missing_of(strand, source, target, (ours, own))
    return gone


async def _delete_missing_of(
    strand: Strand, source: PlanRunner, target: PlanRunner, seen: tuple[State, int]
) -> int:
    (ours, own), gone = seen, 0
    extent, since = ours.strands[strand], ours.is_new_after(strand)
    gone_upto = extent.last
    if extent.first and not strand.has_chosen_ids and strand.writer == own:
        gone_upto = max(extent.first, await source.run(deleted_upto(strand)))
    at: Id | None = ids.ZERO
    while at is not None:
        page = await target.run(list_ids(strand, at, extent.last))
        if not page:
            break
        end = ids.native(page[-1])
        kept = set(await source.run(list_between(strand, at, end)))
        missing = [
            native for native in page if native not in kept and since <= ids.native(native) <= gone_upto
        ]
        if missing:
            gone += await target.run(drop(strand, missing))
        at = ids.after(end) if len(page) == AT_ONCE else None
    return gone
