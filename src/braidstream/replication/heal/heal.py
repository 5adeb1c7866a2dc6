"""Restores from a peer what a region lost (search.py), at its place."""

import contextlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from braidstream.commands.removal import drop_all
from braidstream.errors import ClusterError, LostError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import ConfigField, MetaField
from braidstream.model.ids import Id
from braidstream.model.journal import JournalEntry, messages, redo_command
from braidstream.model.keys import CONFIG
from braidstream.model.region import Region
from braidstream.model.registry import Registry, acked
from braidstream.model.strand import Strand
from braidstream.plan.lookup import info_facts, read_region, registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import TRIES
from braidstream.plan.view import View
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.heal import compare
from braidstream.replication.heal.search import Loss, Search, begin, beginnings, request
from braidstream.replication.link import batches
from braidstream.replication.link.stream_state import (
    TRIMMED,
    State,
    passed_on_field,
    read_journal,
    read_state,
)

T = TypeVar("T")

PAGE: Final = 500
REDONE_AT_ONCE: Final = 100
MESSAGES_AT_ONCE: Final = 50
# Each call moves all that follows (mend.lua): with small batches, a large rest is moved very often.
MEND_BYTES: Final = 16 * 1024 * 1024


class Pair(Search):
    """Restores what the search finds. The methods work one by one too."""

    async def put_back(self, strand: Strand, loss: Loss, theirs: State | None) -> int:
        """Restore the entries as the peer has them now. Entries that were deleted meanwhile, there or here,
        stay deleted.

        theirs: what groups have acknowledged there is not delivered again. None: all is delivered.
        """
        acked, done = {} if theirs is None else await self._acknowledged(theirs, strand), 0
        left = loss.entries[strand]
        try:
            async for batch in self._batches(strand, left):
                done += await self._mend(strand, batch, acked, loss)
                left = left[bisect_right(left, ids.native(batch[-1][0]), key=ids.native) :]
        except ReplyError as error:
            if error.code != "BSLATER":
                raise
            done += await self._weave(strand, left, acked, loss, why=error)
        return done

    async def _weave(
        self, strand: Strand, natives: list[bytes], acked: dict[bytes, bytes], loss: Loss, *, why: ReplyError
    ) -> int:
        """Restore entries before more than one call may move (search.py). why: the error, if the functions
        are too old for that."""
        try:
            return await _again_if_stale(lambda: self._weave_once(strand, natives, acked, loss))
        except ReplyError as error:
            if "function not found" in error.text.lower():
                raise why from None
            raise

    async def _weave_once(
        self, strand: Strand, natives: list[bytes], acked: dict[bytes, bytes], loss: Loss
    ) -> int:
        weaving = await self.home.run(
            begin(strand, natives, acked, loss, own=strand.writer == self.region.writer)
        )
        async for batch in self._batches(strand, natives):
            rest = batch
            while rest := [entry for entry in rest if entry[0] not in weaving.deleted]:
                rest = rest[await self.home.run(weaving.call(rest)) :]
        while not weaving.is_done:
            await self.home.run(weaving.call([]))
        return weaving.inserted

    async def _acknowledged(self, theirs: State, strand: Strand) -> dict[bytes, bytes]:
        """How far each group has acknowledged a strand, by the peer's registry.

        Only up to entries that the peer has, or may have deleted: a region that had gone on without the lost
        entries acknowledged others.
        """
        found = dict[bytes, bytes]()
        for field_, value in theirs.meta.items():
            if field_.startswith(MetaField.GROUP_ACKED) and (at := acked(value).get(strand.registration)):
                found[field_[len(MetaField.GROUP_ACKED) :]] = at
        there = await self.peer.run(
            compare.are_there([(strand.key, ids.native(at)) for at in found.values()])
        )
        copy = theirs.strands.get(strand)
        deleted = copy.deleted if copy else ids.ZERO
        return {
            group: at
            for (group, at), has in zip(found.items(), there, strict=True)
            if has or ids.native(at) <= deleted
        }

    async def _batches(self, strand: Strand, natives: list[bytes]) -> AsyncIterator[batches.Page]:
        """The peer's entries, in parts for one call each. If the peer is lost, first what was read: the next
        attempt begins after it."""
        batch, total, words = batches.Page(), 0, 0
        at, appetite = 0, batches.Appetite(1)  # the replies to a batch have a limit together
        while part := natives[at : at + min(appetite.count, batches.UNMEASURED)]:
            try:
                page = await self.peer.run(_entries(strand, part))
            except LostError:
                if batch:
                    yield batch
                raise
            at += len(part)
            sizes = batches.sizes_of(page)
            appetite.had(len(page), sum(sizes))
            for entry, size in zip(page, sizes, strict=True):
                if len(entry[1]) > batches.WIDEST:
                    continue
                is_full = total + size > MEND_BYTES or words + len(entry[1]) > batches.BATCH_WORDS
                if batch and (is_full or len(batch) == batches.BATCH_ENTRIES):
                    yield batch
                    batch, total, words = [], 0, 0
                batch.append(entry)
                total, words = total + size, words + len(entry[1])
        if batch:
            yield batch

    async def pass_on(self, ours: State, there: Region, *, whole: bool = False) -> int | None:
        """Send what came back to us to a peer that had gone on without it. None: deletions come first.

        Until the peer has it all, its copy of our strand is not a prefix (compare.py). whole: our strand may
        come from a backup, so the peer may lack any of it: it is compared from the beginning.
        """
        everyone = self.region.everyone
        theirs = await self.peer.run(read_state(ours.name, ours.registry.strands, everyone, mark=TRIMMED))
        ours = await self.home.run(read_state(ours.name, ours.registry.strands, everyone, mark=TRIMMED))
        lacking = dict[Strand, list[bytes]]()
        for strand in ours.strands:
            copy, mended = theirs.strands.get(strand), ours.mended(strand)
            if (whole or mended) and copy and copy.first and strand.writer == self.region.writer:
                limits = (ids.ZERO, copy.last) if whole or mended is None else mended
                first, last = limits[0], min(limits[1], copy.last)
                has = set(await self.peer.run(compare.list_between(strand, first, last)))
                # After the listing: what was trimmed before it is on record by then.
                read = read_state(ours.name, ours.registry.strands, everyone, mark=TRIMMED)
                theirs = await self.peer.run(read)
                if strand not in theirs.strands:
                    continue
                is_trimmed = mended is not None and await self._is_trimmed_after(strand, mended[1], theirs)
                lacking[strand] = [
                    native
                    for native in await self.home.run(compare.list_between(strand, first, last))
                    if native not in has
                    and not ours.is_removed(strand, ids.native(native))
                    and not theirs.is_removed(strand, ids.native(native))
                    and not (is_trimmed and compare.is_within(native, mended))
                ]
        if not any(lacking.values()):
            await self._note_passed_on(ours)
            return 0
        ended = ours.journal_ends(everyone)
        own = self.region.writer
        if any(copy.last > ended[writer] for writer, copy in theirs.journals.items() if writer != own):
            return None
        back = Pair(self.peer, self.home, there, self.region.writer)
        entries = {strand: natives for strand, natives in lacking.items() if natives}
        loss = Loss(entries, seen=theirs.journal_ends(everyone), began=beginnings(theirs, entries))
        # Groups that are past them there have never received them.
        done = sum([await back.put_back(strand, loss, None) for strand in entries])
        await self._note_passed_on(ours)
        return done

    async def _is_trimmed_after(self, strand: Strand, restored: Id, theirs: State) -> bool:
        """Whether the peer has trimmed later entries than those that were restored: then these too, which it
        never had. Not if XDEL may have removed the later ones."""
        copy = theirs.strands[strand]
        after = max(restored, copy.deleted)
        if copy.first is None or copy.first <= after:
            return False
        start = ids.after(after) or copy.first
        later, _ = await self.home.run(compare.list_ids(strand, start, copy.first))
        return bool(later) and theirs.is_removed(strand, ids.native(later[0]))

    async def _note_passed_on(self, ours: State) -> None:
        """Record what the peer has received. If more came back meanwhile, the record does not match it."""
        for strand in ours.strands:
            if strand.writer == self.region.writer and ours.withheld(strand, self.writer):
                mended = ours.meta[MetaField.MENDED + strand.label]
                note = ("HSET", keys.meta(ours.name), passed_on_field(strand, self.writer), mended)
                with contextlib.suppress(ReplyError):  # it takes no writes now: the next link notes it
                    await self.home.run(send_one(note))

    async def _mend(self, strand: Strand, batch: batches.Page, acked: dict[bytes, bytes], loss: Loss) -> int:
        own = strand.writer == self.region.writer
        return await _again_if_stale(lambda: self.home.run(_mend(strand, batch, acked, loss, own=own)))

    async def delete_again(self, loss: Loss, theirs: State) -> int:
        """Delete entries that we have again and the peer has deleted. A copy is a prefix, so the peer had
        them.

        Of our own strand only entries older than the loss: newer ones never reached the peer. Of the other
        strands only the peer's own: of a third region's, the peer may lack what that region lost. And the
        peer may have lost entries of its own strand just now, too.
        """
        gone, doubts = 0, await self.peer.run(_doubts())
        for strand, copy in theirs.strands.items():
            upto = max(copy.deleted, ids.before(copy.first or ids.ZERO) or ids.ZERO)
            if strand in loss.entries:
                upto = min(upto, loss.common[strand])
            elif strand.writer == self.region.writer:
                upto = min(upto, copy.tail or ids.ZERO)
            elif strand.writer in self.region.writers and strand.writer != self.writer:
                continue
            if not theirs.is_lost(strand):
                where = (theirs.is_new_after(strand), upto)
                doubtful = doubts if strand.writer == self.writer else ()
                gone += await self._delete_absent(strand, where, copy.last, doubtful)
        return gone

    async def _delete_absent(
        self, strand: Strand, where: tuple[Id, Id], last: Id, doubts: Sequence[tuple[int, int]]
    ) -> int:
        """where: the range in which the peer had all entries, except in times of doubt. last: how far its
        copy reaches."""
        gone, (start, upto) = 0, where
        if doubts and not strand.has_generated_ids:  # its IDs do not show when they were written
            return 0
        at: Id | None = start
        while at is not None:
            page, following = await self.home.run(compare.list_ids(strand, at, upto))
            if not page:
                break
            end = ids.native(page[-1])
            # Read after the page, so that it shows what another link has restored meanwhile.
            mended = (await self.home.run(read_state(strand.name, [strand], []))).mended(strand)
            kept = await compare.list_kept(self.peer, strand, (at, end), last)
            absent = [
                native
                for native in page
                if native not in kept
                and not compare.is_within(native, mended)
                and not any(first <= ids.native(native)[0] <= upto_ms for first, upto_ms in doubts)
            ]
            gone += await self.home.run(drop_all(View(self.region), strand, absent))
            at = following
        return gone

    async def redo_journal(self, ours: State, theirs: State) -> None:
        """Redo what the peer has of our journal and we lost, and all messages that the peer remembers.

        Also what our journal has since, if a slow clock gave it smaller IDs than the peer's copy ends with:
        the peer would take it for applied.
        """
        writer, name, strands = self.region.writer, ours.name, ours.registry.strands
        upto = theirs.journal_ends([writer])[writer]
        for having, lacking in ((self.peer, self.home), (self.home, self.peer)):
            unknown = [each async for each in self._unknown(name, having, lacking) if _id(each) <= upto]
            for some in _chunks(unknown, REDONE_AT_ONCE):
                await self.home.run(send_one(redo_command(name, writer, strands, some, upto, write=True)))
        for words in [words async for words in self._messages(theirs)]:
            await self.home.run(send_one(redo_command(name, writer, strands, [(b"0-1", words)], upto)))
        if upto > ids.ZERO:
            await self.home.run(send_one(redo_command(name, writer, strands, (), upto, peer=self.writer)))

    async def _unknown(
        self, name: bytes, having: PlanRunner, lacking: PlanRunner
    ) -> AsyncIterator[JournalEntry]:
        """Entries of our journal that only one of two regions has."""
        key, at = keys.journal(name, self.region.writer), ids.ZERO
        while True:
            page, _ = await having.run(read_journal(name, self.region.writer, at, PAGE))
            there = await lacking.run(compare.are_there([(key, _id(each)) for each in page]))
            for entry, is_there in zip(page, there, strict=True):
                if not is_there:
                    yield entry
            if len(page) < PAGE:
                break
            at = _id(page[-1])

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


async def _again_if_stale(work: Callable[[], Awaitable[int]]) -> int:
    """Do it again if the registry has changed since it was read."""
    tries = 0
    while True:
        tries += 1
        try:
            return await work()
        except ReplyError as error:
            if error.code != "BSSTALE" or tries == TRIES:
                raise


def _doubts() -> Plan[tuple[tuple[int, int], ...]]:
    """When a region may have lost entries (Region.doubts). At any time, if its daemon has not noted yet that
    another process serves it. Daemons do not note that of a cluster."""
    try:
        region = yield from read_region()
    except ClusterError:
        return ((0, ids.FULL),)
    run, info = yield Batch(
        [("HGET", CONFIG, ConfigField.RUN), ("INFO", "server")], resend=True, attempt=True
    )
    is_noted = isinstance(info, ReplyError) or not run or info_facts(info).get(b"run_id") == run
    return region.doubts if is_noted else ((0, ids.FULL),)


def _id(entry: tuple[bytes, list[bytes]]) -> Id:
    return ids.native(entry[0])


def _chunks(words: list[T], size: int) -> Iterator[list[T]]:
    for first in range(0, len(words), size):
        yield words[first : first + size]


def _entries(strand: Strand, natives: list[bytes]) -> Plan[batches.Page]:
    """Those of the entries that exist."""
    replies = yield Batch([("XRANGE", strand.key, native, native) for native in natives], resend=True)
    return [entry for reply in replies for entry in reply]


def _mend(
    strand: Strand, batch: batches.Page, acked: dict[bytes, bytes], loss: Loss, *, own: bool
) -> Plan[int]:
    name = strand.name
    [reply] = yield Batch([registry_of(name)], resend=True)
    bell = Registry.parse(name, reply).bell
    journals = [keys.journal(name, writer) for writer in loss.seen]
    where = (keys.meta(name), strand.key, *journals, *((keys.bell(name, bell),) if bell else ()))
    seen = {writer: ids.text(end) for writer, end in loss.seen.items()}
    words = request(strand, bell, batch, acked, loss, own=own, seen=seen)
    [done] = yield Batch([("FCALL", "bs_strand_mend", len(where), *where, *words)])
    return int(done)


def _known(map_: bytes, queue: bytes) -> Plan[list[bytes]]:
    """Messages of a producer in the order of arrival: iid, value, iid, value, ..."""
    [iids] = yield Batch([("LRANGE", queue, 0, -1)], resend=True)
    if not iids:
        return []
    [values] = yield Batch([("HMGET", map_, *iids)], resend=True)
    return [word for pair in zip(iids, values, strict=True) if pair[1] is not None for word in pair]
