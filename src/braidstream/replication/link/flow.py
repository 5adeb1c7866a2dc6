"""Sends the entries of one stream to one peer, pages ahead of replies; what a link caches of the stream.

    source   page 1   page 2   page 3
    target            batch 1a 1b 2a 2b ...      pipelined: no waiting for replies

The flow knows the target's position after a batch when it sends the batch, not when the reply arrives, so a
long round trip does not slow it down. If the target refuses a batch, it also refuses those after it (they
would leave a gap), and the flow has failed: its link reads the target's position again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import CopyTarget, Strand
from braidstream.plan.plan import Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.link import batches
from braidstream.replication.link.pages import Ahead, Answer, Pages, Place
from braidstream.replication.link.stream_state import Extent, causal

WINDOW_BYTES: Final = 8 * 1024 * 1024


class Window:
    """Bounds the bytes in flight to the target, over all streams. First come, first served, whatever the
    size: otherwise small batches would starve a large one. sent_entries, sent_bytes: all so far.
    """

    def __init__(self, most: int = WINDOW_BYTES) -> None:
        self.most, self.used = most, 0
        self.sent_entries = self.sent_bytes = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Condition()

    def count(self, applied: int, size: int) -> None:
        """Count a batch that arrived, unless another link was faster."""
        if applied:
            self.sent_entries += applied
            self.sent_bytes += size

    async def enter(self, size: int) -> None:
        async with self._turn, self._changed:
            await self._changed.wait_for(lambda: not self.used or self.used + size <= self.most)
            self.used += size

    async def leave(self, size: int) -> None:
        async with self._changed:
            self.used -= size
            self._changed.notify_all()


@dataclass(slots=True)
class Flow:
    """One stream to one target.

    home: the target's own writer.
    merged: the source's registry that the target has; entries written after a newer one wait for a merge.
    ends: the target's positions once everything in flight has arrived.
    bell: the stamp of the target's bell, for strands that are new there.
    on_failure: called when the target refuses a batch.
    arrived: by writer, how many entries the target has appended.
    lock: held while entries are read and sent, not while they are in flight.
    """

    target: PlanRunner
    pages: Pages
    window: Window
    home: int
    merged: dict[bytes, bytes] = field(default_factory=dict)
    ends: dict[Strand, Id] = field(default_factory=dict)
    bell: bytes = b""
    on_failure: Callable[[], None] = lambda: None
    failed: BaseException | None = None
    sent: int = 0
    arrived: Counter[int] = field(default_factory=Counter)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _users: int = 0  # tasks that have the lock or wait for it, without bundles
    _batches: int = 0
    _appetite: dict[Strand, batches.Appetite] = field(default_factory=dict)
    _flying: set["asyncio.Task[Any]"] = field(default_factory=set)

    @property
    def there(self) -> CopyTarget:
        return CopyTarget(self.home, self.bell)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            async with self.lock:
                yield
        finally:
            self._users -= 1

    def start(self, strand: Strand, end: Id, width: int, behind: int = 0) -> None:
        """Add a strand to the flow, after `end`. behind: about how many entries the target lacks."""
        self.ends.setdefault(strand, end)
        self._appetite.setdefault(strand, batches.Appetite.guess(width, behind))

    @property
    def idle_at(self) -> int | None:
        """How many batches were sent so far; None while some are in flight."""
        return None if self._flying else self._batches

    async def meet(self, strand: Strand, end: Id, idle_at: int | None) -> None:
        """Go to `end`, the target's position. Forward: another link sent that. Back: the target has lost
        entries. idle_at: before the position was read.

        Not back if batches were in flight then, or were sent since: they may have arrived after that read.
        Resending is harmless, but may be much.
        """
        async with self._exclusive():
            is_idle = idle_at is not None and idle_at == self.idle_at
            if end > self._end(strand) or is_idle:
                self.ends[strand] = end

    async def pump(self, strand: Strand, *, alone: bool = False) -> None:
        """Send the strand's new entries; BSMOVED if the registry must be merged first.

        alone: see Ahead.
        """
        async with self._exclusive():
            ahead = Ahead(self.pages, strand, self._end(strand), self._appetite[strand], alone=alone)
            try:
                while answer := await ahead.take():
                    parts, meta = answer
                    if not self._has_merged(meta):
                        raise ReplyError("BSMOVED the stream changed otherwise than by appends")
                    for part in parts:
                        await self._take_off(strand, part)
            finally:
                ahead.close()

    def _has_merged(self, meta: dict[bytes, bytes]) -> bool:
        return meta == self.merged or causal(meta) == causal(self.merged)

    async def reach(self, strand: Strand, upto: Id) -> None:
        """Raise the target's last ID to the source's: the entries after the last one were deleted."""
        async with self._exclusive():
            if (after := self._end(strand)) < upto:
                await self.window.enter(0)
                self._send(strand, batches.raise_last(strand, after, upto, self.there), 0)
                self.ends[strand] = upto

    def _end(self, strand: Strand) -> Id:
        """The target's position after the batches in flight. BSMOVED if a sync has removed the strand."""
        if self.failed is not None:
            raise self.failed
        if strand not in self.ends:
            raise ReplyError("BSMOVED the strand no longer flows")
        return self.ends[strand]

    async def landed(self) -> None:
        """Wait for everything in flight; raise the first error."""
        await self._settle()
        if self.failed is not None:
            raise self.failed

    # For link.py: it takes the lock after `next_place`, then reads and sends.

    def next_place(self) -> Place | None:
        """Where to read new entries; None if the stream must go alone, also because a task has the lock or
        waits for it. (A lock that was just released for the next task is not `locked`.)"""
        if self.failed is not None or len(self.ends) != 1 or self._users or self.lock.locked():
            return None
        [(strand, end)] = self.ends.items()
        return (strand, end) if self._appetite[strand].is_modest else None

    def part_of(self, place: Place, answer: Answer) -> batches.Parsed | None:
        """The entries that were read there, maybe none; None if the stream must go alone."""
        strand, after = place
        parts, meta = answer
        if self.failed is not None or self.ends.get(strand) != after or not self._has_merged(meta):
            return None
        if not parts:
            self._appetite[strand].had(0, 0)
            return batches.Parsed([], 0)
        part = parts[0]
        if len(parts) > 1 or not isinstance(part, batches.Parsed) or part.is_wide or part.is_hostile:
            return None
        self._appetite[strand].had(len(part), part.size)
        return part

    def note_sent(self, strand: Strand, part: batches.Part) -> None:
        self.ends[strand] = part.last
        self.sent += len(part)

    async def _take_off(self, strand: Strand, part: batches.Part) -> None:
        after = self._end(strand)
        await self.window.enter(part.size)
        if isinstance(part, batches.Parsed) and part.is_wide:
            # A native append has no guard against gaps: nothing else may be in flight.
            await self._settle()
            self._send(strand, batches.append_wide(strand, after, part, self.there), part.size)
            await self._settle()
        else:
            self._send(strand, batches.append(strand, after, part, self.there), part.size)
        self.note_sent(strand, part)

    async def _settle(self) -> None:
        """Wait until nothing is in flight. Who is cancelled here stops no batch: it may have entries of other
        streams."""
        while self._flying:
            await asyncio.wait(self._flying)

    def _send(self, strand: Strand, plan: Plan[int], size: int) -> None:
        """What is larger than a bundle, or not a plain append."""

        def alone() -> Plan[list[int | ReplyError]]:
            return [(yield from plan)]

        dispatch(self.target, self.window, [(self, strand, size)], alone())

    def took_off(self, task: "asyncio.Task[Any]") -> None:
        self._batches += 1
        self._flying.add(task)

    def arrived_by(
        self, task: "asyncio.Task[Any]", strand: Strand, size: int, reply: int | BaseException
    ) -> None:
        """reply: how many entries the target has appended, or an error."""
        self._flying.discard(task)
        if isinstance(reply, BaseException):
            self._fail(reply)
        else:
            self.window.count(reply, size)
            self.arrived[strand.writer] += reply

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self.on_failure()


def dispatch(
    target: PlanRunner,
    window: Window,
    parcels: Sequence[tuple[Flow, Strand, int]],
    plan: Plan[list[int | ReplyError]],
) -> None:
    """Send parcels in one exchange. They are in the window already, and in flight when it returns.

    parcels: the flow, strand and size of each. plan: returns how many entries were appended for each, or its
    error.
    """

    async def send() -> list[int | ReplyError]:
        try:
            return await target.run(plan)
        finally:
            await window.leave(sum(size for _, _, size in parcels))

    task = asyncio.ensure_future(send())
    task.add_done_callback(partial(_arrived, parcels))
    for flow, _, _ in parcels:
        flow.took_off(task)


def _arrived(
    parcels: Sequence[tuple[Flow, Strand, int]], task: "asyncio.Task[list[int | ReplyError]]"
) -> None:
    error = ReplyError("BSMOVED the link was stopped") if task.cancelled() else task.exception()
    replies: Sequence[int | BaseException] = task.result() if error is None else [error] * len(parcels)
    for (flow, strand, size), reply in zip(parcels, replies, strict=True):
        flow.arrived_by(task, strand, size, reply)


# ----------------------------------------------------------------------------------------------------
# What a round of a link did, and what the link keeps of a stream until the next one.


@dataclass(slots=True)
class Progress:
    """What a round did.

    healed: entries restored at the source, which had lost them.
    waiting: the journal names entries that have not arrived at the target yet; another link brings them.
    restless: a group of the source has unread or pending entries, in these strands; XACK causes no push.
    journal: our own, of this stream.
    """

    entries: int = 0
    merged: bool = False
    trimmed: int = 0
    deletions: int = 0
    healed: int = 0
    waiting: bool = False
    restless: bool = False
    strands: tuple[Strand, ...] = ()
    journal: Extent | None = None

    @property
    def moved(self) -> bool:
        return bool(self.entries or self.merged or self.trimmed or self.deletions or self.healed)


@dataclass(slots=True)
class LinkCache:
    """What a link caches of one stream between two rounds. The engine functions check it on each write.

    merged, theirs: the two registries after the last merge; while both are unchanged there is nothing to
    merge.
    started: a round has put all our strands into the flow. Until then it does not see every new entry.
    has_groups: new entries make the source restless.
    marks: our fields about losses when we last looked for losses; None: not yet.
    owes: the target lacks restored entries, and deletions of them may be in transit.
    applied: how far the target has applied our journal.
    """

    flow: Flow
    merged: dict[bytes, bytes] = field(default_factory=dict)
    theirs: dict[bytes, bytes] = field(default_factory=dict)
    started: bool = False
    has_groups: bool = False
    marks: dict[bytes, bytes] | None = None
    owes: bool = False
    applied: Id = ids.ZERO
