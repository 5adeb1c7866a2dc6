"""Two copies of a strand, compared entry by entry: the target deletes what the source had and no longer has.

The slow, exact way to find deletions: for a region that joins, or was away for longer than a journal
remembers. It needs no tombstones, because a copy is a prefix: the source has deleted an ID at or below its
last one that it does not have. Where that may be wrong, the target keeps its entry:

    above everything that the source ever deleted in the strand     it never had the entry, or lost it
    in a strand of the target, in a range that came back after      the source went on without these entries;
    a loss and that the source has not received yet                 the target's link is about to send them
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.registry import trimmed_upto
from braidstream.model.strand import Strand, facts
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.link.stream_state import Extent, State, read_state

AT_ONCE: Final = 1_000
# How much of the entries an engine reads at once to list their IDs.
LISTED_BYTES: Final = 16 * 1024 * 1024


def list_ids(strand: Strand, start: Id, end: Id) -> Plan[tuple[list[bytes], Id | None]]:
    """Native IDs, at most AT_ONCE, and where the next page starts; None after the last."""
    listing = ("FCALL_RO", "bs_entry_list", 1, strand.key, ids.text(start), ids.text(end), b"", LISTED_BYTES)
    [reply] = yield Batch([listing], resend=True)
    page = [native for native in reply if native]
    return page, ids.after(ids.native(page[-1])) if len(page) < len(reply) else None


def list_back(strand: Strand, end: Id) -> Plan[list[bytes]]:
    """The native IDs of the last entries up to `end`, at most AT_ONCE, the last of them first."""
    listing = ("FCALL_RO", "bs_entry_list", 1, strand.key, "-", ids.text(end), "REV", LISTED_BYTES)
    [reply] = yield Batch([listing], resend=True)
    return [native for native in reply if native]


def list_between(strand: Strand, start: Id, end: Id) -> Plan[list[bytes]]:
    """All native IDs from start to end, page by page."""
    found, at = list[bytes](), start
    while True:
        page, following = yield from list_ids(strand, at, end)
        found += page
        if following is None:
            return found
        at = following


async def list_kept(runner: PlanRunner, strand: Strand, where: tuple[Id, Id], last: Id) -> set[bytes]:
    """The native IDs in a range of a copy that reached up to `last` a moment ago.

    BSMOVED if it no longer does: the server was flushed meanwhile, and what it lacks was not deleted.
    """
    found = await runner.run(list_between(strand, *where))
    [info] = await runner.run(_info(strand))
    if isinstance(info, ReplyError) or ids.native(facts(info)[b"last-generated-id"]) < last:
        raise ReplyError(f"BSMOVED a server lost its copy of {strand.key!r} meanwhile")
    return set(found)


def _info(strand: Strand) -> Plan[list[Any]]:
    return (yield Batch([strand.xinfo()], resend=True, attempt=True))


def are_there(wanted: list[tuple[bytes, Id]]) -> Plan[list[bool]]:
    """Which entries exist, by key and ID."""
    if not wanted:
        return []
    commands = [("XRANGE", key, ids.text(native), ids.text(native)) for key, native in wanted]
    replies = yield Batch(commands, resend=True)
    return [bool(reply) for reply in replies]


async def continues(source: PlanRunner, strand: Strand, extent: Extent, copy: Extent | None) -> bool:
    """Whether the source's copy of a third region's strand has, or had, the last entry of the target's copy.

    If not, that region lost the entry and went on without it. The target must keep it as its last one, so
    that the region's link finds the loss (search.py).
    """
    tail = copy.tail if copy else None
    if tail is None or tail <= extent.deleted or extent.first is None or tail < extent.first:
        return True
    return all(await source.run(are_there([(strand.key, tail)])))


def drop(strand: Strand, natives: Sequence[bytes]) -> Plan[int]:
    """Delete what a peer has deleted. No journal entry: the other regions have the peer's, or compare too."""
    [gone] = yield Batch([("XDEL", strand.key, *natives)])
    return int(gone)


def trim_between(strand: Strand, start: Id, end: Id) -> Plan[int]:
    """Trim from start to end, page by page, and keep what is before. Counts entries."""
    gone = 0
    at: Id | None = start
    while at is not None:
        page, at = yield from list_ids(strand, at, end)
        if page:
            yield from _note_trimmed(strand, ids.native(page[-1]))
            gone += yield from drop(strand, page)
    return gone


def _note_trimmed(strand: Strand, upto: Id) -> Plan[None]:
    """Before the XDEL, which looks like a user's: an archive must not delete these entries in its lake.

    If memory is full, the trim matters more than the note.
    """
    where, field = keys.meta(strand.name), MetaField.TRIMMED + strand.label
    [noted] = yield Batch([("HGET", where, field)], resend=True)
    if trimmed_upto(noted or b"", strand.life) < upto:
        note = ("HSET", where, field, b"%d %s" % (strand.life, ids.text(upto)))
        [reply] = yield Batch([note], resend=True, attempt=True)
        if isinstance(reply, ReplyError) and reply.code != "OOM":
            raise reply


def is_within(native: bytes, limits: tuple[Id, Id] | None) -> bool:
    return limits is not None and limits[0] <= ids.native(native) <= limits[1]


def serving() -> Plan[bytes]:
    """Which server process serves a region; empty if the user may not see that."""
    process: bytes = yield from send_one(("FCALL_RO", "bs_process", 0))
    return process


async def delete_missing(
    source: PlanRunner, target: PlanRunner, ours: State, *, own: int, there: int
) -> int | None:
    """Delete at the target what the source had and no longer has. own, there: their writers.

    None: a copy at the target does not reach as far as ours yet, and what has not come cannot be deleted.
    All strands are read again: one that did not exist a moment ago may have come over another link.
    """
    theirs = await target.run(read_state(ours.name, ours.registry.strands, []))
    for strand, extent in ours.strands.items():
        end = theirs.end(strand)
        if end is not None and end < extent.last:
            return None
    gone = 0
    process = await source.run(serving())
    for strand, extent in ours.strands.items():
        head = ours.head(strand)
        # Another server process may have lost entries. holes.py compares first.
        if (strand.writer == own and extent.whole) or head is None or head.process != process:
            continue
        async for found in _missing(strand, source, target, ours):
            missing = [native for native in found if head.had(ids.native(native))]
            # Read after the listing: what came back meanwhile, over another link, is known by then.
            state = await target.run(read_state(ours.name, [strand], []))
            withheld = state.withheld(strand, own) if strand.writer == there else None
            doomed = [native for native in missing if not is_within(native, withheld)]
            if doomed:
                gone += await target.run(drop(strand, doomed))
    return gone


async def _missing(
    strand: Strand, source: PlanRunner, target: PlanRunner, ours: State
) -> AsyncIterator[list[bytes]]:
    """Pages of the target's entries that the source has deleted."""
    extent, since = ours.strands[strand], ours.had_since(strand)
    gone_upto = extent.last
    if extent.first and not strand.has_chosen_ids:
        gone_upto = max(extent.first, extent.deleted)
    at: Id | None = ids.ZERO if since <= gone_upto else None
    while at is not None:
        page, following = await target.run(list_ids(strand, at, extent.last))
        if not page:
            break
        end = ids.native(page[-1])
        kept = await list_kept(source, strand, (at, end), extent.last)
        missing = [
            native for native in page if native not in kept and since <= ids.native(native) <= gone_upto
        ]
        if missing:
            yield missing
        at = following
