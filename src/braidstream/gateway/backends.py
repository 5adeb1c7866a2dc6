"""The engine's side: connections of clients' own, and lanes that the clients of one user and database share.

client A --- lane (user, db) ---+
client B --/                    |   engine      plans, many in flight on one connection
client B --- its own -----------+               everything else, byte for byte; WATCH, MULTI, blocking
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from braidstream.errors import LostError, ReplyError
from braidstream.gateway.own_connection import Own, Sinks
from braidstream.gateway.session import Login
from braidstream.net import wire
from braidstream.net.address import Address
from braidstream.net.sentinels import Place
from braidstream.net.wire import Connection
from braidstream.protocol.plan import Batch, Replies

_FOR_EVER: Final = float("inf")


class Lane:
    """The shared connection of one user and database; made when needed, and again when lost.

    The engine lets in who has not logged in when it connects, or not; whom it let in stays in when it
    changes its mind. A lane of nobody's stays in too, and outlives whom it was made for, so whoever comes to
    it without a login is shown to the engine first: `lets_in`.
    """

    def __init__(self, address: Address, on_new: Callable[[], None]) -> None:
        self.address = address
        self.conn: Connection | None = None
        self.users = 0
        self._on_new = on_new
        self._making: asyncio.Task[Connection] | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._open_at = 0.0  # then, the engine let in somebody who had not logged in
        self._closed = False

    async def ready(self) -> Connection:
        if self.conn is not None and self.conn.lost is None:
            return self.conn
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def lets_in(self, came: float) -> bool:
        """Whether a client that came then without a login may use it. Those who ask together ask once."""
        await self.ready()
        while self._open_at < came:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            if not await asyncio.shield(self._asking):
                return False
        return True

    async def _make(self) -> Connection:
        try:
            self._on_new()
            began = time.monotonic()
            conn = await wire.connect(self.address)
            if self.address.password is None:
                # Where the engine did not let it in it judges each command of it: anybody may try.
                self._open_at = began if await _is_let_in(conn) else _FOR_EVER
            if self._closed:
                conn.close()
            self.conn = conn
            return conn
        finally:
            self._making = None

    async def _ask(self) -> bool:
        try:
            began = time.monotonic()
            conn = await wire.connect(self.address.in_db(0))
            try:
                is_open = await _is_let_in(conn)
            finally:
                conn.close()
            if is_open:
                self._open_at = max(self._open_at, began)
            return is_open
        finally:
            self._asking = None

    async def send(self, batch: Batch) -> Replies:
        return await (await self.ready()).send(batch)

    def leave_others(self, place: Place) -> None:
        if self.conn is not None and self.conn.place != place:
            self.conn.close("the sentinels name another primary, {}:{}".format(*place))

    def close(self) -> None:
        self._closed = True
        if self.conn is not None:
            self.conn.close()


async def lets_anybody_in(address: Address) -> bool:
    """Whether the engine takes commands of a connection that has not logged in."""
    try:
        conn = await wire.connect(address.as_user(None, None).in_db(0))
        try:
            return await _is_let_in(conn)
        finally:
            conn.close()
    except LostError:
        return False


async def _is_let_in(conn: Connection) -> bool:
    """Whether the engine takes commands from a new connection; this one may still be refused to its user."""
    [reply] = await conn.send(Batch([("PING",)], resend=True, attempt=True))
    return not (isinstance(reply, ReplyError) and reply.code in ("NOAUTH", "DENIED"))


class Backends:
    """Every connection to the engine.

    own_limit: so many connections of clients' own are kept; beyond, those of idle clients are parked.
    """

    def __init__(self, address: Address, own_limit: int) -> None:
        self._address, self._own_limit = address, own_limit
        self._lanes: dict[Address, Lane] = {}
        self._apart: set[Lane] = set()
        self._owners: OrderedDict[Any, Callable[[], bool]] = OrderedDict()
        self._owns: WeakSet[Own] = WeakSet()

    def borrow(self, login: Login | None, db: int, on_new: Callable[[], None]) -> Lane:
        """The lane to the engine as a user sees it; nobody, where nobody has logged in."""
        user, password = (login.user, login.password) if login is not None else (None, None)
        address = self._address.as_user(user, password).in_db(db)
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(address, on_new)
        lane.users += 1
        return lane

    def set_apart(self, lane: Lane) -> None:
        """Leave a lane to those who are on it: the next to borrow gets another."""
        if self._lanes.get(lane.address) is lane:
            del self._lanes[lane.address]
            self._apart.add(lane)

    def give_back(self, lane: Lane) -> None:
        lane.users -= 1
        if not lane.users:
            lane.close()
            self.set_apart(lane)
            self._apart.discard(lane)

    async def own(
        self,
        client: Any,
        sinks: Sinks,
        on_lost: Callable[[], None],
        park: Callable[[], bool],
    ) -> Own:
        """A new connection of a client's own; `park` closes it if it can, when there are too many."""
        if len(self._owners) >= self._own_limit:
            next((True for parks in list(self._owners.values()) if parks()), False)
        self._owners[client] = park
        try:
            at = await self._address.resolve()
            own = await wire.open_socket(at, lambda: Own(at, sinks, on_lost))
            self._owns.add(own)
            return own
        except BaseException:
            self._owners.pop(client, None)
            raise

    def leave_others(self, place: Place) -> None:
        """The primary is there: connections to other servers end."""
        for own in [*self._owns]:
            if own.place != place:
                own.abort()
        for lane in (*self._lanes.values(), *self._apart):
            lane.leave_others(place)

    def used(self, client: Any) -> None:
        if client in self._owners:
            self._owners.move_to_end(client)

    def disowned(self, client: Any) -> None:
        self._owners.pop(client, None)

    @property
    def owned(self) -> int:
        return len(self._owners)

    def close(self) -> None:
        for lane in (*self._lanes.values(), *self._apart):
            lane.close()
        for own in list(self._owns):
            own.abort()
