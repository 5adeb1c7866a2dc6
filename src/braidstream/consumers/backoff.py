"""Entries that wait for their next attempt."""

import heapq
from collections.abc import Iterator
from itertools import count
from math import inf

from braidstream.consumers.held import Held


class Backoff:
    """A heap by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Held]] = []
        self._numbers = count()

    def add(self, held: Held, until: float) -> None:
        heapq.heappush(self._heap, (until, next(self._numbers), held))

    def over(self, now: float) -> Iterator[Held]:
        """Those that have waited long enough. They leave."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    @property
    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else inf
