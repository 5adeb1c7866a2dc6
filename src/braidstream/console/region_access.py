"""A region as the console reads it: every read has a limit of time, bytes and round trips.

A page must not hurt the engine that it shows. So nothing here runs KEYS, reads a whole stream, or waits for
ever, and at most a few pages read one region at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from braidstream.clients.shared import Conversation
from braidstream.config import RegionConfig
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.lua import require_current
from braidstream.net.wire import Connection, connect, parse_address
from braidstream.protocol.cache import StreamCache
from braidstream.protocol.identify import read_server
from braidstream.protocol.plan import Plan, arun
from braidstream.protocol.stream_view import View

WITHIN_S: Final = 3.0
# A larger reply ends the connection.
MOST_BYTES: Final = 32 * 2**20
MOST_TRIPS: Final = 100
_AT_ONCE: Final = 8

T = TypeVar("T")


class BoundError(BraidError):
    """A page would have to read more than the console may."""

    code = "BOUND"


def bounded(plan: Plan[T], most: int = MOST_TRIPS) -> Plan[T]:
    """The same plan. It ends with BoundError before it makes more than `most` round trips."""
    try:
        batch = next(plan)
        for _ in range(most):
            try:
                replies = yield batch
            except ReplyError as error:
                batch = plan.throw(error)
            else:
                batch = plan.send(replies)
    except StopIteration as stop:
        found: T = stop.value
        return found
    plan.close()
    raise BoundError(
        f"this needs more than {most} round trips. The console stops here; use the command line."
    )


class RegionAccess:
    """One region. Connections are opened when they are needed, and again when they are lost."""

    def __init__(self, region: RegionConfig) -> None:
        self.id, self.name = region.id, region.name
        self._address = parse_address(region.url)
        self._conn: Connection | None = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._cache = StreamCache()
        self._idle = list[Connection]()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan that only reads. Plans of several pages share one connection."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                conn = await self._connected()
                return await arun(bounded(plan), conn.send)
        except TimeoutError:
            raise LostError(self.name, f"no answer within {WITHIN_S:g} s", wrote=False) from None

    async def converse(self, make: Conversation[T]) -> T:
        """Run a plan over the plans of commands, as a client does. It may write, and WATCH keys: so it has
        a connection of its own."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room, self._own_connection() as conn:
                return await arun(bounded(self._viewed(make)), conn.send)
        except TimeoutError:
            raise LostError(self.name, f"no answer within {WITHIN_S:g} s", wrote=True) from None

    def _viewed(self, make: Conversation[T]) -> Plan[T]:
        region, server = yield from read_server()
        self._cache.check_server(region, server, time.monotonic())
        self._cache.learn_region(require_current(region.require_open()), time.monotonic())
        return (yield from make(partial(View.of, self._cache)))

    @asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[Connection]:
        """A connection that was used before, or a new one. After an error it is closed."""
        self._idle = [each for each in self._idle if each.lost is None]
        conn = self._idle.pop() if self._idle else await self._open()
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        self._idle.append(conn)

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._conn is None or self._conn.lost is not None:
                self._conn = await self._open()
            return self._conn

    async def _open(self) -> Connection:
        """It closes itself if the server says nothing for too long: its host may be gone."""
        return await connect(self._address, silence_s=WITHIN_S, most_bytes=MOST_BYTES)

    async def close(self) -> None:
        for conn in (self._conn, *self._idle):
            if conn is not None:
                conn.close()
