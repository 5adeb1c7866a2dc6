"""A link: one direction between two regions. It reads the source's state and brings the target up to it.

    source                       link                          target
      |   state: meta, last IDs   |   state: meta, last IDs      |
      |-------------------------->|<-----------------------------|
      |   entries after target's  |   merge meta                 |
      |   last ID                 |----------------------------->|
      |-------------------------->|   append, guarded            |
      |                           |----------------------------->|
      |   heads, journal          |   trim, delete               |
      |-------------------------->|----------------------------->|

A link stores nothing. Its memory of where the target stands is a guess that the engine functions
check; kill it between any two steps and another one goes on. Two links on one strand are harmless.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from braidstream import ids, keys
from braidstream.braid import Region
from braidstream.errors import BraidError, ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.replication import compare, ship
from braidstream.replication.pages import Pages
from braidstream.replication.state import State, causal, journal_command, lacks, merge_command, read_state
from braidstream.strand import Strand

T = TypeVar("T")

REMEMBERED: Final = 100_000
WINDOW_BYTES: Final = 8 * 1024 * 1024
JOURNAL_PAGE: Final = 100
TRIES: Final = 10

# What the target answers when our memory of it is wrong, and what we say when the source has moved on.
STALE: Final = ("BSGAP", "BSSTALE", "BSMOVED")


class Endpoint(Protocol):
    """One region's engine. Plans that are asked first are sent first."""

    async def ask(self, plan: Plan[T]) -> T: ...


@dataclass(slots=True)
class Progress:
    """What a round brought over.

    waiting: the journal names entries that have not arrived at the target yet; they come over another link.
    restless: a group of the source has entries to be read or acknowledged, which no push will tell.
    journal: how far the target has done our journal.
    """

    entries: int = 0
    merged: bool = False
    trimmed: int = 0
    deletions: int = 0
    waiting: bool = False
    restless: bool = False
    journal: Id = ids.ZERO

    @property
    def moved(self) -> bool:
        return bool(self.entries or self.merged or self.trimmed or self.deletions)


@dataclass(slots=True)
class Memory:
    """Where we believe the target stands with one stream.

    told, heard: our meta and theirs after the last merge; while both are the same there is nothing to merge.
    """

    told: dict[bytes, bytes]
    heard: dict[bytes, bytes]
    ends: dict[Strand, Id] = field(default_factory=dict)
    appetite: dict[Strand, ship.Appetite] = field(default_factory=dict)


class Window:
    """Bytes on their way to the target, bounded."""

    def __init__(self, most: int = WINDOW_BYTES) -> None:
        self.most, self.used = most, 0
        self._changed = asyncio.Condition()

    async def enter(self, size: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self.used or self.used + size <= self.most)
            self.used += size

    async def leave(self, size: int) -> None:
        async with self._changed:
            self.used -= size
            self._changed.notify_all()


class Link:
    """From `source` to `target`. Normally each region's own strands flow; with `relay` all that it has."""

    def __init__(
        self, source: Endpoint, target: Endpoint, *, here: Region, there: Region, pages: Pages | None = None
    ) -> None:
        self.source, self.target, self.here, self.there = source, target, here, there
        self.pages = pages or Pages(source)
        self.window = Window()
        self._known: OrderedDict[bytes, Memory] = OrderedDict()

    def forget(self, name: bytes | None = None) -> None:
        """Look afresh next time: the target was restarted, say."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(name, None)

    async def sync(self, name: bytes, *, relay: bool = False) -> Progress:
        """One whole round for a stream: state against state."""
        progress, tries = Progress(), TRIES
        while tries:
            before = progress.entries
            try:
                await self._round(name, progress, relay)
                return progress
            except ReplyError as error:
                self.forget(name)
                if error.code not in STALE:
                    raise
                tries -= progress.entries == before
        raise BraidError(
            f"stream {name!r}: from {self.here.name} to {self.there.name} nothing moves, both sides keep "
            "changing. Does each of them have a writer number of its own? See bs:config there."
        )

    async def follow(self, name: bytes) -> Progress:
        """Only new entries, from where we believe the target stands. One round trip on each side."""
        memory = self._known.get(name)
        if memory is None:
            return await self.sync(name)
        self._known.move_to_end(name)
        progress = Progress()
        try:
            for strand in memory.ends:
                await self._ship(strand, memory, progress)
        except ReplyError as error:
            self.forget(name)
            if error.code not in STALE:
                raise
            return await self.sync(name)
        return progress

    async def _round(self, name: bytes, progress: Progress, relay: bool) -> None:
        own = self.here.writer
        writers = self._writers() if relay else [own]
        ours = await self.source.ask(read_state(name, self._likely(name), writers, acks=True))
        progress.restless = ours.restless
        theirs = await self.target.ask(read_state(name, ours.registry.strands, writers))
        memory = self._known.pop(name, None)
        if memory is None or (memory.told, memory.heard) != (ours.shared, theirs.shared):
            before = theirs.meta
            if lacks(theirs, ours):
                theirs = await self._merge(ours, theirs, writers)
            progress.merged = progress.merged or theirs.meta != before
            memory = Memory(ours.shared, theirs.shared)
        memory.ends.clear()
        for strand in ours.strands:
            end = theirs.end(strand)
            flows = strand.writer != self.there.writer if relay else strand.writer == own
            if flows and end is not None and not ours.is_lost(strand):
                memory.ends[strand] = end
                memory.appetite.setdefault(strand, ship.Appetite.guess(ours.strands[strand].width))
        for strand, end in list(memory.ends.items()):
            upto = ours.strands[strand].last
            if end < upto:
                await self._ship(strand, memory, progress)
                if memory.ends[strand] < upto:  # what came last was deleted
                    await self.target.ask(ship.append(strand, memory.ends[strand], [], upto))
                    memory.ends[strand] = upto
        await self._trim(ours, theirs, progress)
        for writer in writers:
            await self._journal(writer, ours, theirs, progress)
        memory.ends = {strand: end for strand, end in memory.ends.items() if strand.writer == own}
        self._remember(name, memory)

    def _writers(self) -> list[int]:
        """Whose journals a relay brings: everyone's but the target's own, also of regions that are gone."""
        return [writer for writer in (*self.here.writers, *self.here.left) if writer != self.there.writer]

    def _likely(self, name: bytes) -> list[Strand]:
        return [Strand(name, "s", writer) for writer in self.here.writers]

    async def _merge(self, ours: State, theirs: State, writers: list[int]) -> State:
        """Tell the target what the source knows; its state after that."""
        while True:
            [done] = await self.target.ask(_once(merge_command(ours, theirs, self.there.writers)))
            theirs = await self.target.ask(read_state(ours.name, ours.registry.strands, writers))
            if done:
                return theirs

    async def _ship(self, strand: Strand, memory: Memory, progress: Progress) -> None:
        """Bring a strand's new entries over. If the meta has changed it must be merged first: BSMOVED.

        Pages are read while batches are on their way. A batch that is refused leaves no gap: those
        after it are refused as well.
        """
        appetite = memory.appetite[strand]
        flying: list[asyncio.Task[int]] = []
        try:
            while True:
                after = memory.ends[strand]
                wanted = appetite.count
                page, meta = await self.pages.read(strand, after, wanted)
                if causal(meta) != causal(memory.told):
                    raise ReplyError("BSMOVED the stream changed otherwise than by appends")
                full = len(page) == wanted
                sizes = ship.sizes_of(page)
                appetite.had(sizes)
                for part, size in ship.batches(page, sizes):
                    await self._take_off(strand, memory, (part, size), flying)
                if not full:
                    return
        finally:
            applied = await asyncio.gather(*flying, return_exceptions=True)
            progress.entries += sum(count for count in applied if isinstance(count, int))
            for outcome in applied:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _take_off(
        self, strand: Strand, memory: Memory, batch: tuple[ship.Page, int], flying: "list[asyncio.Task[int]]"
    ) -> None:
        (part, size), after = batch, memory.ends[strand]
        await self.window.enter(size)
        if ship.is_wide(part):
            await asyncio.gather(*flying)  # a native append has no guard of its own
            flying.append(self._send(ship.append_wide(strand, after, part), size))
            await flying[-1]
        else:
            flying.append(self._send(ship.append(strand, after, part, ids.ZERO), size))
        memory.ends[strand] = ids.native(part[-1][0])

    def _send(self, plan: Plan[int], size: int) -> "asyncio.Task[int]":
        async def send() -> int:
            try:
                return await self.target.ask(plan)
            finally:
                await self.window.leave(size)

        return asyncio.ensure_future(send())

    async def _trim(self, ours: State, theirs: State, progress: Progress) -> None:
        """Whatever stood before our first entry was removed here, by trimming or otherwise."""
        for strand, extent in ours.strands.items():
            copy, below = theirs.strands.get(strand), extent.removed_below
            if copy and copy.first and below and copy.first < below and not ours.is_lost(strand):
                trim = ("XTRIM", strand.key, "MINID", "=", ids.text(below))
                progress.trimmed += sum(await self.target.ask(_once(trim)))

    async def _journal(self, writer: int, ours: State, theirs: State, progress: Progress) -> None:
        """Deletions of single entries, in their order; or, if the journal is too short, all of the state."""
        journal, copy = ours.journals.get(writer), theirs.journals.get(writer)
        at, where = copy.last if copy else ids.ZERO, keys.journal(ours.name, writer)
        if journal is not None and at < journal.last:
            if not journal.whole and (journal.first is None or at < journal.first):
                progress.deletions += await self._compare(ours, theirs)
                await self.target.ask(_once(("FCALL", "bs_journal_skip", 1, where, ids.text(journal.last))))
                at = journal.last
            else:
                at = await self._replay(writer, ours, at, progress)
        if journal and copy and copy.first and journal.first and copy.first < journal.first:
            await self.target.ask(_once(("XTRIM", where, "MINID", "=", ids.text(journal.first))))
        if writer == self.here.writer:
            progress.journal = at

    async def _replay(self, writer: int, ours: State, at: Id, progress: Progress) -> Id:
        journal = keys.journal(ours.name, writer)
        while True:
            read = ("XRANGE", journal, b"(" + ids.text(at), "+", "COUNT", JOURNAL_PAGE)
            [page] = await self.source.ask(_once(read))
            if not page:
                return at
            there = await self.target.ask(read_state(ours.name, ours.registry.strands, ()))
            apply = journal_command(ours.name, writer, list(there.strands), page, after=at)
            [done] = await self.target.ask(_once(apply))
            progress.deletions += done
            if done:
                at = ids.native(page[done - 1][0])
            if done < len(page):
                progress.waiting = True
                return at

    async def _compare(self, ours: State, theirs: State) -> int:
        """Entry by entry: what the source had seen and no longer has, goes."""
        gone = 0
        for strand, extent in ours.strands.items():
            if strand not in theirs.strands or ours.is_lost(strand):
                continue
            at: Id | None = ids.ZERO
            while at is not None:
                page = await self.target.ask(compare.list_ids(strand, at, extent.last))
                if not page:
                    break
                end = ids.native(page[-1])
                kept = set(await self.source.ask(compare.list_between(strand, at, end)))
                missing = [native for native in page if native not in kept]
                if missing:
                    gone += await self.target.ask(compare.drop(strand, missing))
                at = ids.after(end) if len(page) == compare.AT_ONCE else None
        return gone

    def _remember(self, name: bytes, memory: Memory) -> None:
        self._known[name] = memory
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _once(*commands: Command) -> Plan[Any]:
    """Commands that need no thought: one round trip, any error is raised."""
    return (yield Batch(commands))
