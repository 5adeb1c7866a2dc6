"""Finds entries that one of two regions lacks although they were not removed, and restores them.

An engine may return without any part of its data: the oldest entries of a copy, some in the middle, whole
batches. The last ID of a strand shows only what is missing at its end (search.py). So a link also compares
how many entries both copies have, and lists the IDs of both if the numbers differ:

    here     1 2 . . 5 6 7 8 |       6 entries here, 8 there, and the same last ID: list both
    there    1 2 3 4 5 6 7 8 |       3 and 4 are missing here

What a region lacks was removed if a record says so: a deleted range or a trim in the registry (lua/trim.lua),
or a journal entry that the other region has not applied yet. Without a record it was lost, and the other
region gives it back. Absence alone never deletes anything.

It is done when a link first handles a stream that another server process serves now, and in every sweep for
streams that differ (detect/sweep.py). The owner of a strand and each of its peers do it; two other regions
do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from braidstream.commands.arguments import shown
from braidstream.commands.removal import drop_all
from braidstream.errors import REDIRECTS, WRITES_REFUSED, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.strand import Strand
from braidstream.observability.events import emit
from braidstream.plan.plan import send_one
from braidstream.plan.view import View
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.heal import compare
from braidstream.replication.heal.heal import Pair
from braidstream.replication.heal.search import Loss, beginnings, journaled_deletions, unapplied_deletions
from braidstream.replication.link.stream_state import (
    TRIMMED,
    Extent,
    State,
    checked_field,
    likely_strands,
    read_state,
)

# Errors after which a restore is tried again: the stream changed, its slot moves, or writes are refused now.
RETRIED: Final = ("BSGAP", "BSSTALE", "BSMOVED", *WRITES_REFUSED, *REDIRECTS, "OOM")


@dataclass(slots=True)
class Filled:
    """How many entries were restored in each region. is_whole: nothing is missing in either."""

    here: int = 0
    there: int = 0
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two regions, with its state of the stream."""

    runner: PlanRunner
    region: Region
    state: State


@dataclass(frozen=True, slots=True)
class Holes:
    """home, here: the own region; peer, there: the other one. process: which serves the own region.

    found: for `braid status`, what is missing, by strand and region, until it is restored.
    """

    home: PlanRunner
    peer: PlanRunner
    here: Region
    there: Region
    process: bytes
    found: dict[tuple[Strand, str], str]

    async def fill(self, name: bytes, *, whole: bool = False, after_loss: bool = False) -> Filled:
        """Restore what is missing in either region.

        whole: list all entries, also if the numbers are equal. after_loss: nothing was acknowledged since the
        loss. Otherwise groups receive the restored entries, and what follows them, again: it is not known
        whether they had received these.
        """
        filled = Filled()
        ours, theirs = await self._read(name)
        for strand in ours.strands:
            if strand.writer == self.here.writer and strand not in theirs.strands:
                await self._note(strand, ours, theirs)
        for strand in self._shared(ours, theirs):
            extent, copy = ours.strands[strand], theirs.strands[strand]
            is_alike = None if whole else await self._is_alike(strand, extent, copy)
            if is_alike:
                self.found.pop((strand, self.here.name), None)
                self.found.pop((strand, self.there.name), None)
                await self._note(strand, ours, theirs)
            elif whole or is_alike is False:
                await self._fill(strand, filled, after_loss)
        if filled.here:
            ours, theirs = await self._read(name)
            for strand in self._shared(ours, theirs):
                if await self._is_alike(strand, ours.strands[strand], theirs.strands[strand]):
                    await self._note(strand, ours, theirs)
        if filled.is_whole and not self._is_checked(ours, self.there.writer):
            field = checked_field(self.there.writer)
            await self.home.run(send_one(("HSET", keys.meta(name), field, self._mark)))
        if filled.here or filled.there:
            emit("stream.refilled", stream=name, peer=self.there.name, here=filled.here, there=filled.there)
        return filled

    def is_known(self, ours: State, theirs: State) -> bool:
        """Whether this process is known to have every entry of its own strands and the peer's; or all that
        can be known of them before other peers are compared."""
        own = [strand for strand in ours.strands if strand.writer == self.here.writer]
        heads = [ours.head(strand) for strand in {*own, *self._shared(ours, theirs)}]
        if any(head is None or head.process != self.process for head in heads):
            return False
        if not any(head.is_open for head in heads if head):
            return True
        return self._is_checked(ours, self.there.writer) and not self._is_checked_by_all(ours)

    @property
    def _mark(self) -> bytes:
        """Of a peer that was compared. Another one when a region leaves: others may have received from it
        what we lack, after they were compared."""
        return b" ".join((self.process, *(b"%d" % writer for writer in self.here.left)))

    def _is_checked(self, ours: State, peer: int) -> bool:
        return ours.meta.get(checked_field(peer)) == self._mark

    def is_compared(self, ours: State) -> bool:
        """Whether the stream was compared with all peers since this process serves it."""
        return self._is_checked(ours, self.there.writer) and self._is_checked_by_all(ours)

    def _is_checked_by_all(self, ours: State) -> bool:
        """Whether all other peers were compared, too."""
        return all(self._is_checked(ours, peer) for peer in self.here.peers if peer != self.there.writer)

    def _shared(self, ours: State, theirs: State) -> list[Strand]:
        writers = (self.here.writer, self.there.writer, *self.here.left)
        return [strand for strand in ours.strands if strand in theirs.strands and strand.writer in writers]

    async def _read(self, name: bytes) -> tuple[State, State]:
        everyone = self.here.everyone
        likely = likely_strands(name, self.here)
        ours = await self.home.run(read_state(name, likely, everyone, mark=TRIMMED))
        theirs = await self.peer.run(read_state(name, ours.registry.strands, everyone, mark=TRIMMED))
        return ours, theirs

    async def _is_alike(self, strand: Strand, ours: Extent, theirs: Extent) -> bool | None:
        """Whether both copies have as many entries, up to the last ID of the shorter one. None: one is far
        behind, and the other has too many entries after that to count them."""
        ahead, behind, runner = ours, theirs, self.home
        if ours.last < theirs.last:
            ahead, behind, runner = theirs, ours, self.peer
        more = 0
        if behind.last < ahead.last and (start := ids.after(behind.last)):
            page, following = await runner.run(compare.list_ids(strand, start, ahead.last))
            if following is not None:
                return None
            more = len(page)
        has_same_start = ahead.first == behind.first or ahead.length == more
        return ahead.length - more == behind.length and has_same_start

    async def _note(
        self,
        strand: Strand,
        ours: State,
        theirs: State,
        trimmed: tuple[bytes, bytes] | tuple[()] = (),
        lost: Sequence[bytes] = (),
    ) -> None:
        """Note that this process serves the strand, and that it lacks nothing but what is between these.

        Of our own strand other peers may have more, until all were compared. With a range: this was trimmed.
        """
        head, extent, copy = ours.head(strand), ours.strands[strand], theirs.strands.get(strand)
        is_last = strand.writer != self.here.writer or self._is_checked_by_all(ours)
        if head is not None and head.process == self.process and not (head.is_open and is_last):
            return
        known, resumed = extent.last, ids.text(ids.after(extent.last) or ids.LAST)
        if lost:
            known, resumed = ids.before(ids.native(lost[0])) or ids.ZERO, ids.text(_after(lost[-1]))
        elif not is_last:
            known = min(extent.last, copy.last if copy else extent.last)
            resumed = b"?" + ids.text(extent.last)
        first = extent.first or ids.after(extent.last) or ids.LAST
        place = (ids.text(first), ids.text(extent.last), extent.removed, ids.text(known), resumed)
        call = ("FCALL", "bs_strand_note", 2, keys.meta(strand.name), strand.key, strand.label, strand.life)
        await self.home.run(send_one((*call, self.process, *place, *trimmed)))

    async def _fill(self, strand: Strand, filled: Filled, after_loss: bool) -> None:
        only_here, only_there = await self._differences(strand)
        # After the listing: what was removed before it is on record by then.
        ours, theirs = await self._read(strand.name)
        if strand not in self._shared(ours, theirs):
            return
        here, there = Side(self.home, self.here, ours), Side(self.peer, self.there, theirs)
        lost_here = await self._lost(strand, only_there, here, there)
        lost_there = await self._lost(strand, only_here, there, here)
        if lost_here and (first := _trimmed_before(strand, lost_here, ours)):
            await self._note(strand, ours, theirs, (lost_here[0], ids.text(first)))
            lost_here = [native for native in lost_here if ids.native(native) >= first]
        if lost_there and (first := _trimmed_before(strand, lost_there, theirs)):
            lost_there = [native for native in lost_there if ids.native(native) >= first]
        if lost_here == []:
            await self._note(strand, ours, theirs)
        if lost_here:
            done = await self._restore(strand, lost_here, here, there, after_loss=after_loss)
            filled.here += done
            if done < len(lost_here):
                await self._note(strand, ours, theirs, lost=lost_here)
        # After a restart the peer's own link comes first: it knows what groups there had acknowledged.
        head = theirs.head(strand)
        if lost_there and head is not None and head.process == await self.peer.run(compare.serving()):
            filled.there += await self._restore(strand, lost_there, there, here)
        filled.is_whole = filled.is_whole and lost_here == [] and lost_there == []

    async def _differences(self, strand: Strand) -> tuple[list[bytes], list[bytes]]:
        """The IDs that only one of the regions has, here and there, up to the last ID of the shorter copy."""
        only_here, only_there = list[bytes](), list[bytes]()
        lasts = [
            extent.last
            for runner in (self.home, self.peer)
            if (extent := (await runner.run(read_state(strand.name, [strand], []))).strands.get(strand))
        ]
        at: Id | None = ids.ZERO
        while at is not None and len(lasts) == 2:  # both have the strand
            page, following = await self.peer.run(compare.list_ids(strand, at, min(lasts)))
            upto = ids.native(page[-1]) if following is not None else min(lasts)
            own = await self.home.run(compare.list_between(strand, at, upto))
            theirs = set(page)
            only_here += [native for native in own if native not in theirs]
            only_there += [native for native in page if native not in set(own)] if page != own else []
            at = following
        return only_here, only_there

    async def _lost(
        self, strand: Strand, absent: list[bytes], lacking: Side, having: Side
    ) -> list[bytes] | None:
        """Those of the absent entries that no record explains. None if the records have a gap: more was
        deleted than the journals keep (compare.py)."""
        if not absent:
            return []
        deleted, certain = await unapplied_deletions(lacking.runner, strand, lacking.state, having.state)
        if not certain:
            return None
        lost = [
            native
            for native in absent
            if native not in deleted and not lacking.state.is_removed(strand, ids.native(native))
        ]
        return await self._without_deleted(strand, lost, lacking, having) if lost else []

    async def _without_deleted(
        self, strand: Strand, lost: list[bytes], lacking: Side, having: Side
    ) -> list[bytes]:
        """Without those that an older entry of a journal deletes. The other region takes it for applied,
        because the journal's owner has lost it and went on: they are deleted there now."""
        known = await journaled_deletions(lacking.runner, strand, lacking.state)
        again = [native for native in lost if native in known]
        await having.runner.run(drop_all(View(having.region), strand, again))
        return [native for native in lost if native not in known]

    async def _restore(
        self, strand: Strand, natives: list[bytes], lacking: Side, having: Side, *, after_loss: bool = False
    ) -> int:
        where, region = (strand, lacking.region.name), lacking.region.name
        text = f"{region} lacks {len(natives):,} entries of stream {shown(strand.name)}"
        self.found[where] = text
        seen = lacking.state.journal_ends(self.here.everyone)
        loss = Loss({strand: natives}, seen=seen, began=beginnings(lacking.state, [strand]))
        pair = Pair(lacking.runner, having.runner, lacking.region, having.region.writer)
        try:
            done = await pair.put_back(strand, loss, having.state if after_loss else None)
            self.found.pop(where, None)  # another task may have restored it
            return done
        except ReplyError as error:
            if error.code in RETRIED:
                raise
            self.found[where] = f"{text}, and they could not be restored: {error}"
            emit("stream.hole", stream=strand.name, region=region, entries=len(natives), why=error)
            return 0


def _after(native: bytes) -> Id:
    return ids.after(ids.native(native)) or ids.LAST


def _trimmed_before(strand: Strand, lost: list[bytes], state: State) -> Id | None:
    """The first entry of a strand, if all that is missing before it was trimmed: since the strand was last
    known to lack nothing, the engine has removed as many entries by commands, and XDEL none of them.

    For a process that was restarted before a link had read the trim.
    """
    head, extent = state.head(strand), state.strands[strand]
    first = extent.first or ids.after(extent.last)
    if head is None or first is None or extent.deleted >= head.first:
        return None
    is_trimmed = any(start < first and end > head.first for start, end in state.trims(strand))
    # If a peer has trimmed or deleted there too, some of what was removed is not among the missing.
    if is_trimmed or state.is_removed(strand, head.first):
        return None
    before = [native for native in lost if ids.native(native) < first]
    oldest = ids.native(before[0]) if before else first
    is_trim = bool(before) and oldest >= head.first and len(before) <= extent.removed - head.removed
    return first if is_trim else None
