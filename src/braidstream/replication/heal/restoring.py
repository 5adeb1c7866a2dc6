"""Restores what a region lost, before a link sends anything about the stream.

search.py finds it, and heal.py puts it back. What cannot be restored is marked as lost: the peers keep it.
"""

import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.strand import Command, Strand
from braidstream.observability.events import emit
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.heal.compare import list_between
from braidstream.replication.heal.heal import Pair
from braidstream.replication.heal.holes import RETRIED, Holes
from braidstream.replication.heal.search import Loss
from braidstream.replication.link.flow import LinkCache
from braidstream.replication.link.stream_state import (
    MET,
    TRIMMED,
    State,
    likely_strands,
    read_state,
    resumed_note,
)

# Errors of the target if our cache is stale, and of the link if the source has changed.
STALE: Final = ("BSGAP", "BSSTALE", "BSMOVED")

# Sends a stream's registry, and the entries at the end of its strands except of these, from the peer to us.
GiveBack = Callable[[bytes, Collection[Strand]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Restorer:
    """home, here: the region that may have lost data; peer, there: one that may have it.

    lossy: streams with a loss, until the peer has received everything.
    """

    home: PlanRunner
    peer: PlanRunner
    here: Region
    there: Region
    lossy: set[bytes]
    give_back: GiveBack
    holes: Holes

    @property
    def _pair(self) -> Pair:
        return Pair(self.home, self.peer, self.here, self.there.writer)

    async def heal(self, name: bytes, known: LinkCache) -> tuple[int, State | None]:
        """At the first read of a stream, or after it was created again: restore what we lost and the peer
        has. Counts entries, and returns the peer's state if nothing had to be restored.

        Acknowledgements are noted after that: before, they would count lost entries as acknowledged.
        """
        own, done = self.here.writer, 0
        ours = await self._read_ours(name, mark=MET)
        everyone = self.here.everyone
        theirs = await self.peer.run(read_state(name, ours.registry.strands, everyone, mark=TRIMMED))
        if loss := await self._pair.find_loss(ours, theirs):
            self.lossy.add(name)
            restored = await self._restore(loss, ours, theirs)
            done += (restored or 0) + await self._fill(name)
            ours = await self._read_ours(name)
        elif not self.holes.is_known(ours, theirs):
            filled = await self.holes.fill(name, after_loss=True)
            done += filled.here + filled.there
        await self._note_resumed(ours, theirs)
        known.owes, whole = False, name in self.lossy
        is_sound = not whole and not any(ours.mended(strand) for strand in ours.strands)
        if not is_sound:
            done += await self._pass_on(ours, known, whole=whole)
        known.marks = ours.marks(own)
        return done, theirs if is_sound else None

    async def _pass_on(self, ours: State, known: LinkCache, *, whole: bool) -> int:
        """Counts entries. If the peer cannot take them, the rest of the stream is replicated all the same:
        `m:` here says that they do not count as deleted there. The next link tries again."""
        try:
            passed_on = await self._pair.pass_on(ours, self.there, whole=whole)
        except ReplyError as error:
            if error.code not in ("BSLATER", "NOPERM"):
                raise
            emit("link.refused", peer=self.there.name, stream=ours.name, why=str(error))
            return 0
        known.owes = passed_on is None
        if not known.owes:
            self.lossy.discard(ours.name)
        return passed_on or 0

    async def recover(self, name: bytes, known: LinkCache) -> int:
        """For an engine that lost its data, once it has all registries: restore the rest. Counts entries."""
        done, _ = await self.heal(name, known)
        ours = await self._read_ours(name)
        theirs = await self.peer.run(read_state(name, ours.registry.strands, [self.here.writer]))
        await self._pair.redo_journal(ours, theirs)
        return done + await self._fill(name)

    async def _read_ours(self, name: bytes, *, mark: bytes = b"") -> State:
        """With all journals: else what other regions have deleted would look as if it was trimmed here."""
        likely = likely_strands(name, self.here)
        return await self.home.run(read_state(name, likely, self.here.everyone, mark=mark))

    async def _restore(self, loss: Loss, ours: State, theirs: State) -> int | None:
        """Counts entries. None: it cannot be restored, and is marked."""
        name, done, why, pair = ours.name, 0, "", self._pair
        try:
            # Refused if our clients have appended since: then entries are restored before theirs.
            with contextlib.suppress(ReplyError):
                await self.give_back(name, loss.went_on(ours))
            for strand in loss.entries:
                done += await pair.put_back(strand, loss, theirs)
            with contextlib.suppress(ReplyError):
                await self.give_back(name, ())
            if loss.journal:
                done += await pair.delete_again(loss, theirs)
                await pair.redo_journal(ours, theirs)
        except ReplyError as error:
            # It was deleted, its slot moves, or the engine refuses writes for a while: try again.
            if error.code in RETRIED:
                raise
            ours = await self._read_ours(name)  # another link, or an earlier batch, may have restored some
            lacking = [each for each in loss.entries.items() if await self.home.run(_lacks(*each))]
            why = str(error) if lacking or loss.journal or not loss.entries else ""
            for strand, natives in lacking:
                resumed = await self.home.run(_next(strand, loss.common.get(strand, ids.ZERO)))
                resumed = max(resumed, ids.after(ids.native(natives[-1])) or ids.LAST)
                await self._mark_lost(strand, ours, max(resumed, ours.resumed(strand) or ids.ZERO))
        facts = {"entries": loss.count, "restored": done, "journal": loss.journal}
        emit("region.lost_tail", stream=name, peer=self.there.name, **facts, why=why)
        return None if why else done

    async def _note_resumed(self, ours: State, theirs: State) -> None:
        """Note where strands go on that are marked as lost and have no such note, as after a lost key."""
        for strand, extent in ours.strands.items():
            is_marked = MetaField.LOST + strand.label in ours.meta and ours.resumed(strand) is None
            if is_marked and strand.writer == self.here.writer:
                copy = theirs.strands.get(strand)
                last = max(extent.last, copy.last) if copy else extent.last
                note = _resumed(strand, ours, ids.after(last) or ids.LAST)
                with contextlib.suppress(ReplyError):  # it takes no writes now: the next link notes it
                    await self.home.run(send_one(note))

    async def _mark_lost(self, strand: Strand, ours: State, resumed: Id) -> None:
        """Mark a strand, so that its missing entries before `resumed` do not count as deleted.

        An error if that is refused: the link may send nothing about the stream then.
        """
        try:
            cut = ours.meta.get(MetaField.LOST + strand.label)
            if cut is None:
                cut = ids.text(ours.registry.cuts.get(strand, ids.ZERO))
            await self.home.run(_mark(strand, cut))
            await self.home.run(send_one(_resumed(strand, ours, resumed)))
        except ReplyError as error:
            raise ReplyError(
                f"{error.text} (this region's own server. It lost entries, and the link needs HGET and HSET "
                "to note that)"
            ) from None

    async def _fill(self, name: bytes) -> int:
        """Restore what is missing in the middle of strands, here or there. Lists all entries."""
        filled = await self.holes.fill(name, whole=True, after_loss=True)
        return filled.here + filled.there


def _lacks(strand: Strand, natives: list[bytes]) -> Plan[bool]:
    """Whether some of these entries are missing here."""
    there = yield from list_between(strand, ids.native(natives[0]), ids.native(natives[-1]))
    return not set(natives) <= set(there)


def _resumed(strand: Strand, ours: State, at: Id) -> Command:
    note = resumed_note(ours, strand) + b" " + ids.text(at)
    return ("HSET", keys.meta(strand.name), MetaField.RESUMED + strand.label, note)


def _next(strand: Strand, after: Id) -> Plan[Id]:
    """Our first entry after an ID; the ID itself if there is none."""
    [found] = yield Batch([("XRANGE", strand.key, b"(" + ids.text(after), "+", "COUNT", 1)], resend=True)
    return ids.native(found[0][0]) if found else after


def _mark(strand: Strand, cut: bytes) -> Plan[None]:
    """An earlier mark stays. Not HSETNX: a daemon has no right to it on its own server."""
    where, field = keys.meta(strand.name), MetaField.LOST + strand.label
    [marked] = yield Batch([("HGET", where, field)], resend=True)
    if marked is None:
        yield Batch([("HSET", where, field, cut)])
