"""Streams that wait for a link: each once, with its greatest need and its earliest time.

Many tasks wait in `take`. A stream that is due wakes one of them, and one timer waits for the next that will
be: with hundreds of hints a second, waking all of them would cost more than the replication itself.
"""

import asyncio
import heapq
from collections import deque
from enum import IntEnum
from itertools import count


class Need(IntEnum):
    """What a stream needs. The greater includes the less."""

    FOLLOW = 1  # entries were added
    SYNC = 2  # anything may have changed
    RELAY = 3  # also what other regions wrote may be missing there


class Queue:
    """`add` is cheap and called for every hint; `take` waits for a stream that is due and not taken."""

    def __init__(self) -> None:
        self._needs: dict[bytes, Need] = {}
        self._due: dict[bytes, float] = {}
        self._heap: list[tuple[float, int, bytes]] = []
        self._taken: set[bytes] = set()
        self._order = count()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.relays = 0  # how many streams wait for a relay that is due

    def __len__(self) -> int:
        return len(self._needs) + len(self._taken)

    def add(self, name: bytes, need: Need, delay_s: float = 0.0) -> None:
        """Add a need; the earlier time and the greater need win."""
        due = asyncio.get_running_loop().time() + delay_s if delay_s else 0.0
        has = self._needs.get(name)
        self.relays -= self._is_due_relay(name)
        if has is None or need > has:
            self._needs[name] = need
        if has is None or due < self._due[name]:
            self._due[name] = due
            heapq.heappush(self._heap, (due, next(self._order), name))
            self._wake()
        self.relays += self._is_due_relay(name)

    async def take(self) -> tuple[bytes, Need]:
        """The next stream, for exclusive use until `done`."""
        while (due := self._next_due()) is None or due > asyncio.get_running_loop().time():
            await self._woken()
        _, _, name = heapq.heappop(self._heap)
        self._taken.add(name)
        self.relays -= self._is_due_relay(name)
        del self._due[name]
        need = self._needs.pop(name)
        self._wake()  # there may be more
        return name, need

    def done(self, name: bytes) -> None:
        self._taken.discard(name)
        if name in self._needs:  # it was added while it was taken
            heapq.heappush(self._heap, (self._due[name], next(self._order), name))
            self._wake()

    async def _woken(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wake()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was woken, and will not take anything
                self._wake()
            raise

    def _wake(self) -> None:
        """Wake a task that waits, if a stream is due; else when the next one is."""
        due = self._next_due()
        while self._waiting and self._waiting[0].cancelled():
            self._waiting.popleft()
        if due is None or not self._waiting:
            return
        if due == 0.0 or due <= asyncio.get_running_loop().time():
            self._waiting.popleft().set_result(None)
        elif self._timer is None or due < self._timer.when():
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._stop_timer()
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_due_relay(self, name: bytes) -> bool:
        """Those with a delay do not count: a lost node's streams are tried again and again."""
        return self._needs.get(name) is Need.RELAY and self._due[name] == 0.0

    def _next_due(self) -> float | None:
        """When the first stream is due that is not taken; None if there is none."""
        while self._heap:
            due, _, name = self._heap[0]
            if name not in self._taken and self._due.get(name) == due:
                return due
            heapq.heappop(self._heap)  # `done` adds it again, or it is elsewhere in the heap
        return None
