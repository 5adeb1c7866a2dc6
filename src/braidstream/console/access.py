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
from braidstream.engine.address import parse_address
from braidstream.engine.connection import MOST_VALUES, Connection, connect
from braidstream.errors import BraidError, LostError
from braidstream.lua import require_current
from braidstream.operations.open_region import CLIENT_ERRORS
from braidstream.operations.streams import list_streams
from braidstream.plan.cache import StreamCache
from braidstream.plan.lookup import read_server
from braidstream.plan.plan import Batch, Plan, altered, arun
from braidstream.plan.view import View
from braidstream.replication.endpoint import Endpoint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Names of streams, and where to continue; 0 at the end. skipped: primaries that do not answer."""

    cursor: int
    names: list[bytes]
    skipped: tuple[str, ...] = ()


WITHIN_S: Final = 3.0
# A larger reply ends the connection.
MOST_BYTES: Final = 32 * 2**20
MOST_TRIPS: Final = 100
# How long a page waits for one of several primaries.
_NODE_WITHIN_S: Final = 1.0
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
    """One region, a server or a cluster. Connections are opened when needed, and again when lost.

    reads            over connections with a limit of bytes
    conversations    of a server the same; of a cluster a client, which may WATCH keys while slots move
    """

    def __init__(self, region: RegionConfig) -> None:
        self.id, self.name = region.id, region.name
        self._url, self._address = region.url, parse_address(region.url)
        self._region = Endpoint(self._address, MOST_BYTES, primary=False)
        self._watch: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._cache = StreamCache()
        self._idle = list[Connection]()
        self._client: Any = None

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan that only reads. Plans of several pages share one connection."""
        async with self._reached() as region:
            return await arun(bounded(plan), region.send)

    async def list_streams(self, cursor: int, count: int) -> Page:
        """A page of names of streams (operations/streams.py), of one primary after the other.

        A cursor has the lowest slot of the primary, which a replica that takes over has too. One that does
        not answer is skipped, if there are others.
        """
        inner, slot = divmod(cursor, SLOTS)
        async with self._reached() as region:
            left = [each for each in region.nodes_by_slot if each[0] >= slot]
            if not left:
                return Page(0, [])
            (first, node), *others = left
            following = others[0][0] if others else 0
            within_s = _NODE_WITHIN_S if len(region.nodes) > 1 else WITHIN_S
            try:
                async with asyncio.timeout(within_s):
                    if node.waiting_s > within_s:
                        raise TimeoutError
                    inner, names = await node.run(list_streams(inner if first == slot else 0, count))
            except (TimeoutError, BraidError) as error:
                if not (region.spares(error) or (region.is_cluster and isinstance(error, TimeoutError))):
                    raise
                return Page(following, [], (str(node.address),))
            return Page(inner * SLOTS + first if inner else following, names)

    async def converse(self, make: Conversation[T]) -> T:
        """Run a plan over the plans of commands, as a client does. It may write, and WATCH keys: so it has
        a connection of its own."""
        async with self._reached(writes=True) as region:
            if region.is_cluster:
                return await self._converse_with_nodes(lambda view_of: bounded(make(view_of)))
            async with self._own_connection() as conn:
                return await arun(bounded(self._viewed(make)), conn.send)

    async def _converse_with_nodes(self, make: Conversation[T]) -> T:
        if self._client is None:
            self._client = RedisCluster.from_url(self._url)
        try:
            found: T = await self._client.converse(make)
            return found
        except BraidError:
            raise
        except (OSError, *CLIENT_ERRORS) as error:
            raise BraidError(str(error)) from None

    def _viewed(self, make: Conversation[T]) -> Plan[T]:
        region, server = yield from read_server()
        self._cache.check_server(region, server, time.monotonic())
        self._cache.learn_region(require_current(region.require_open()), time.monotonic())
        return (yield from make(partial(View.of, self._cache)))

    @asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[Connection]:
        """A connection that was used before, or a new one. After an error it is closed.

        It closes itself if the server says nothing for too long: its host may be gone.
        """
        self._idle = [each for each in self._idle if each.lost is None]
        if self._idle:
            conn = self._idle.pop()
        else:
            conn = await connect(
                self._address, silence_s=WITHIN_S, most_bytes=MOST_BYTES, most_values=MOST_VALUES
            )
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        self._idle.append(conn)

    @asynccontextmanager
    async def _reached(self, *, writes: bool = False) -> AsyncIterator[Endpoint]:
        """The region, connected. LostError if the work with it takes too long."""
        try:
            async with asyncio.timeout(WITHIN_S), self._room:
                await self._region.connect()
                if self._region.is_cluster and (self._watch is None or self._watch.done()):
                    self._watch = asyncio.ensure_future(self._keep())
                yield self._region
        except TimeoutError:
            raise LostError(self.name, f"no answer within {WITHIN_S:g} s", wrote=writes) from None

    async def _keep(self) -> None:
        """Follow the nodes until none is left. The next page connects again."""
        with contextlib.suppress(BraidError):
            await self._region.watch()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._region.close()
        for conn in self._idle:
            conn.close()
        if self._client is not None:
            await self._client.aclose()
