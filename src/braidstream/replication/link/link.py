"""A link: one direction between two regions. It compares two states and brings the target up to date.

    source                       link                          target
      |   state: meta, last IDs   |   state: meta, last IDs      |
      |-------------------------->|<-----------------------------|
      |   entries after target's  |   merge meta                 |
      |   last ID                 |----------------------------->|
      |-------------------------->|   append, guarded            |
      |                           |----------------------------->|
      |   heads, journal          |   trim, delete               |
      |-------------------------->|----------------------------->|

A link stores nothing. It caches the target's position, and the engine functions check that on each write.
Kill a link between any two steps, and another one continues. Two links on one strand are harmless.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from braidstream.errors import BraidError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.journal import apply_command, waits_for
from braidstream.model.region import Region
from braidstream.model.registry import Registry
from braidstream.model.strand import Command, CopyTarget, Strand, facts
from braidstream.observability.events import emit
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.heal import compare
from braidstream.replication.heal.holes import Holes
from braidstream.replication.heal.restoring import STALE, Restorer
from braidstream.replication.link.batches import BATCH_BYTES, FEW, Parsed, page_command, parts_of
from braidstream.replication.link.flow import Flow, LinkCache, Progress, Window, dispatch
from braidstream.replication.link.pages import Pages, Place, Source
from braidstream.replication.link.stream_state import (
    MET,
    TRIMMED,
    Extent,
    State,
    lacks,
    likely_strands,
    merge_and_read,
    merge_command,
    read_journal,
    read_state,
    state_command,
)

# ----------------------------------------------------------------------------------------------------
#
# A bundle: the new entries of many streams, few of each, read in one exchange and sent in one.
#
#     source   entries of a, registry of a, entries of b, registry of b, ...
#     target   append to a, append to b, ...       each call has its own guard, and is refused on its own
#
# The work for a stream costs a fraction of what it costs alone. What is unusual goes alone:
# many entries or large ones, a registry that has changed, a stream with several strands of this region, or
# one that another task is sending or waits to send.
#
# The first visit of a stream, which compares the two regions, is in a bundle too if only this region has the
# stream, in one strand, and there are no groups.


class Parcel(NamedTuple):
    """Entries of one stream, which follow the ID `after`."""

    flow: Flow
    strand: Strand
    after: Id
    part: Parsed


async def send_bundle(
    flows: Iterable[Flow], pages: Pages, target: PlanRunner, window: Window
) -> dict[bytes, int]:
    """Send new entries; they are in flight when it returns. Returns how many, by stream.

    Streams that must go alone are not in the result.
    """
    held = list[tuple[Flow, Place]]()
    try:
        for flow in flows:
            if (place := flow.next_place()) is not None:
                await flow.lock.acquire()  # at once: it is free if there is a place
                held.append((flow, place))
        if not held:
            return {}
        answers = await pages.read_few(place for _, place in held)
        sent, parcels = dict[bytes, int](), list[Parcel]()
        for flow, place in held:
            answer = answers.get(place)
            part = None if answer is None else flow.part_of(place, answer)
            if part is None:
                continue
            strand, after = place
            sent[strand.name] = len(part)
            if len(part):
                parcels.append(Parcel(flow, strand, after, part))
        await _take_off(parcels, target, window)
        return sent
    finally:
        for flow, _ in held:
            flow.lock.release()


async def _take_off(parcels: list[Parcel], target: PlanRunner, window: Window) -> None:
    for some in split(parcels):
        await window.enter(sum(parcel.part.size for parcel in some))
        dispatch(target, window, [(flow, strand, part.size) for flow, strand, _, part in some], _append(some))
        for flow, strand, _, part in some:
            flow.note_sent(strand, part)


def split(parcels: Iterable[Parcel]) -> Iterator[list[Parcel]]:
    """What is sent in one exchange.

    At most BATCH_BYTES, so that one bundle does not hold up the window.
    """
    some, size = list[Parcel](), 0
    for parcel in parcels:
        if some and size + parcel.part.size > BATCH_BYTES:
            yield some
            some, size = [], 0
        some.append(parcel)
        size += parcel.part.size
    if some:
        yield some


def _append(parcels: list[Parcel]) -> Plan[list[int | ReplyError]]:
    """Returns for each stream how many entries were appended, or its error."""
    commands = [part.command(strand, after, flow.there) for flow, strand, after, part in parcels]
    replies = yield Batch(commands, attempt=True)
    return [reply if isinstance(reply, ReplyError) else int(reply) for reply in replies]


class Visit(NamedTuple):
    """What a first look found: the state of a stream here, and all its entries."""

    strand: Strand
    state: State
    part: Parsed


# The state of a stream in a region that has never had it.
NOWHERE: Final = State(b"", {}, Registry(), {}, {})


def look_first(names: Sequence[bytes], here: Region) -> Plan[list[Visit]]:
    """The streams that have one strand, of our own, with few small entries, and nothing else to send."""
    strands = [Strand(name, keys.GENERATED, here.writer) for name in names]
    commands = [
        command
        for strand in strands
        for command in (
            state_command(strand.name, [strand], [here.writer], mark=MET),
            page_command(strand, ids.ZERO, FEW),
            registry_of(strand.name),
        )
    ]
    replies = yield Batch(commands, attempt=True)
    visits = zip(strands, replies[::3], replies[1::3], replies[2::3], strict=True)
    return [visit for each in visits if (visit := _visit(*each)) is not None]


def _visit(strand: Strand, reply: Any, page: Any, meta: Any) -> Visit | None:
    if any(isinstance(each, ReplyError) for each in (reply, page, meta)) or not 0 < len(page) < FEW:
        return None
    fields, (extent, journal), _ = reply
    label = strand.label
    plain = {label: b"0:+:0-0", MetaField.NEW + label: None, MetaField.HEAD + label: None}
    registry, parts = facts(fields), parts_of(page)
    is_plain = registry.keys() == plain.keys() and registry[label] == plain[label]
    if not (is_plain and extent and journal is None and fields == meta and len(parts) == 1):
        return None
    part, copy = parts[0], Extent.parse(extent)
    if not isinstance(part, Parsed) or part.is_wide or part.is_hostile or part.last != copy.last:
        return None
    return Visit(strand, replace(NOWHERE, name=strand.name, meta=registry, strands={strand: copy}), part)


def unknown_there(visits: Sequence[Visit], writer: int) -> Plan[list[Visit]]:
    """Those whose streams the target has never had."""
    looks = [state_command(each.strand.name, [each.strand], [writer], mark=TRIMMED) for each in visits]
    replies = (yield Batch(looks, attempt=True)) if looks else []
    nothing = [[], [None, None], 0]
    return [visit for visit, reply in zip(visits, replies, strict=True) if reply == nothing]


# ----------------------------------------------------------------------------------------------------
# Link

REMEMBERED: Final = 100_000
JOURNAL_PAGE: Final = 100


class Link:
    """From `source` to `target`: two servers. Of regions: region_link.py.

    Sends the source's own strands; with `relay` all that it has.
    """

    def __init__(
        self,
        source: PlanRunner,
        target: PlanRunner,
        *,
        here: Region,
        there: Region,
        pages: Pages | None = None,
        heals: bool = True,
    ) -> None:
        self.source, self.target, self.here, self.there = source, target, here, there
        self.heals = heals
        self.pages = pages or Pages(Source(source, by_function=True))
        self.window = Window()
        # Called with a stream whose entries did not arrive, although `follow` had sent them.
        self.on_refused: Callable[[bytes], None] = lambda name: None
        # Called before the state of a stream is read.
        self.on_compare: Callable[[bytes], None] = lambda name: None
        self._process: bytes | None = None  # which serves the source, once it was asked
        # What one of the two regions lacks, until it is restored, as texts for `braid status`.
        self.holes = dict[tuple[Strand, str], str]()
        self._lossy = set[bytes]()  # streams with a loss, until the target has received everything
        self.highest_ms = 0  # the highest ID of our home strands that this link has read
        self._known: OrderedDict[bytes, LinkCache] = OrderedDict()

    def forget(self, name: bytes | None = None) -> None:
        """Clear the cache, for example because the target was restarted."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(name, None)

    def refresh(self) -> None:
        """Ask again which process serves the source: a server gets another replication ID when its first
        replica connects."""
        self._process = None

    def sent_upto(self, strand: Strand) -> Id | None:
        """Where the target stands once everything in flight has arrived; None if that is not known."""
        known = self._known.get(strand.name)
        return None if known is None else known.flow.ends.get(strand)

    def has_met(self, name: bytes) -> bool:
        return name in self._known

    def applied(self, name: bytes) -> Id:
        """How far the target has applied our journal; 0-0 if that is not known."""
        known = self._known.get(name)
        return ids.ZERO if known is None else known.applied

    async def sync(self, name: bytes, *, relay: bool = False) -> Progress:
        """One whole round for a stream: compare the states. When it returns, everything has arrived."""
        progress = Progress()
        stuck = (
            f"stream {name!r}: from {self.here.name} to {self.there.name} nothing moves, both sides keep "
            "changing. Does each region have its own writer number? See bs:config there."
        )
        retries = Retries(stuck, error=BraidError)
        while True:
            retries.count()
            before = progress.entries
            try:
                await self._round(name, progress, relay)
                return progress
            except ReplyError as error:
                self.forget(name)
                if error.code not in STALE:
                    raise
                if progress.entries != before:
                    retries.reset()

    async def follow(self, name: bytes) -> Progress:
        """Send only new entries, after those in flight. They are in flight when it returns.

        May run concurrently with a sync of the same stream.
        """
        known = self._known.get(name)
        if known is None or not known.started or known.flow.failed is not None:
            return await self.sync(name)
        self._known.move_to_end(name)
        flow, before = known.flow, known.flow.sent
        try:
            for strand in list(flow.ends):
                await flow.pump(strand)
        except ReplyError as error:
            if error.code not in STALE:
                raise
            return await self.sync(name)
        return self._followed(known, flow.sent - before)

    async def follow_some(self, names: Iterable[bytes]) -> dict[bytes, Progress]:
        """The same for many streams together. The result lacks those that must go alone."""
        known, new = dict[bytes, LinkCache](), list[bytes]()
        for name in names:
            if (found := self._known.get(name)) is None:
                new.append(name)
            elif found.started:
                known[name] = found
                self._known.move_to_end(name)
        flows = (each.flow for each in known.values())
        sent = await send_bundle(flows, self.pages, self.target, self.window)
        done = {name: self._followed(known[name], entries) for name, entries in sent.items()}
        return done | (await self._meet(new) if new and self.heals else {})

    async def _meet(self, names: list[bytes]) -> dict[bytes, Progress]:
        """First visits, together.

        There is nothing to restore here, and nothing to compare: the target has never had the stream.
        """
        for name in names:
            self.on_compare(name)
        holes = await self._holes()
        visits = await self.source.run(look_first(names, self.here))
        visits = [each for each in visits if holes.is_known(each.state, NOWHERE)]
        parcels, met = list[Parcel](), list[tuple[LinkCache, int]]()
        try:
            for strand, state, part in await self.target.run(unknown_there(visits, self.here.writer)):
                if strand.name in self._known:  # another task visits it
                    continue
                known = self._recall(strand.name)
                flow, extent = known.flow, state.strands[strand]
                flow.merged, known.merged = state.meta, state.shared
                known.marks, known.started = state.marks(self.here.writer), True
                flow.start(strand, ids.ZERO, extent.width, extent.length)
                self._remember(strand.name, known)
                await flow.lock.acquire()  # at once: it is free
                parcels.append(Parcel(flow, strand, ids.ZERO, part))
                met.append((known, len(part)))
            await _take_off(parcels, self.target, self.window)
        finally:
            for parcel in parcels:
                parcel.flow.lock.release()
        return {parcel.strand.name: self._followed(*each) for parcel, each in zip(parcels, met, strict=True)}

    def _followed(self, known: LinkCache, entries: int) -> Progress:
        ends = known.flow.ends
        for strand, (ms, _) in ends.items():
            if strand.has_generated_ids and ms > self.highest_ms:
                self.highest_ms = ms
        return Progress(entries=entries, restless=known.has_groups and entries > 0, strands=tuple(ends))

    async def _round(self, name: bytes, progress: Progress, relay: bool) -> None:
        own, known = self.here.writer, self._recall(name)
        self._remember(name, known)  # rounds at the same time share a flow, and send nothing twice
        writers = self._writers() if relay else [own]
        theirs, idle_at = None, known.flow.idle_at
        if self.heals and (known.marks is None or known.owes):
            healed, theirs = await (await self._restorer()).heal(name, known)
            progress.healed += healed
        likely, left, everyone = likely_strands(name, self.here), self.here.left, self.here.everyone
        self.on_compare(name)
        ours = await self.source.run(read_state(name, likely, everyone, home=own, left=left))
        progress.restless, progress.strands = ours.restless, ours.registry.strands
        if (home := ours.strands.get(Strand(name, keys.GENERATED, own))) is not None:
            self.highest_ms = max(self.highest_ms, home.last[0])
        if any(strand.is_of_log and strand.writer == own for strand in ours.strands):
            self.highest_ms = ids.FULL  # offsets are counted up, so they are always ahead of the clock
        if self.heals and ours.marks(own) != known.marks:
            raise ReplyError("BSMOVED a strand was created again meanwhile")
        if theirs is None or any(strand.writer != own for strand in ours.strands):
            # Of others' strands, the target may have got (back) entries since that we do not know of.
            idle_at = known.flow.idle_at
            theirs = await self.target.run(read_state(name, ours.registry.strands, writers))
        if not relay and any(theirs.is_beyond(ours, writer) for writer in writers):
            # Strands will be compared. Entries of other writers must arrive first, to be deleted.
            await self._round(name, progress, relay=True)
            return
        if not known.merged or (known.merged, known.theirs) != (ours.shared, theirs.shared):
            before = theirs.meta
            if lacks(theirs, ours):
                theirs = await self._merge(ours, theirs, writers)
            progress.merged = progress.merged or theirs.meta != before
            known.merged, known.theirs = ours.shared, theirs.shared
        known.flow.merged = ours.meta
        await self._trim(ours, theirs, progress)  # first: it frees memory
        flows = [known.flow, self._flow(ours.meta)] if relay else [known.flow]
        for flow in flows:
            before_sent = flow.sent
            try:
                await self._ship(flow, ours, theirs, foreign=flow is not known.flow, idle_at=idle_at)
            finally:
                progress.entries += flow.sent - before_sent
                self._log_lost(name, flow)
            theirs = theirs.with_strands(flow.ends)
        known.started, known.has_groups = True, bool(ours.registry.groups)
        for writer in writers:
            at = await self._journal(writer, ours, theirs, progress)
            if writer == own:
                known.applied = at
        if (
            self.heals
            and not progress.waiting
            and (relay or not (await self._holes()).is_known(ours, theirs))
        ):
            filled = await (await self._holes()).fill(name)
            progress.healed += filled.here + filled.there
        progress.journal = ours.journals.get(own)
        self._remember(name, known)

    def _log_lost(self, name: bytes, flow: Flow) -> None:
        """The target took back entries that it had written itself."""
        if self.heals and (given := flow.arrived[self.there.writer]):
            emit("peer.lost_tail", stream=name, peer=self.there.name, entries=given)

    async def _holes(self) -> Holes:
        if self._process is None:
            self._process = await self.source.run(compare.serving())
        return Holes(self.source, self.target, self.here, self.there, self._process, self.holes)

    async def _restorer(self) -> Restorer:
        ends = self.source, self.target, self.here, self.there
        return Restorer(*ends, self._lossy, self._back().give_back, await self._holes())

    async def recover(self, name: bytes) -> int:
        """For an engine that lost its data: restore all that the target has of a stream. Counts entries."""
        entries = (await self._back().sync(name, relay=True)).entries
        return entries + await (await self._restorer()).recover(name, self._recall(name))

    def _back(self) -> "Link":
        return Link(self.target, self.source, here=self.there, there=self.here, heals=False)

    async def give_back(self, name: bytes, without: Collection[Strand] = ()) -> None:
        """Return to a target that lost data: the registry, and its own entries after those that it has."""
        ours = await self.source.run(read_state(name, likely_strands(name, self.here), []))
        theirs = await self.target.run(read_state(name, ours.registry.strands, []))
        if lacks(theirs, ours):
            theirs = await self._merge(ours, theirs, [])
        wrote = {
            strand: extent
            for strand, extent in ours.strands.items()
            if strand.writer == self.there.writer and strand not in without
        }
        await self._ship(self._flow(ours.meta), replace(ours, strands=wrote), theirs, foreign=True)

    def _recall(self, name: bytes) -> LinkCache:
        known = self._known.get(name)
        if known is None or known.flow.failed is not None:
            known = LinkCache(self._flow({}))
            known.flow.on_failure = lambda: self.on_refused(name)
        return known

    def _flow(self, meta: dict[bytes, bytes]) -> Flow:
        return Flow(self.target, self.pages, self.window, self.there.writer, meta)

    async def _ship(
        self, flow: Flow, ours: State, theirs: State, *, foreign: bool, idle_at: int | None = None
    ) -> None:
        """Send our own strands, or (foreign) other writers' strands, if we have more of them than the target.

        Also the target's own: its engine has lost its latest entries, and gets them back.
        idle_at: of the flow, before `theirs` was read.
        """
        flow.bell = theirs.registry.bell
        flow.ends = {strand: end for strand, end in flow.ends.items() if strand in ours.strands}
        for strand, extent in ours.strands.items():
            end, own = theirs.end(strand), strand.writer == self.here.writer
            if own is foreign or end is None or (foreign and self._may_skip(strand, ours, theirs)):
                continue
            of_third = strand.writer not in (self.here.writer, self.there.writer, *self.here.left)
            copy = theirs.strands.get(strand)
            if (
                of_third
                and end < extent.last
                and not await compare.continues(self.source, strand, extent, copy)
            ):
                continue
            flow.start(strand, end, extent.width, extent.length - (copy.length if copy else 0))
            await flow.meet(strand, end, idle_at)
            if flow.ends[strand] < extent.last:
                await flow.pump(strand, alone=True)
                await flow.reach(strand, extent.last)
        await flow.landed()

    def _may_skip(self, strand: Strand, ours: State, theirs: State) -> bool:
        """Whether our copy begins after the target's last entry. Only the writer's region has those
        between."""
        copy = theirs.strands.get(strand)
        if strand.writer == self.there.writer and ours.strands[strand].first is None:
            return False  # the target lost its own entries, and all are deleted here: its last ID is raised
        begins_later = copy is not None and copy.last < ours.is_new_after(strand)
        return begins_later and strand.writer not in self.here.left

    def _writers(self) -> list[int]:
        """Whose journals a relay sends: all but the target's own, also of regions that have left."""
        return [writer for writer in self.here.everyone if writer != self.there.writer]

    async def _merge(self, ours: State, theirs: State, writers: list[int]) -> State:
        """Merge the source's registry at the target; returns the target's state afterwards."""
        retries = Retries("its registry kept changing")
        while True:
            retries.count()
            there = self.there
            guarded = not there.is_cluster
            merge = merge_command(ours, theirs, there.writers, home=there.writer, guarded=guarded)
            done, theirs = await self.target.run(merge_and_read(merge, ours, writers))
            if done:
                return theirs

    async def _trim(self, ours: State, theirs: State, progress: Progress) -> None:
        """Trim at the target what was trimmed, as the registry records it (lua/trim.lua)."""
        for strand in ours.strands:
            copy = theirs.strands.get(strand)
            for start, end in ours.trims(strand):
                if copy is None or copy.first is None or end <= copy.first:
                    continue
                if start <= copy.first:
                    progress.trimmed += await self.target.run(send_one(self._trim_command(strand, end)))
                elif upto := ids.before(end):
                    progress.trimmed += await self.target.run(compare.trim_between(strand, start, upto))

    def _trim_command(self, strand: Strand, end: Id) -> Command:
        call = ("FCALL", "bs_strand_trim", 2, keys.meta(strand.name), strand.key, strand.label, strand.life)
        return (*call, ids.text(end))

    async def _journal(self, writer: int, ours: State, theirs: State, progress: Progress) -> Id:
        """Apply our journal: deletions of single entries, and messages, in order.

        Returns how far it is applied; 0-0 if that is not known.

        If the journal is too short, the strands are compared first. That does not cover messages, so the rest
        of the journal is applied as well.
        """
        journal, copy = ours.journals.get(writer), theirs.journals.get(writer)
        at, where = copy.last if copy else ids.ZERO, keys.journal(ours.name, writer)
        if journal is not None and at < journal.last:
            if theirs.is_beyond(ours, writer):
                if writer not in (self.here.writer, *self.here.left):
                    return (
                        ids.ZERO
                    )  # that region compares: our copies may have come without what it had deleted
                gone = await compare.delete_missing(
                    self.source, self.target, ours, own=self.here.writer, there=self.there.writer
                )
                if gone is None:
                    progress.waiting = True
                    return ids.ZERO
                progress.deletions += gone
                at = (journal.first and ids.before(journal.first)) or journal.last
                await self.target.run(send_one(("FCALL", "bs_journal_skip", 1, where, ids.text(at))))
            at = await self._replay(writer, (ours, theirs), at, progress)
        # Only as its owner has: after a loss a copy may begin later than another one.
        owns = writer in (self.here.writer, *self.here.left)
        if owns and journal and copy and copy.first and journal.first and copy.first < journal.first:
            await self.target.run(send_one(("XTRIM", where, "MINID", "=", ids.text(journal.first))))
        return at

    async def _replay(self, writer: int, states: tuple[State, State], at: Id, progress: Progress) -> Id:
        ours, theirs = states
        name, strands = theirs.name, theirs.registry.strands
        while True:
            page, extent = await self.source.run(read_journal(name, writer, at, JOURNAL_PAGE))
            if not page:
                return at
            if extent.forgot_after(at):
                raise ReplyError("BSMOVED the journal has overflowed meanwhile")
            apply = apply_command(name, (writer, self.there.writer), strands, page, at)
            done = await self.target.run(send_one(apply))
            progress.deletions += done
            if done:
                at = ids.native(page[done - 1][0])
            if done < len(page):
                if writer == self.here.writer and await self._pass_lost(ours, page[done][1]):
                    raise ReplyError("BSMOVED our strand continues after entries that it lost")
                progress.waiting = True
                return at

    async def _pass_lost(self, ours: State, words: list[bytes]) -> bool:
        """If an entry of our journal waits for entries that we lost, and that no peer has: raise our strand
        above them, as the next XADD would. The copies of it follow in the next round."""
        own = [each for each in waits_for(ours.name, words) if each[0].writer == self.here.writer]
        if not own or not self.heals or ours.registry.is_log:
            return False
        holes = await self._holes()
        if not holes.is_compared(ours):
            await holes.fill(ours.name)
            return False
        # After the journal was read: what it names was written before.
        now = await self.source.run(read_state(ours.name, [strand for strand, _ in own], []))
        for strand, native in own:
            if (end := now.end(strand)) is not None and end < native:
                target = CopyTarget(bell=now.registry.bell)
                with contextlib.suppress(ReplyError):  # it takes no writes now: the journal waits
                    await self.source.run(send_one(strand.apply(end, (), native, target)))
                    return True
        return False

    def _remember(self, name: bytes, known: LinkCache) -> None:
        self._known[name] = known
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
