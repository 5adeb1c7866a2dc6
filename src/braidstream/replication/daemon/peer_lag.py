"""A peer's lag: how many entries it lacks, how old they are, and how far its clock is apart.

    pushes, sweeps --> Lag.changed(name) --> every second: state here, then state there --> equal: forget it
                                                                                       `--> lag in entries

Both engines are read, so the lag is right however entries are replicated. The own engine is read first:
entries that arrive in between can only reduce the lag. While the peer is unreachable, entries are counted
from its last known position; for a stream that was not compared, from where the link had sent it, or since
the link was lost.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import CLOCK_BOUND_MS, Id
from braidstream.model.region import Region
from braidstream.model.strand import Strand
from braidstream.observability.events import emit
from braidstream.operations.membership import note_behind
from braidstream.plan.plan import send_one
from braidstream.replication.endpoint import Endpoint, PlanRunner
from braidstream.replication.heal.compare import list_ids
from braidstream.replication.link.batches import page_command
from braidstream.replication.link.stream_state import Extent, State, read_state

# ----------------------------------------------------------------------------------------------------
#
# Measures the difference of two regions' clocks: compares the engines' TIME every minute.
#
#     ours     t0 --TIME--> t1          each clock is read between two readings of our own monotonic clock,
#     theirs      t2 --TIME--> t3       so the result is off by half of both round trips at most
#
# A difference of more than a second is logged; beyond the bound of the hybrid logical clock (decision 0016)
# as an error. If a peer is that far behind, `bs:config` records it, so that MAXLEN knows the age of its
# entries.

EVERY_S: Final = 60.0
# After a node of a cluster was lost.
AGAIN_S: Final = 1.0
LOGGED_MS: Final = 1_000


async def watch_clock(source: Endpoint, target: Endpoint, there: Region, note: Callable[[int], None]) -> None:
    """Measure until the link ends. there: the target's region; note: called with each result."""
    while True:
        try:
            ahead_ms, error_ms = await measure(source, target)
        except BraidError as error:
            if not source.spares(error) and not target.spares(error):
                raise
            await asyncio.sleep(AGAIN_S)
            continue
        note(ahead_ms)
        apart_ms = abs(ahead_ms) - error_ms
        beyond = apart_ms > CLOCK_BOUND_MS
        if apart_ms > LOGGED_MS:
            event = "clock.apart" if beyond else "clock.skew"
            emit(event, peer=there.name, peer_ahead_s=f"{ahead_ms / 1000:+.1f}")
        if source.is_cluster:  # its facts are for clients, and a library holds them
            await asyncio.sleep(EVERY_S)
            continue
        with contextlib.suppress(ReplyError):  # full, or read-only: try again in a minute
            await source.run(note_behind(there.writer, max(0, -ahead_ms) if beyond else 0))
        await asyncio.sleep(EVERY_S)


async def measure(source: PlanRunner, target: PlanRunner) -> tuple[int, int]:
    """By how many milliseconds the target's clock is ahead of the source's, and the maximum error."""
    ours, theirs = await _read(source), await _read(target)
    return round(theirs[0] - ours[0]), round(theirs[1] + ours[1])


async def _read(engine: PlanRunner) -> tuple[float, float]:
    """An engine's clock minus our monotonic clock, and the maximum error, in milliseconds."""
    clock = asyncio.get_running_loop().time
    before = clock()
    seconds, micros = await engine.run(send_one(("TIME",), resend=True))
    after = clock()
    middle = (before + after) / 2
    return int(seconds) * 1000 + int(micros) / 1000 - middle * 1000, (after - before) * 500


# ----------------------------------------------------------------------------------------------------
# Peer lag

# How many streams are compared at once; the rest is estimated from these.
SAMPLE: Final = 32
# The most streams that may differ, and streams with a cached position of the peer.
MOST: Final = 100_000
REMEMBERED: Final = 10_000
# Errors that are about one stream: what its own users may have done to its keys.
_OF_A_STREAM: Final = frozenset(("DAMAGED", "BSDAMAGED", "WRONGTYPE"))

# Of each own strand, when the peer last had all of it: its last ID, and how many entries it ever had here
# and there. The two counts differ: a region that joined later never had what was trimmed before.
Ends = dict[Strand, tuple[Id, int, int]]


@dataclass(frozen=True, slots=True)
class Behind:
    """What a peer lacks. oldest_ms: the time in the ID of the oldest such entry; 0 if none is known."""

    entries: int = 0
    oldest_ms: int = 0

    def age_ms(self, now_ms: int) -> int:
        return max(0, now_ms - self.oldest_ms) if self.oldest_ms else 0


class Lag:
    """The lag of one peer. behind: as last measured; None before the first sweep."""

    def __init__(self, writer: int = 0) -> None:
        self.writer = writer  # ours
        self.behind: Behind | None = None
        self._is_unread = False
        self._lost: tuple[Callable[[Strand], Id | None], Id] = (lambda strand: None, ids.ZERO)
        self._changed: OrderedDict[bytes, int] = OrderedDict()
        self._ends: OrderedDict[bytes, Ends] = OrderedDict()
        # From where a strand was counted, and how many entries had been added up to there.
        self._counted: OrderedDict[Strand, tuple[Id, int]] = OrderedDict()
        self._stamps = count()

    def changed(self, name: bytes) -> None:
        """A stream got entries; called for every push of the engine."""
        self._changed[name] = next(self._stamps)
        if len(self._changed) > MOST:
            self._changed.popitem(last=False)

    def lost(self, sent: Callable[[Strand], Id | None], now_ms: int) -> None:
        """The peer is unreachable from now on. sent: up to where a strand was sent, if the link knows."""
        self._lost = sent, (now_ms, 0)
        self._is_unread = False

    def unread(self, since_ms: int) -> None:
        """The peer answers, and cannot be read; it was last measured then. What a link has sent does not
        count, because such a peer refuses it."""
        if not self._is_unread:
            self.lost(lambda strand: None, since_ms)
            self._is_unread = True

    async def measure(self, source: PlanRunner, target: PlanRunner | None) -> None:
        """Compare some of the streams that changed. target: None while the peer is unreachable."""
        names = [name for _, name in zip(range(SAMPLE), self._changed, strict=False)]
        if not names:
            self.behind = Behind()
            return
        found = await asyncio.gather(*(self._look_if_sound(name, source, target) for name in names))
        self._is_unread = self._is_unread and target is None
        missing = [each for each in found if each.entries]
        rest = len(self._changed) - sum(1 for name in names if name in self._changed)
        entries = sum(each.entries for each in missing)
        # The streams that were not compared count with the average of these.
        entries += entries * rest // len(names)
        ages = [each.oldest_ms for each in missing if each.oldest_ms]
        self.behind = Behind(entries, min(ages, default=0))

    async def _look_if_sound(self, name: bytes, source: PlanRunner, target: PlanRunner | None) -> Behind:
        """A stream that is damaged here or there is not counted: it hides the lag of no other."""
        try:
            return await self._look(name, source, target)
        except ReplyError as error:
            if error.code not in _OF_A_STREAM:
                raise
            return Behind()

    async def _look(self, name: bytes, source: PlanRunner, target: PlanRunner | None) -> Behind:
        stamp = self._changed[name]
        self._changed.move_to_end(name)
        home = Strand(name, keys.GENERATED, self.writer)
        ours = await source.run(read_state(name, [home], []))
        own = {strand: extent for strand, extent in ours.strands.items() if strand.writer == self.writer}
        theirs = None if target is None else await target.run(read_state(name, ours.registry.strands, []))
        missing = [await self._missing(strand, extent, source, theirs) for strand, extent in own.items()]
        entries = sum(each.entries for each in missing)
        if not entries and theirs is not None:
            if self._changed.get(name) == stamp:
                del self._changed[name]
            self._remember(own, theirs)
        ages = [each.oldest_ms for each in missing if each.oldest_ms]
        return Behind(entries, min(ages, default=0))

    async def _missing(
        self, strand: Strand, ours: Extent, source: PlanRunner, theirs: State | None
    ) -> Behind:
        """The entries of one strand that the peer lacks."""
        known = self._ends.get(strand.name, {}).get(strand)
        copy = None if theirs is None else theirs.strands.get(strand)
        end = self._last_seen(strand) if theirs is None else theirs.end(strand)
        if end is None or ours.tail is None or end >= ours.tail:
            return Behind()
        first = await source.run(send_one(page_command(strand, end, 1), resend=True))
        if not first:
            return Behind()
        oldest_ms = ids.native(first[0][0])[0] if strand.has_generated_ids else 0
        if ours.first is not None and end < ours.first:
            return Behind(ours.length, oldest_ms)
        if known is not None:
            came = 0 if copy is None else copy.added - known[2]
            entries = ours.added - known[1] - came
        elif copy is not None and copy.whole and ours.whole:
            entries = ours.added - copy.added
        elif copy is None:
            entries = await self._count(strand, end, ours, source)
        else:
            missing, following = await source.run(list_ids(strand, ids.after(end) or end, ids.LAST))
            entries = len(missing) if following is None else ours.added - copy.added
        return Behind(max(1, min(ours.length, entries)), oldest_ms)

    async def _count(self, strand: Strand, end: Id, ours: Extent, source: PlanRunner) -> int:
        """The entries after `end`: listed once, from then on those that were added are counted too."""
        known, before = self._counted.get(strand, (ids.ZERO, 0))
        if known != end:
            before, at = ours.added, ids.after(end)
            while at is not None:
                page, at = await source.run(list_ids(strand, at, ids.LAST))
                before -= len(page)
            self._counted[strand] = end, before
            if len(self._counted) > REMEMBERED:
                self._counted.popitem(last=False)
        return ours.added - before

    def _last_seen(self, strand: Strand) -> Id:
        """Where the peer was when it was last reached."""
        if (known := self._ends.get(strand.name, {}).get(strand)) is not None:
            return known[0]
        sent, since = self._lost
        return sent(strand) or since

    def _remember(self, own: dict[Strand, Extent], theirs: State) -> None:
        """Cache the positions of a stream that the peer has completely."""
        ends = Ends()
        for strand, extent in own.items():
            copy = theirs.strands.get(strand)
            ends[strand] = extent.last, extent.added, copy.added if copy else 0
        self._ends[theirs.name] = ends
        self._ends.move_to_end(theirs.name)
        if len(self._ends) > REMEMBERED:
            self._ends.popitem(last=False)
