"""One database of the engine, shared by all clients of the gateway: is it a region, what is in its cache.

The gateway reads the region with its own rights, so clients need none for it.
"""

import asyncio
import time

from braidstream.errors import BraidError, NotARegionError
from braidstream.gateway.backends import Lane
from braidstream.gateway.info import Hidden
from braidstream.lua import load, require_current
from braidstream.net.resp import Words
from braidstream.net.wire import Address, connect
from braidstream.protocol.cache import REGION_FRESH_S, StreamCache
from braidstream.protocol.carry import Carriage
from braidstream.protocol.identify import read_server, refuse_cluster
from braidstream.protocol.plan import arun
from braidstream.protocol.stream_view import View


class Database:
    """One database. `used` is set by whoever relies on it, so that it is kept fresh meanwhile."""

    def __init__(self, address: Address) -> None:
        self.cache = StreamCache()
        self._address = address
        self.lane = Lane(address, self.forget)
        self.hidden = Hidden()
        self.used = False
        self._absent_until = 0.0
        self._asking: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        conn = self.lane.conn
        return conn is not None and conn.lost is None

    @property
    def is_fresh(self) -> bool:
        conn = self.lane.conn
        # Else another process may answer the next command. Written out here: it is asked for every append.
        is_connected = conn is not None and conn.lost is None
        return is_connected and self.cache.is_fresh(time.monotonic())

    def view(self, carriage: Carriage | None = None) -> View:
        return View.of(self.cache, carriage)

    async def refresh_if_due(self) -> None:
        """Make sure that we know which region this is. Errors are for whoever asked."""
        self.used = True
        if time.monotonic() < self._absent_until:
            raise NotARegionError
        if not self.is_fresh:
            await self.ask()

    async def is_absent(self) -> bool:
        """Whether the database is known to be no region: every key in it is plain.

        One that was a region has lost its data (FLUSHALL at the server, say). What is written there as plain
        streams would stand in the way when the data comes back.
        """
        try:
            await self.refresh_if_due()
        except NotARegionError:
            return self.cache.region is None
        except BraidError:
            pass  # whoever runs a plan is told
        return False

    async def ask(self) -> None:
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        await asyncio.shield(self._asking)

    async def refuse_cluster(self) -> None:
        """One server only: a client that a node sends elsewhere would write plain streams there."""
        await arun(refuse_cluster(), self.lane.send)

    async def _ask(self) -> None:
        try:
            region, server = await arun(read_server(), self.lane.send)
            self.cache.check_server(region, server, time.monotonic())
            self.cache.learn_region(require_current(region.require_open()), time.monotonic())
        except NotARegionError:
            self._absent_until = time.monotonic() + REGION_FRESH_S
            raise
        finally:
            self._asking = None

    async def count_hidden(self) -> tuple[int, int]:
        """How many of the engine's keys users do not see, and how many of those expire."""
        await self.refresh_if_due()
        return await self.hidden.count(self.lane.send)

    async def bring_functions(self) -> None:
        """Load the engine functions, on a connection of its own: loading WATCHes."""
        conn = await connect(self._address)
        try:
            await arun(load(), conn.send)
        finally:
            conn.close()

    async def keep_fresh(self) -> None:
        """Called now and then: whoever is busy never waits for the answer."""
        if self.used:
            self.used = False
            try:
                await self.ask()
            except BraidError:
                self.cache.expire_region()  # the next command asks, and is told

    def forget(self) -> None:
        """The engine may have been restarted, or be another."""
        self._absent_until = 0.0
        self.cache.expire_region()
        self.cache.forget_all()

    def holds_stream(self, name: bytes) -> bool:
        """Whether a name was a stream when somebody last looked."""
        return name in self.cache.homes or self.cache.registry(name).exists

    def remember(self, words: Words) -> None:
        """An append went well: the next one to that name may take the short way. After a DEL it may not."""
        command = words[0].upper()
        if command in (b"DEL", b"UNLINK"):
            for name in words[1:]:
                self.cache.homes.pop(name, None)
        elif command == b"XADD" and words[1] not in self.cache.natives:
            self.cache.remember_home(words[1], self.view().home(words[1]))
