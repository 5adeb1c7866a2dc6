"""Finds entries that a region wrote and lost, and restores them from a peer.

An engine may return without entries that it acknowledged: a promoted replica that lagged, an old snapshot, an
empty server, keys deleted by hand. A region generates IDs in order and a peer's copy is a prefix. So when a
link first reads a stream, it checks one thing: do we still have the peer's last entry of our strand?

    peer    1 2 3 4 5 6 |           6 is the peer's last entry of our strand
    home    1 2 3 . . . 7 8 |       we lack it, and no record says that we removed it: 4 5 6 were lost

If no record explains the absence (a trim, a cut, a journal), the link restores the entries before it sends
anything: absence alone never counts as a deletion. It checks the last entry of our journal in the same way;
if that was lost, it repeats the deletions of the peers.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from braidstream.commands.drop import AT_ONCE as DROPPED_AT_ONCE
from braidstream.commands.drop import drop_command
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.journal import deletions, messages, redo_command
from braidstream.model.meta import Registry, acked
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.protocol.retries import TRIES
from braidstream.protocol.stream_view import View
from braidstream.replication import compare, ship
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.loss import Loss
from braidstream.replication.state import Extent, State, passed_on_field, read_journal, read_state

PAGE: Final = 500
MESSAGES_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class Pair:
    """A region, and the peer that may have what it lost. writer: the peer's."""

    home: PlanRunner
    peer: PlanRunner
    region: Region
    writer: int

    async def find_loss(self, ours: State, theirs: State) -> Loss:
        """The loss; nearly always none, found by comparing two states, or with one more round trip."""
        suspects = {
            strand: copy.tail
            for strand, copy in theirs.strands.items()
            if strand.writer == self.region.writer and copy.tail and _tail(ours, strand) != copy.tail
        }
        journal = self._journal_suspect(ours, theirs)
        wanted = [(strand.key, tail) for strand, tail in suspects.items()]
        if journal:
            wanted.append(journal)
        behind = self._is_behind(ours, theirs)
        if not wanted and not behind:
            return Loss()
        there = await self.home.run(compare.are_there(wanted))
        missing = [strand for strand, here in zip(suspects, there, strict=False) if not here]
        if all(there) and not behind:
            return Loss()
        everyone = self._everyone
        theirs = await self.peer.run(read_state(ours.name, theirs.registry.strands, everyone))
        # The peer's journal may have grown. Check its new tail before our state is read, so a trim in between
        # is seen as a trim.
        journal = self._journal_suspect(ours, theirs)
        lacks_journal = journal is not None and not all(await self.home.run(compare.are_there([journal])))
        ours = await self.home.run(read_state(ours.name, theirs.registry.strands, everyone))
        found, common = dict[Strand, list[bytes]](), dict[Strand, Id]()
        for strand in missing:
            lost, before = await self._lost_of(strand, ours, theirs)
            if lost:
                found[strand], common[strand] = lost, before
        lost_journal = lacks_journal and self._lost_journal(ours, theirs)
        behind, seen = self._is_behind(ours, theirs), ours.journal_ends(everyone)
        return Loss(found, lost_journal, behind, seen, common, _beginnings(ours, found))

    @property
    def _everyone(self) -> tuple[int, ...]:
        return (*self.region.writers, *self.region.left)

    def _is_behind(self, ours: State, theirs: State) -> bool:
        for strand, copy in theirs.strands.items():
            end = ours.end(strand) if strand.writer == self.region.writer else None
            if end is not None and end < copy.last:
                return True
        return False

    def _journal_suspect(self, ours: State, theirs: State) -> tuple[bytes, Id] | None:
        own, copy = ours.journals.get(self.region.writer), theirs.journals.get(self.region.writer)
        if copy is None or copy.tail is None or (own and own.tail == copy.tail):
            return None
        is_redone = copy.tail <= ours.redone(self.writer)
        return None if is_redone else (keys.journal(ours.name, self.region.writer), copy.tail)

    def _lost_journal(self, ours: State, theirs: State) -> bool:
        own, copy = ours.journals.get(self.region.writer), theirs.journals.get(self.region.writer)
        if copy is None or copy.tail is None:
            return False
        return own is None or own.last < copy.tail or not _was_trimmed(own, copy.tail)

    async def _lost_of(self, strand: Strand, ours: State, theirs: State) -> tuple[list[bytes], Id]:
        """The lost entries, and the last entry before them: one that we have or that a record explains."""
        copy = theirs.strands.get(strand)
        if copy is None or copy.tail is None or _is_over(ours, strand):
            return [], ids.ZERO
        absent, common = await self._absent(strand, ours, copy)
        if not absent:
            return [], common
        # Read the state after the listing, so that it explains trims and deletions before the listing.
        ours = await self.home.run(read_state(ours.name, theirs.registry.strands, self._everyone))
        deleted, certain = await self._deleted(strand, ours, theirs)
        here = ours.strands.get(strand)
        if _is_over(ours, strand) or (not certain and here is not None and here.deleted >= copy.tail):
            return [], ids.ZERO  # or the journals are too short, and we deleted entries up to there
        found = list[bytes]()
        for native in absent:
            if self._is_accounted_for(ours, strand, ids.native(native), copy):
                return found[::-1], ids.native(native)
            if native not in deleted:
                found.append(native)
        return found[::-1], common

    async def _absent(self, strand: Strand, ours: State, copy: Extent) -> tuple[list[bytes], Id]:
        """Entries of the peer that we lack, newest first, back to one that we have or that is explained."""
        absent, end = list[bytes](), copy.tail
        while end is not None and (page := await self.peer.run(compare.list_back(strand, end))):
            low, high = ids.native(page[-1]), ids.native(page[0])
            kept = set(await self.home.run(compare.list_between(strand, low, high)))
            for native in page:
                if native in kept or self._is_accounted_for(ours, strand, ids.native(native), copy):
                    return absent, ids.native(native)
                absent.append(native)
            end = ids.before(low)
        return absent, ids.ZERO

    def _is_accounted_for(self, ours: State, strand: Strand, native: Id, copy: Extent) -> bool:
        """Whether nothing up to an entry was lost. A loss takes the end of a strand: before an entry that we
        deleted, and that the peer has seen, nothing is lost."""
        extent = ours.strands.get(strand)
        had = extent is not None and native <= extent.deleted <= copy.last
        return had or self._is_explained(ours, strand, native)

    def _is_explained(self, ours: State, strand: Strand, native: Id) -> bool:
        """Whether everything up to an entry was deleted or trimmed here.

        A trim leaves no record. So it explains nothing in a time window in which another server process took
        over: that process may have lost the entries.
        """
        cut = ours.meta.get(MetaField.LOST + strand.label)
        if native <= (ids.native(cut) if cut else ours.registry.cuts.get(strand, ids.ZERO)):
            return True
        extent = ours.strands.get(strand)
        if extent is None or native < ours.is_new_after(strand) or ours.is_lost(strand):
            return False
        doubts = self.region.doubts
        if not strand.has_generated_ids and doubts:  # its IDs do not show when they were written
            return False
        if any(first <= native[0] <= last for first, last in doubts):
            return False
        return _was_trimmed(extent, native) and native <= extent.last

    async def _deleted(self, strand: Strand, ours: State, theirs: State) -> tuple[set[bytes], bool]:
        """Deletions in our journals that the peer has not applied; and whether the journals have all of
        them."""
        found, certain = set[bytes](), True
        for writer in ours.journals:
            at = theirs.journal_ends([writer])[writer]
            certain = certain and not theirs.is_beyond(ours, writer)
            while True:
                page, _ = await self.home.run(read_journal(ours.name, writer, at, PAGE))
                for _, words in page:
                    registration, natives = deletions(words)
                    if registration == strand.registration:
                        found.update(natives)
                if len(page) < PAGE:
                    break
                at = ids.native(page[-1][0])
        return found, certain

    # Restoring

    async def put_back(self, strand: Strand, loss: Loss, theirs: State) -> int:
        """Restore the entries as the peer has them now. Entries that were deleted meanwhile, there or here,
        stay deleted.
        """
        acked, done, natives = _acknowledged(theirs, strand), 0, loss.entries[strand]
        for first in range(0, len(natives), PAGE):
            part = natives[first : first + PAGE]
            page = await self.peer.run(_between(strand, part[0], part[-1]))
            wanted = set(part)
            entries = [entry for entry in page if entry[0] in wanted and len(entry[1]) <= ship.WIDEST]
            for batch, _ in ship.batches(entries, ship.sizes_of(entries)):
                done += await self._mend(strand, batch, acked, loss)
        return done

    async def pass_on(self, ours: State, there: Region) -> int | None:
        """Send what came back to us to a peer that had gone on without it. None: deletions come first.

        Until the peer has it all, its copy of our strand is no prefix (compare.py).
        """
        everyone = self._everyone
        theirs = await self.peer.run(read_state(ours.name, ours.registry.strands, everyone))
        ours = await self.home.run(read_state(ours.name, ours.registry.strands, everyone))
        lacking = dict[Strand, list[bytes]]()
        for strand in ours.strands:
            copy, mended = theirs.strands.get(strand), ours.mended(strand)
            if mended and copy and copy.first and strand.writer == self.region.writer:
                first, last = mended[0], min(mended[1], copy.last)
                has = set(await self.peer.run(compare.list_between(strand, first, last)))
                new = theirs.is_new_after(strand)
                lacking[strand] = [
                    native
                    for native in await self.home.run(compare.list_between(strand, first, last))
                    if native not in has and not new <= ids.native(native) < copy.first
                ]
        if not any(lacking.values()):
            await self._note_passed_on(ours)
            return 0
        ended = ours.journal_ends(everyone)
        if any(copy.last > ended[writer] for writer, copy in theirs.journals.items()):
            return None
        back = Pair(self.peer, self.home, there, self.region.writer)
        entries = {strand: natives for strand, natives in lacking.items() if natives}
        loss = Loss(entries, seen=theirs.journal_ends(everyone), began=_beginnings(theirs, entries))
        done = sum([await back.put_back(strand, loss, ours) for strand in entries])
        await self._note_passed_on(ours)
        return done

    async def _note_passed_on(self, ours: State) -> None:
        """Record what the peer has received. If more came back meanwhile, the record does not match it."""
        for strand in ours.strands:
            if strand.writer == self.region.writer and ours.withheld(strand, self.writer):
                mended = ours.meta[MetaField.MENDED + strand.label]
                note = ("HSET", keys.meta(ours.name), passed_on_field(strand, self.writer), mended)
                with contextlib.suppress(ReplyError):  # it takes no writes now: the next link notes it
                    await self.home.run(send_one(note))

    async def _mend(self, strand: Strand, batch: ship.Page, acked: dict[bytes, bytes], loss: Loss) -> int:
        for left in reversed(range(TRIES)):
            try:
                own = strand.writer == self.region.writer
                return await self.home.run(_mend(strand, batch, acked, loss, own=own))
            except ReplyError as error:
                if error.code != "BSSTALE" or not left:
                    raise
        raise AssertionError  # the loop returns or raises

    async def delete_again(self, loss: Loss, theirs: State) -> int:
        """Delete entries that we have again and the peer has deleted. A copy is a prefix, so the peer had
        them.

        Of our own strand only entries older than the loss: newer ones never reached the peer. Of the other
        strands only the peer's own: of a third region's, the peer may lack what that region lost.
        """
        gone = 0
        for strand, copy in theirs.strands.items():
            upto: Id | None = max(copy.deleted, ids.before(copy.first or ids.ZERO) or ids.ZERO)
            if strand in loss.entries:
                upto = loss.common[strand]
            elif strand.writer == self.region.writer:
                upto = copy.tail
            elif strand.writer in self.region.writers and strand.writer != self.writer:
                continue
            if upto is not None and not theirs.is_lost(strand):
                since = theirs.is_new_after(strand)
                gone += await self._delete_absent(strand, (since, upto), copy.last)
        return gone

    async def _delete_absent(self, strand: Strand, where: tuple[Id, Id], last: Id) -> int:
        """where: the range in which the peer had all entries. last: how far its copy reaches."""
        gone, (at, upto) = 0, where
        while page := await self.home.run(compare.list_ids(strand, at, upto)):
            end = ids.native(page[-1])
            # Read after the page, so that it shows what another link has restored meanwhile.
            mended = (await self.home.run(read_state(strand.name, [strand], []))).mended(strand)
            kept = await compare.list_kept(self.peer, strand, (at, end), last)
            absent = [
                native for native in page if native not in kept and not compare.is_within(native, mended)
            ]
            for first in range(0, len(absent), DROPPED_AT_ONCE):
                part = absent[first : first + DROPPED_AT_ONCE]
                drop = drop_command(View(self.region), strand, part, (b"KEEPREF", b""))
                replies = await self.home.run(send_one(drop))
                gone += replies.count(1)
            following = ids.after(end)
            if len(page) < compare.AT_ONCE or following is None:
                break
            at = following
        return gone

    async def redo_journal(self, ours: State, theirs: State) -> None:
        """Redo what the peer has of our journal and we lost, and all messages that the peer remembers."""
        writer, name, strands = self.region.writer, ours.name, ours.registry.strands
        upto, at = theirs.journal_ends([writer])[writer], ids.ZERO
        while True:
            page, _ = await self.peer.run(read_journal(name, writer, at, PAGE))
            there = await self.home.run(
                compare.are_there([(keys.journal(name, writer), _id(each)) for each in page])
            )
            for entry in [each for each, here in zip(page, there, strict=True) if not here]:
                await self.home.run(send_one(redo_command(name, writer, strands, entry, upto, write=True)))
            if len(page) < PAGE:
                break
            at = _id(page[-1])
        for words in [words async for words in self._messages(theirs)]:
            await self.home.run(send_one(redo_command(name, writer, strands, (b"0-1", words), upto)))
        if upto > ids.ZERO:
            await self.home.run(send_one(redo_command(name, writer, strands, None, upto, peer=self.writer)))

    async def _messages(self, theirs: State) -> AsyncIterator[list[bytes]]:
        """The messages that the peer remembers, as journal entries."""
        settings, name = theirs.registry.idempotence, theirs.name
        if settings is None:
            return
        about = await self.peer.run(send_one(("HGETALL", keys.about(name))))
        for producer in [each[1:] for each in about[::2] if each.startswith(b"=")]:
            where = keys.known_messages(name, settings.era, producer)
            for pairs in _chunks(await self.peer.run(_known(*where)), 2 * MESSAGES_AT_ONCE):
                yield messages(settings, producer, pairs)


def _tail(state: State, strand: Strand) -> Id | None:
    extent = state.strands.get(strand)
    return extent.tail if extent else None


def _was_trimmed(extent: Extent, native: Id) -> bool:
    return not extent.whole and (extent.first is None or native < extent.first)


def _is_over(ours: State, strand: Strand) -> bool:
    """Whether this life of a strand was ended here."""
    return any(known.label == strand.label and known.life > strand.life for known in ours.registry.cuts)


def _beginnings(state: State, strands: Iterable[Strand]) -> dict[Strand, bytes]:
    return {strand: state.meta.get(MetaField.NEW + strand.label, b"") for strand in strands}


def _acknowledged(state: State, strand: Strand) -> dict[bytes, bytes]:
    """How far each group has acknowledged a strand, by a region's registry."""
    found = {}
    for field_, value in state.meta.items():
        if field_.startswith(MetaField.GROUP_ACKED):
            position = acked(value).get(strand.registration)
            if position:
                found[field_[len(MetaField.GROUP_ACKED) :]] = position
    return found


def _id(entry: tuple[bytes, list[bytes]]) -> Id:
    return ids.native(entry[0])


def _chunks(words: list[bytes], size: int) -> Iterator[list[bytes]]:
    for first in range(0, len(words), size):
        yield words[first : first + size]


def _between(strand: Strand, first: bytes, last: bytes) -> Plan[ship.Page]:
    [page] = yield Batch([("XRANGE", strand.key, first, last)], resend=True)
    return list(page)


def _mend(strand: Strand, batch: ship.Page, acked: dict[bytes, bytes], loss: Loss, *, own: bool) -> Plan[int]:
    name = strand.name
    [reply] = yield Batch([registry_of(name)], resend=True)
    bell = Registry.parse(name, reply).bell
    journals = [keys.journal(name, writer) for writer in loss.seen]
    where = (keys.meta(name), strand.key, *journals, *((keys.bell(name, bell),) if bell else ()))
    common = ids.text(loss.common.get(strand, ids.native(batch[-1][0])))
    ends = map(ids.text, loss.seen.values())
    positions = [word for pair in acked.items() for word in pair]
    words = list[bytes | int]()
    for native, fields in batch:
        words += (native, len(fields), *fields)
    call = ("FCALL", "bs_strand_mend", len(where), *where, strand.label, strand.life, bell)
    place = (common, 1 if own else 0, loss.began.get(strand, b""))
    [done] = yield Batch([(*call, *place, len(loss.seen), *ends, len(acked), *positions, *words)])
    return int(done)


def _known(map_: bytes, queue: bytes) -> Plan[list[bytes]]:
    """Messages of a producer in the order of arrival: iid, value, iid, value, ..."""
    [iids] = yield Batch([("LRANGE", queue, 0, -1)], resend=True)
    if not iids:
        return []
    [values] = yield Batch([("HMGET", map_, *iids)], resend=True)
    return [word for pair in zip(iids, values, strict=True) if pair[1] is not None for word in pair]
