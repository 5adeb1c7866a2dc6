"""Streams that wait for a link: each once, with its greatest need and its earliest time.

Many tasks wait in `take`. A stream that is due goes to one of them, and one timer waits for the next that
will be: with hundreds of hints a second, waking all of them would cost more than the replication itself.

    now    a  b                  hints: at once
    tick   c  d  e  f            with a delay: all that are due at one tick start in the same turn of the
    tick   g  h                  loop, so their commands share a write to each engine, and the replies a read
"""

import asyncio
import heapq
from collections import deque
from enum import IntEnum
from itertools import count
from math import ceil
from typing import Final

# How many tasks of a link take single streams from one queue.
AT_ONCE: Final = 32
# Delays end at multiples of this.
TICK_S: Final = 0.05
# uvloop counts whole milliseconds: a timer for the rest of one would ring again and again.
_EARLY_S: Final = 0.001


class Need(IntEnum):
    """What a stream needs. The greater includes the less."""

    FOLLOW = 1  # entries were added
    SYNC = 2  # anything may have changed
    RELAY = 3  # also what other regions wrote may be missing there


class Queue:
    """`add` is cheap and called for every hint; `take` waits for a stream that is due and not taken.

    relays: how many streams wait for a relay, without a delay.
    """

    def __init__(self) -> None:
        self._needs: dict[bytes, Need] = {}
        self._due: dict[bytes, float] = {}  # 0.0: without a delay
        self._heap: list[tuple[float, int, bytes]] = []
        self._taken: set[bytes] = set()
        self._order = count()
        self._waiting: deque[asyncio.Future[tuple[bytes, Need]]] = deque()
        self._gathering = asyncio.Lock()
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0  # of the timer: uvloop's own does not know it, if it rings at once
        self._at_once = 0  # how many streams wait without a delay
        self.relays = 0

    def __len__(self) -> int:
        return len(self._needs) + len(self._taken)

    @property
    def in_work(self) -> int:
        """How many streams are taken, or wait without a delay: that many tasks have something to do."""
        return len(self._taken) + self._at_once

    def is_taken(self, name: bytes) -> bool:
        return name in self._taken

    def add(self, name: bytes, need: Need, delay_s: float = 0.0) -> None:
        """Add a need; the earlier time and the greater need win."""
        has = self._needs.get(name)
        due = _tick_after(delay_s) if delay_s else 0.0
        self._count(name, -1)
        if has is None or need > has:
            self._needs[name] = need
        is_earlier = has is None or due < self._due[name]
        if is_earlier:
            self._due[name] = due
        self._count(name, +1)
        if is_earlier:
            heapq.heappush(self._heap, (due, next(self._order), name))
            self._hand_out()

    async def take(self) -> tuple[bytes, Need]:
        """The next stream, for exclusive use until `done`."""
        waiter: asyncio.Future[tuple[bytes, Need]] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._hand_out()
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it got a stream, and will not work on it
                name, need = waiter.result()
                self.add(name, need)
                self.done(name)
            raise

    async def take_some(self, most: int) -> list[tuple[bytes, Need]]:
        """The next stream, and all others that are due when it comes, up to `most`. One task at a time
        waits for that."""
        async with self._gathering:
            some = [await self.take()]
            while len(some) < most and (due := self._next_due()) is not None and _is_over(due):
                some.append(self._pop())
            return some

    def will_compare(self, name: bytes) -> None:
        """The stream's state is about to be read: that finds what was heard of it so far."""
        if self._needs.get(name) is Need.SYNC and self._due[name] == 0.0:
            self._count(name, -1)
            del self._needs[name], self._due[name]

    def done(self, name: bytes) -> None:
        self._taken.discard(name)
        if name in self._needs:  # it was added while it was taken
            heapq.heappush(self._heap, (self._due[name], next(self._order), name))
            self._hand_out()

    def _hand_out(self) -> None:
        """Give streams that are due to tasks that wait, and set the timer if one will be due for the next."""
        while (waiter := self._first_waiting()) is not None and (due := self._next_due()) is not None:
            if not _is_over(due):
                self._ring_at(due)
                return
            self._waiting.popleft()
            waiter.set_result(self._pop())

    def _first_waiting(self) -> "asyncio.Future[tuple[bytes, Need]] | None":
        while self._waiting and self._waiting[0].cancelled():
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None

    def _pop(self) -> tuple[bytes, Need]:
        """Take the first stream of the heap, which is due."""
        _, _, name = heapq.heappop(self._heap)
        self._taken.add(name)
        self._count(name, -1)
        del self._due[name]
        return name, self._needs.pop(name)

    def _ring_at(self, due: float) -> None:
        if self._timer is None or due < self._rings_at:
            self._stop_timer()
            self._timer, self._rings_at = asyncio.get_running_loop().call_at(due, self._ring), due

    def _ring(self) -> None:
        self._stop_timer()
        self._hand_out()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, name: bytes, change: int) -> None:
        """Those with a delay do not count: a lost node's streams are tried again and again."""
        if self._due.get(name) == 0.0:
            self._at_once += change
            if self._needs[name] is Need.RELAY:
                self.relays += change

    def _next_due(self) -> float | None:
        """When the first stream is due that is not taken; None if there is none."""
        while self._heap:
            due, _, name = self._heap[0]
            if name not in self._taken and self._due.get(name) == due:
                return due
            heapq.heappop(self._heap)  # `done` adds it again, or it is elsewhere in the heap
        return None


def _tick_after(delay_s: float) -> float:
    return ceil((asyncio.get_running_loop().time() + delay_s) / TICK_S) * TICK_S


def _is_over(due: float) -> bool:
    return not due or due < asyncio.get_running_loop().time() + _EARLY_S
