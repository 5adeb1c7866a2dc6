"""A region as the console reads it: every read has a limit of time, bytes and round trips.

A page must not hurt the engine that it shows. So nothing here runs KEYS, reads a whole stream, or waits for
ever, and at most a few pages read one region at once.
"""

import asyncio
from typing import Final, TypeVar

from braidstream.clients.aio import Redis
from braidstream.clients.shared import Conversation
from braidstream.config import RegionConfig
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.net.wire import Connection, connect, parse_address
from braidstream.protocol.plan import Plan, arun

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
        self._client = Redis.from_url(
            region.url, socket_timeout=WITHIN_S, socket_connect_timeout=WITHIN_S, max_connections=_AT_ONCE + 1
        )

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan that only reads. Plans of several pages share one connection."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                conn = await self._connected()
                return await arun(bounded(plan), conn.send)
        except TimeoutError:
            raise LostError(self.name, f"no answer within {WITHIN_S:g} s", wrote=False) from None

    async def converse(self, make: Conversation[T]) -> T:
        """Run a plan over the plans of commands, as a client does. It may write."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                return await self._client.converse(lambda view_of: bounded(make(view_of)))
        except TimeoutError:
            raise LostError(self.name, f"no answer within {WITHIN_S:g} s", wrote=True) from None

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._conn is None or self._conn.lost is not None:
                self._conn = await connect(self._address, most_bytes=MOST_BYTES)
            return self._conn

    async def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
        await self._client.aclose()
