"""Streams that wait for a link: each once, with its greatest need and its earliest time."""

import asyncio
import heapq
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
        self._changed = asyncio.Event()
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
            self._changed.set()
        self.relays += self._is_due_relay(name)

    async def take(self) -> tuple[bytes, Need]:
        """The next stream, for exclusive use until `done`."""
        while True:
            wait = self._ready()
            if isinstance(wait, bytes):
                self._taken.add(wait)
                self.relays -= self._is_due_relay(wait)
                del self._due[wait]
                return wait, self._needs.pop(wait)
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def done(self, name: bytes) -> None:
        self._taken.discard(name)
        if name in self._needs:  # added meanwhile
            heapq.heappush(self._heap, (self._due[name], next(self._order), name))
            self._changed.set()

    def _is_due_relay(self, name: bytes) -> bool:
        """Those with a delay do not count: a lost node's streams are tried again and again."""
        return self._needs.get(name) is Need.RELAY and self._due[name] == 0.0

    def _ready(self) -> bytes | float | None:
        """A stream that is due; or how long to wait, None for until something is added."""
        while self._heap:
            due, _, name = self._heap[0]
            if name in self._taken or self._due.get(name) != due:
                heapq.heappop(self._heap)  # `done` adds it again, or it is elsewhere in the heap
                continue
            now = asyncio.get_running_loop().time()
            if due > now:
                return due - now
            heapq.heappop(self._heap)
            return name
        return None
