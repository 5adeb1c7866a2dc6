"""One database of the engine, shared by all clients of the gateway: whether it is a region, and its cache.

The gateway reads the region with its own rights, so clients need none for it.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from braidstream.clients.routes import Routes
from braidstream.commands.keyspace import count_hidden
from braidstream.engine.address import Address
from braidstream.engine.connection import connect
from braidstream.engine.resp import Words
from braidstream.errors import BraidError, LostError, NotARegionError, ReplyError
from braidstream.gateway.lanes import Lane, Nodes, shared_task
from braidstream.lua import load, require_current
from braidstream.model.region import Region, ServerInfo
from braidstream.model.strand import bulk
from braidstream.model.topic import Topic
from braidstream.plan.cache import REGION_FRESH_S, StreamCache
from braidstream.plan.lookup import read_node, read_server
from braidstream.plan.plan import Batch, Replies, arun
from braidstream.plan.view import Carriage, View

# ----------------------------------------------------------------------------------------------------
# INFO with the number of keys that users see, and another mode. Counting takes a SCAN, so it is cached.

# A count stays valid for this many times its own duration.
_REST: Final = 20
_MODE: Final = re.compile(rb"\b(redis_mode|server_mode):\w+")
_ENABLED: Final = re.compile(rb"\bcluster_enabled:\d")
_HELLO_MODE: Final = re.compile(rb"\$4\r\nmode\r\n\$\d+\r\n\w+\r\n")


class Hidden:
    """Keys that users do not see: ours, except one for each stream."""

    def __init__(self) -> None:
        self._keys, self._expires, self._good_until = 0, 0, 0.0

    async def count(self, send: Callable[[Batch], Awaitable[Replies]]) -> tuple[int, int]:
        """How many keys, and how many of them have a time to live."""
        began = time.monotonic()
        if began >= self._good_until:
            found = await arun(count_hidden(expiring=True), send)
            self._keys, self._expires = found.keys - found.streams, found.expiring
            self._good_until = time.monotonic() + _REST * (time.monotonic() - began)
        return self._keys, self._expires


async def corrected_info(
    db: int, reply: bytes, count_hidden: Callable[[], Awaitable[tuple[int, int]]]
) -> bytes:
    """INFO's reply with the numbers of keys that a client of the database would see."""
    line = re.compile(rb"db%d:keys=(\d+),expires=(\d+),avg_ttl=(\d+)(.*\r\n)" % db)
    head, text = reply.split(b"\r\n", 1)[0], reply.split(b"\r\n", 1)[-1]
    if head[:1] not in (b"$", b"=") or not (found := line.search(text)):
        return reply
    try:
        keys, expires = await count_hidden()
    except BraidError:
        return reply
    shown = _line(db, found, (int(found[1]) - keys, int(found[2]) - expires))
    body = (text[: found.start()] + shown + text[found.end() :])[:-2]
    return b"%b%d\r\n%b\r\n" % (head[:1], len(body), body)


def info_with_mode(reply: bytes, mode: bytes | None) -> bytes:
    """INFO's reply with another mode: cluster or standalone. None: as the engine says it."""
    head, _, text = reply.partition(b"\r\n")
    if mode is None or head[:1] not in (b"$", b"="):
        return reply
    body = _MODE.sub(rb"\1:" + mode, text[:-2])
    body = _ENABLED.sub(b"cluster_enabled:%d" % (mode == b"cluster"), body)
    return b"%b%d\r\n%b\r\n" % (head[:1], len(body), body)


def hello_with_mode(reply: bytes, mode: bytes | None) -> bytes:
    """The same for HELLO."""
    return reply if mode is None else _HELLO_MODE.sub(bulk(b"mode") + bulk(mode), reply, count=1)


def _line(db: int, found: re.Match[bytes], seen: tuple[int, int]) -> bytes:
    """A line of the keyspace section; empty for a database without keys."""
    keys, expires = seen
    if keys <= 0:
        return b""
    mean_ms = int(found[3]) if expires > 0 else 0
    return b"db%d:keys=%d,expires=%d,avg_ttl=%d%b" % (db, keys, max(expires, 0), mean_ms, found[4])


# ----------------------------------------------------------------------------------------------------
# Database

# A node of a cluster that does not say which region it is within this time is passed over.
_ANSWERS_WITHIN_S: Final = 2.0


class Database:
    """One database. used: a command has used it since the last refresh, so it is refreshed again.

    lane: with the gateway's own rights.
    """

    def __init__(self, address: Address, nodes: Nodes) -> None:
        self.cache = StreamCache()
        self.routes = Routes(self.cache, may_wait=False)
        self._address = address
        self.lane = Lane(address, self.forget, nodes)
        self.hidden = Hidden()
        # By name, and until when it is believed: see topics.py.
        self.topics = dict[bytes, tuple[Topic, float]]()
        self.used = False
        self._absent_until = 0.0
        self._lists_commands = True
        self._identifying: asyncio.Task[None] | None = None

    @property
    def is_fresh(self) -> bool:
        # If the connection to the only server is lost, another process may answer there. Nodes of a cluster
        # come and go: a lane that connects to one again forgets the streams.
        only = self.lane.only
        if only is not None and (only.conn is None or only.conn.lost is not None):  # every append asks
            return False
        return self.cache.is_fresh(time.monotonic())

    def view(self, carriage: Carriage = Carriage.ALONE) -> View:
        return View.of(self.cache, carriage)

    async def refresh_if_due(self) -> None:
        """Read which region this is, if the cache is stale. Raises errors to the caller."""
        self.used = True
        if time.monotonic() < self._absent_until:
            raise NotARegionError
        if not self.is_fresh:
            await self.identify()

    async def is_absent(self) -> bool:
        """Whether the database is not a region: every key in it is plain.

        False for one that was a region and lost its data (by FLUSHALL at the server): plain streams
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
        if self.lane.only is None:
            return await self._read_any_node()
        region, server = await arun(read_server(with_commands=self._lists_commands), self.lane.send)
        self._lists_commands = server.may_list_commands
        return region, server

    async def _read_any_node(self) -> tuple[Region, ServerInfo]:
        """From the first node that answers: a node in trouble must not stop commands of other nodes."""
        lost = LostError("the cluster", "no primary answers", wrote=False)
        slots = self.lane.slots
        for place in slots.homes():
            try:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    return await arun(read_node(), partial(self.lane.send_to, place))
            except TimeoutError:
                slots.unreachable.add(place)
            except LostError as error:
                slots.unreachable.add(place)
                lost = error
        await slots.read()
        raise lost

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
        elif command == b"XADD" and result is not None and words[1] not in self.cache.unmanaged:
            self.cache.remember_home(words[1], self.view().home(words[1]))
