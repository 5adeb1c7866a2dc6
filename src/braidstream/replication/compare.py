"""Compares two copies of a strand entry by entry, and deletes at the target what the source has deleted.

The slow and exact way to replicate deletions, for a region that joins or was away for longer than a journal
covers. It needs no tombstones, because a copy is a prefix: an ID at or below the source's last one that the
source does not have was deleted there. One exception: an engine may have lost entries of its own strand (it
was restored from an old snapshot and written to before its peers returned the entries). So missing entries
above the highest ID that it ever deleted are kept.
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
    """All native IDs from start to end, page by page."""
    found, at = list[bytes](), start
    while True:
        page = yield from list_ids(strand, at, end)
        found += page
        following = ids.after(ids.native(page[-1])) if len(page) == AT_ONCE else None
        if following is None:
            return found
        at = following


def deleted_upto(strand: Strand) -> Plan[Id]:
    """The highest ID of a strand that this engine deleted."""
    [info] = yield Batch([strand.xinfo()], resend=True, attempt=True)
    return ids.ZERO if isinstance(info, ReplyError) else ids.native(facts(info)[b"max-deleted-entry-id"])


def drop(strand: Strand, natives: Sequence[bytes]) -> Plan[int]:
    """Delete what a peer has deleted. No journal entry: the other regions have the peer's, or compare too."""
    [gone] = yield Batch([("XDEL", strand.key, *natives)])
    return int(gone)


async def delete_missing(source: PlanRunner, target: PlanRunner, ours: State, own: int) -> int | None:
    """Delete at the target what the source has deleted, entry by entry. own: the source's writer.

    None if a copy at the target ends before ours: entries that have not arrived cannot be deleted. All
    strands are checked, because another link may have created one meanwhile.
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
