"""Finds entries that a region wrote and lost, and weaves them in. heal.py restores them.

An engine may return without entries that it acknowledged: a promoted replica that lagged, an old snapshot, an
empty server, keys deleted by hand. A region generates IDs in order and a peer's copy is a prefix. So when a
link first reads a stream, it checks one thing: do we still have the peer's last entry of our strand?

    peer    1 2 3 4 5 6 |           6 is the peer's last entry of our strand
    home    1 2 3 . . . 7 8 |       we lack it, and no record says that we removed it: 4 5 6 were lost

If no record explains the absence (a trim, a cut, a journal), the link restores the entries before it sends
anything: absence alone never counts as a deletion. It checks the last entry of our journal in the same way;
if that was lost, it repeats the deletions of the peers.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.journal import deletions
from braidstream.model.region import Region
from braidstream.model.registry import Registry
from braidstream.model.strand import Strand
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.heal import compare
from braidstream.replication.link import batches
from braidstream.replication.link.stream_state import TRIMMED, Extent, State, read_journal, read_state

# ----------------------------------------------------------------------------------------------------
# What a region lost and a peer still has, as a value. search.py finds it.


@dataclass(frozen=True, slots=True)
class Loss:
    """entries: by strand, in order. journal: the end of our journal was lost too.
    behind: the peer's copy of one of our strands has a higher last ID; its last entries may be deleted again.
    seen: the ends of our journals at that time. Entries that are deleted later are not restored.
    common: the last entry before the loss, by strand. Our entries after it are new.
    began: the mark where a strand began (`n:`), by strand; empty if it has none.
    """

    entries: dict[Strand, list[bytes]] = field(default_factory=dict)
    journal: bool = False
    behind: bool = False
    seen: dict[int, Id] = field(default_factory=dict)
    common: dict[Strand, Id] = field(default_factory=dict)
    began: dict[Strand, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries) or self.journal or self.behind

    @property
    def count(self) -> int:
        return sum(map(len, self.entries.values()))

    def went_on(self, ours: State) -> set[Strand]:
        """Strands that were written to since the loss."""
        return {
            each
            for each, last in self.common.items()
            if each in ours.strands and ours.strands[each].last > last
        }


def beginnings(state: State, strands: Iterable[Strand]) -> dict[Strand, bytes]:
    """The marks of where strands began (`n:`), by strand; empty where there is none."""
    return {strand: state.meta.get(MetaField.NEW + strand.label, b"") for strand in strands}


# ----------------------------------------------------------------------------------------------------
#
# Restores entries before any number of others, in a copy that takes the place of the strand (mend.lua).
#
# strand   1 2 3 . . . 7 8 9 |      clients go on to use it
# copy     1 2 3 4 5                each call appends some of its entries, and lost ones between them


@dataclass(slots=True)
class Weaving:
    """The calls of bs_strand_weave for one strand, and what they have answered.

    seen: how far the journals were read. begins: the first entry of the strand at the first call.
    inserted: how many of the lost entries are in the copy. deleted: those that journals deleted since.
    """

    strand: Strand
    natives: list[bytes]
    acked: dict[bytes, bytes]
    loss: Loss
    own: bool
    copy: bytes
    restores: bytes
    seen: dict[int, bytes]
    begins: bytes = b""
    inserted: int = 0
    is_done: bool = False
    deleted: set[bytes] = field(default_factory=set)

    def call(self, batch: batches.Page) -> Plan[int]:
        """Returns how many entries of the batch are done. No batch: there are no more."""
        strand, name = self.strand, self.strand.name
        [reply] = yield Batch([registry_of(name)], resend=True)
        bell = Registry.parse(name, reply).bell
        where = (
            keys.meta(name),
            strand.key,
            *(keys.journal(name, writer) for writer in self.seen),
            self.copy,
            *((keys.bell(name, bell),) if bell else ()),
        )
        lost = (self.natives[0], self.natives[-1])
        about = (self.restores, self.begins, *lost, self.inserted, 1 if batch else 0)
        words = request(strand, bell, batch, self.acked, self.loss, own=self.own, seen=self.seen)
        [reply] = yield Batch([("FCALL", "bs_strand_weave", len(where), *where, *about, *words)])
        done, inserted, is_done, first, ends, within, gone = reply
        self.begins = self.begins or first
        self.seen = dict(zip(self.seen, ends, strict=True))
        self.deleted.update(within)
        self.inserted += inserted - len(set(gone) & set(self.natives))
        self.is_done = bool(is_done)
        return int(done)


def begin(
    strand: Strand, natives: list[bytes], acked: dict[bytes, bytes], loss: Loss, *, own: bool
) -> Plan[Weaving]:
    note = ("HGET", keys.meta(strand.name), MetaField.RESTORES + strand.label)
    [seconds, micros], restores = yield Batch([("TIME",), note], resend=True)
    # As of other temporary copies (commands/rename.py), without the right to CLIENT ID.
    copy = keys.copy(strand.name, b"%d.%b.%b" % (secrets.randbelow(2**32), seconds, micros))
    seen = {writer: ids.text(end) for writer, end in loss.seen.items()}
    return Weaving(strand, natives, acked, loss, own, copy, restores or b"", seen)


def request(
    strand: Strand,
    bell: bytes,
    batch: batches.Page,
    acked: dict[bytes, bytes],
    loss: Loss,
    *,
    own: bool,
    seen: dict[int, bytes],
) -> list[bytes | int]:
    """The arguments that bs_strand_mend and bs_strand_weave have in common."""
    common = loss.common.get(strand, ids.native(batch[-1][0] if batch else loss.entries[strand][-1]))
    words: list[bytes | int] = [strand.label, strand.life, bell, ids.text(common), 1 if own else 0]
    words += [loss.began.get(strand, b""), len(seen), *seen.values(), len(acked)]
    words += [word for pair in acked.items() for word in pair]
    for native, fields in batch:
        words += (native, len(fields), *fields)
    return words


# ----------------------------------------------------------------------------------------------------
# Search

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Search:
    """A region, and the peer that may have what it lost. writer: the peer's. heal.py restores it."""

    home: PlanRunner
    peer: PlanRunner
    region: Region
    writer: int

    async def find_loss(self, ours: State, theirs: State) -> Loss:
        """The loss; nearly always none, found by comparing two states, or with one more round trip."""
        own = {
            strand: copy.tail
            for strand, copy in theirs.strands.items()
            if strand.writer == self.region.writer and copy.tail
        }
        suspects = {strand: tail for strand, tail in own.items() if _tail(ours, strand) != tail}
        journal = self._journal_suspect(ours, theirs)
        wanted = [(strand.key, tail) for strand, tail in suspects.items()]
        if journal:
            wanted.append(journal)
        behind = self._is_behind(ours, theirs)
        if not wanted and not behind:
            return Loss()
        there = await self.home.run(compare.are_there(wanted))
        if all(there) and not behind:
            return Loss()
        missing = [strand for strand, tail in own.items() if not await self._is_same(strand, tail)]
        return await self._compare(ours, theirs, missing)

    async def _compare(self, ours: State, theirs: State, missing: list[Strand]) -> Loss:
        everyone = self.region.everyone
        theirs = await self.peer.run(read_state(ours.name, theirs.registry.strands, everyone))
        # The peer's journal may have grown. Check its new tail before our state is read, so a trim in between
        # is seen as a trim.
        journal = self._journal_suspect(ours, theirs)
        lacks_journal = journal is not None and not all(await self.home.run(compare.are_there([journal])))
        ours = await self._read_ours(theirs)
        found, common = dict[Strand, list[bytes]](), dict[Strand, Id]()
        for strand in missing:
            lost, before = await self._lost_of(strand, ours, theirs)
            if lost:
                found[strand], common[strand] = lost, before
        lost_journal = lacks_journal and self._lost_journal(ours, theirs)
        behind, seen = self._is_behind(ours, theirs), ours.journal_ends(everyone)
        return Loss(found, lost_journal, behind, seen, common, beginnings(ours, found))

    async def _read_ours(self, theirs: State) -> State:
        """What was trimmed is on record then."""
        return await self.home.run(
            read_state(theirs.name, theirs.registry.strands, self.region.everyone, mark=TRIMMED)
        )

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
        ours = await self._read_ours(theirs)
        deleted, certain = await unapplied_deletions(self.home, strand, ours, theirs)
        here = ours.strands.get(strand)
        if _is_over(ours, strand) or (not certain and here is not None and here.deleted >= copy.tail):
            return [], ids.ZERO  # or the journals are too short, and we deleted entries up to there
        found = list[bytes]()
        for native in absent:
            if ours.is_removed(strand, ids.native(native)):
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
                if native in kept:
                    if await self._is_same(strand, ids.native(native)):
                        return absent, ids.native(native)
                elif ours.is_removed(strand, ids.native(native)):
                    return absent, ids.native(native)
                else:
                    absent.append(native)
            end = ids.before(low)
        return absent, ids.ZERO

    async def _is_same(self, strand: Strand, native: Id) -> bool:
        """Whether an ID names the same entry in both regions. With a slow clock we may have generated the ID
        of a lost entry again: then it is not the last one before the loss."""
        read = ("XRANGE", strand.key, ids.text(native), ids.text(native))
        here, there = await self.home.run(send_one(read)), await self.peer.run(send_one(read))
        return bool(here == there)


async def unapplied_deletions(
    runner: PlanRunner, strand: Strand, ours: State, theirs: State
) -> tuple[set[bytes], bool]:
    """Deletions in the journals of one region that another has not applied; and whether the journals have all
    of them."""
    return await _deletions(runner, strand, ours.name, theirs.journal_ends(list(ours.journals)))


async def journaled_deletions(runner: PlanRunner, strand: Strand, ours: State) -> set[bytes]:
    """All deletions that the journals of a region still list."""
    found, _ = await _deletions(runner, strand, ours.name, dict.fromkeys(ours.journals, ids.ZERO))
    return found


async def _deletions(
    runner: PlanRunner, strand: Strand, name: bytes, after: Mapping[int, Id]
) -> tuple[set[bytes], bool]:
    """Deletions after these positions, and whether the journals had them all: they may overflow meanwhile."""
    found, certain = set[bytes](), True
    for writer, start in after.items():
        at = start
        while True:
            page, extent = await runner.run(read_journal(name, writer, at, PAGE))
            certain = certain and (start >= extent.last or not extent.forgot_after(start))
            for _, words in page:
                registration, natives = deletions(words)
                if registration == strand.registration:
                    found.update(natives)
            if len(page) < PAGE:
                break
            at = ids.native(page[-1][0])
    return found, certain


def _tail(state: State, strand: Strand) -> Id | None:
    extent = state.strands.get(strand)
    return extent.tail if extent else None


def _was_trimmed(extent: Extent, native: Id) -> bool:
    return not extent.whole and (extent.first is None or native < extent.first)


def _is_over(ours: State, strand: Strand) -> bool:
    """Whether this life of a strand was ended here."""
    return any(known.label == strand.label and known.life > strand.life for known in ours.registry.cuts)
