"""A region as the console reads it: every read has a limit of time, bytes and round trips.

A page must not hurt the engine that it shows. So nothing here runs KEYS, reads a whole stream, or waits for
ever, and at most a few pages read one region at once.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from braidstream.clients.aio_cluster import RedisCluster
from braidstream.clients.shared import Conversation
from braidstream.clusters.slots import SLOTS
from braidstream.config import RegionConfig
from braidstream.engine.address import Address, parse_address
from braidstream.engine.connection import Connection, connect
from braidstream.errors import BraidError, LostError
from braidstream.lua import require_current
from braidstream.operations.open_region import CLIENT_ERRORS
from braidstream.operations.streams import list_streams
from braidstream.plan.cache import StreamCache
from braidstream.plan.lookup import INFO_CLUSTER, is_cluster, read_server
from braidstream.plan.plan import Batch, Plan, Replies, altered, arun
from braidstream.plan.view import View
from braidstream.replication.endpoint import ClusterEndpoint, spares_others

# ----------------------------------------------------------------------------------------------------
#
# A region that is a cluster, as the console reads it. `RegionAccess` has the limits of time.
#
# reads            over connections with a limit of bytes; a node that is lost is reached again
# conversations    with a cluster client, which may WATCH keys while slots move; without a limit of bytes

# How long a page waits for one primary.
_NODE_WITHIN_S: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Names of streams, and where to continue; 0 at the end. skipped: primaries that do not answer."""

    cursor: int
    names: list[bytes]
    skipped: tuple[str, ...] = ()


class ClusterAccess:
    """url: any node; its user is that of all nodes."""

    def __init__(self, url: str, address: Address, most_bytes: int) -> None:
        self._url, self._cluster = url, ClusterEndpoint(address, most_bytes)
        self._watch: asyncio.Task[None] | None = None
        self._client: Any = None

    async def send(self, batch: Batch) -> Replies:
        return await self._cluster.send(batch)

    async def connect(self) -> None:
        await self._cluster.connect()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        """Until no primary is left. The next page connects again."""
        with contextlib.suppress(BraidError):
            await self._cluster.watch()

    async def list_streams(self, cursor: int, count: int) -> Page:
        """As the plan of this name, primary after primary. A cursor has the lowest slot of the primary, which
        a replica that takes over has too. One that does not answer is skipped."""
        inner, slot = divmod(cursor, SLOTS)
        left = [each for each in self._cluster.nodes_by_slot if each[0] >= slot]
        if not left:
            return Page(0, [])
        (first, node), *others = left
        following = others[0][0] if others else 0
        try:
            async with asyncio.timeout(_NODE_WITHIN_S):
                if node.waiting_s > _NODE_WITHIN_S:
                    raise TimeoutError
                inner, names = await arun(list_streams(inner if first == slot else 0, count), node.send)
        except (TimeoutError, BraidError) as error:
            if not (isinstance(error, TimeoutError) or spares_others(error, self._cluster)):
                raise
            return Page(following, [], (str(node.address),))
        return Page(inner * SLOTS + first if inner else following, names)

    async def converse(self, make: Conversation[T]) -> T:
        if self._client is None:
            self._client = RedisCluster.from_url(self._url)
        try:
            found: T = await self._client.converse(make)
            return found
        except BraidError:
            raise
        except (OSError, *CLIENT_ERRORS) as error:
            raise BraidError(str(error)) from None

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._cluster.close()
        if self._client is not None:
            await self._client.aclose()


# ----------------------------------------------------------------------------------------------------
# Access

WITHIN_S: Final = 3.0
# A larger reply ends the connection.
MOST_BYTES: Final = 32 * 2**20
MOST_TRIPS: Final = 100
_AT_ONCE: Final = 8


class BoundError(BraidError):
    """A page would have to read more than the console may."""

    code = "BOUND"


def bounded(plan: Plan[T], most: int = MOST_TRIPS) -> Plan[T]:
    """The same plan. It ends with BoundError before it makes more than `most` round trips."""
    numbers = count(1)

    def counted(batch: Batch) -> Batch:
        if next(numbers) > most:
            raise BoundError(
                f"this needs more than {most} round trips. The console stops here; use the command line."
            )
        return batch

    return altered(plan, counted)


class RegionAccess:
    """One region, a server or a cluster. Connections are opened when needed, and again when lost."""

    def __init__(self, region: RegionConfig) -> None:
        self.id, self.name = region.id, region.name
        self._url, self._address = region.url, parse_address(region.url)
        self._conn: Connection | None = None
        self._cluster: ClusterAccess | None = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._cache = StreamCache()
        self._idle = list[Connection]()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan that only reads. Plans of several pages share one connection."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                reached = await self._connected()
                return await arun(bounded(plan), reached.send)
        except TimeoutError:
            raise self._silent(wrote=False) from None

    async def list_streams(self, cursor: int, count: int) -> Page:
        """A page of names of streams. See operations/streams.py."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                reached = await self._connected()
                if isinstance(reached, ClusterAccess):
                    return await reached.list_streams(cursor, count)
                return Page(*await arun(list_streams(cursor, count), reached.send))
        except TimeoutError:
            raise self._silent(wrote=False) from None

    def _silent(self, *, wrote: bool) -> LostError:
        return LostError(self.name, f"no answer within {WITHIN_S:g} s", wrote=wrote)

    async def converse(self, make: Conversation[T]) -> T:
        """Run a plan over the plans of commands, as a client does. It may write, and WATCH keys: so it has
        a connection of its own."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                reached = await self._connected()
                if isinstance(reached, ClusterAccess):
                    return await reached.converse(lambda view_of: bounded(make(view_of)))
                async with self._own_connection() as conn:
                    return await arun(bounded(self._viewed(make)), conn.send)
        except TimeoutError:
            raise self._silent(wrote=True) from None

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

    async def _connected(self) -> "Connection | ClusterAccess":
        """The server says whether it is a node of a cluster."""
        async with self._opening:
            if self._cluster is None and (self._conn is None or self._conn.lost is not None):
                conn = await self._open()
                [info] = await conn.send(Batch([INFO_CLUSTER], resend=True, attempt=True))
                if is_cluster(info):
                    conn.close()
                    self._cluster = ClusterAccess(self._url, self._address, MOST_BYTES)
                else:
                    self._conn = conn
            if self._cluster is not None:
                await self._cluster.connect()
                return self._cluster
            assert self._conn is not None
            return self._conn

    async def _open(self) -> Connection:
        """It closes itself if the server says nothing for too long: its host may be gone."""
        return await connect(self._address, silence_s=WITHIN_S, most_bytes=MOST_BYTES)

    async def close(self) -> None:
        for conn in (self._conn, *self._idle):
            if conn is not None:
                conn.close()
        if self._cluster is not None:
            await self._cluster.close()
