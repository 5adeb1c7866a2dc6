"""One database of the engine, shared by all clients of the gateway: whether it is a region, and its cache.

The gateway reads the region with its own rights, so clients need none for it.
"""

import asyncio
import time
from typing import Any

from braidstream.errors import BraidError, LostError, NotARegionError, ReplyError
from braidstream.gateway.backends import Lane, shared_task
from braidstream.gateway.info import Hidden
from braidstream.lua import load, require_current
from braidstream.model.region_config import Region, ServerInfo
from braidstream.net.resp import Words
from braidstream.net.wire import Address, connect
from braidstream.protocol.cache import REGION_FRESH_S, StreamCache
from braidstream.protocol.carry import Carriage
from braidstream.protocol.identify import read_server
from braidstream.protocol.plan import arun
from braidstream.protocol.stream_view import View


class Database:
    """One database. used: a command has used it since the last refresh, so it is refreshed again."""

    def __init__(self, address: Address) -> None:
        self.cache = StreamCache()
        self._address = address
        self.lane = Lane(address, self.forget)
        self.hidden = Hidden()
        self.used = False
        self._absent_until = 0.0
        self._lists_commands = True
        self._identifying: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        conn = self.lane.conn
        return conn is not None and conn.lost is None

    @property
    def is_fresh(self) -> bool:
        conn = self.lane.conn
        # Without a connection, another server process may answer. Inlined: every append checks it.
        is_connected = conn is not None and conn.lost is None
        return is_connected and self.cache.is_fresh(time.monotonic())

    def view(self, carriage: Carriage | None = None) -> View:
        return View.of(self.cache, carriage)

    async def refresh_if_due(self) -> None:
        """Read which region this is, if the cache is stale. Raises errors to the caller."""
        self.used = True
        if time.monotonic() < self._absent_until:
            raise NotARegionError
        if not self.is_fresh:
            await self.identify()

    async def is_absent(self) -> bool:
        """Whether the database is no region: every key in it is plain.

        False for one that was a region and lost its data (FLUSHALL at the server, say): plain streams
        written there would conflict with the restored data.
        """
        try:
            await self.refresh_if_due()
        except NotARegionError:
            return self.cache.region is None
        except BraidError:
            pass  # the plan of the command raises it again
        return False

    async def identify(self) -> None:
        """Read which region this is. Concurrent calls share one request."""
        if self._identifying is None:
            self._identifying = shared_task(self._identify())
        await asyncio.shield(self._identifying)

    async def _identify(self) -> None:
        try:
            region, server = await self._read_as_gateway()
            self.cache.check_server(region, server, time.monotonic())
            self.cache.learn_region(require_current(region.require_open()), time.monotonic())
        except NotARegionError:
            self._absent_until = time.monotonic() + REGION_FRESH_S
            raise
        finally:
            self._identifying = None

    async def _read_as_gateway(self) -> tuple[Region, ServerInfo]:
        """`_read` with the gateway's own login. If that is refused, no client must think it is theirs."""
        try:
            return await self._read()
        except ReplyError as error:
            if error.code not in ("WRONGPASS", "NOAUTH") or self._address.password is None:
                raise
            why = f"it refuses the user or password of the gateway itself ({error.code})"
            raise LostError(str(self._address), why, wrote=False) from error

    async def _read(self) -> tuple[Region, ServerInfo]:
        region, server = await arun(read_server(with_commands=self._lists_commands), self.lane.send)
        self._lists_commands = server.may_list_commands
        return region, server

    async def count_hidden(self) -> tuple[int, int]:
        """How many keys are hidden from users, and how many of those expire."""
        await self.refresh_if_due()
        return await self.hidden.count(self.lane.send)

    async def bring_functions(self) -> None:
        """Load the engine functions, on a new connection, because loading uses WATCH."""
        conn = await connect(self._address)
        try:
            await arun(load(), conn.send)
        finally:
            conn.close()

    async def keep_fresh(self) -> None:
        """Called regularly: refreshes the region of a database in use, so that no command has to wait."""
        if self.used:
            self.used = False
            try:
                await self.identify()
            except BraidError:
                self.cache.expire_region()  # the next command tries again and gets the error

    def forget(self) -> None:
        """Clear the cache: the engine may have been restarted or replaced."""
        self._absent_until = 0.0
        self._lists_commands = True
        self.cache.expire_region()
        self.cache.forget_all()

    def remember(self, words: Words, result: Any) -> None:
        """After an append, the next one to that name may use the fast path; after a DEL it may not.

        XADD NOMKSTREAM that returned None has appended nothing: the strand may be missing.
        """
        command = words[0].upper()
        if command in (b"DEL", b"UNLINK"):
            for name in words[1:]:
                self.cache.homes.pop(name, None)
        elif command == b"XADD" and result is not None and words[1] not in self.cache.natives:
            self.cache.remember_home(words[1], self.view().home(words[1]))
