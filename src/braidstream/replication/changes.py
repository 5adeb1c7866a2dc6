"""Which registries a job of the daemon has to read: all of them when it starts and now and then, and those
that have changed. So the job stores nothing.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.feed import all_streams

# How often all streams are read. Changes are noticed at once; this is for those that were missed.
_ALL_EVERY_S: Final = 300.0
_AT_ONCE: Final = 500

Read = Callable[[list[bytes]], Awaitable[None]]


class Changes:
    """`look` is called again and again. read: gets some names at a time."""

    def __init__(self, source: PlanRunner, read: Read) -> None:
        self._source, self._read = source, read
        self._changed = set[bytes]()
        self._read_all_s = -math.inf

    def add(self, name: bytes) -> None:
        """The registry of a stream has changed."""
        self._changed.add(name)

    def missed(self) -> None:
        """Changes may have been missed: read all streams again."""
        self._read_all_s = -math.inf

    async def look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._read_all_s >= _ALL_EVERY_S:
            await self._read_all(now_s)
        changed, self._changed = self._changed, set()
        try:
            await self._read_some(changed)
        except BaseException:
            self._changed |= changed
            raise

    async def _read_all(self, now_s: float) -> None:
        self._read_all_s = now_s  # before the read: `missed` may be called during it
        try:
            async for names in all_streams(self._source):
                await self._read_some(names)
        except BaseException:
            self.missed()
            raise

    async def _read_some(self, names: Iterable[bytes]) -> None:
        listed = [*names]
        for first in range(0, len(listed), _AT_ONCE):
            await self._read(listed[first : first + _AT_ONCE])
