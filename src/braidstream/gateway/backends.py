"""Connections to the engine: clients' own ones, and lanes, shared by all clients of one user and database.

client A --- lane (user, db) ---+
client B --/                    |   engine      plans, many in flight on one connection
client B --- its own -----------+               everything else, byte for byte; WATCH, MULTI, blocking
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from weakref import WeakSet

from braidstream.errors import ReplyError
from braidstream.gateway.own_connection import OwnConnection, Sinks
from braidstream.gateway.session import Login
from braidstream.net import wire
from braidstream.net.address import Address
from braidstream.net.exposure import accepts
from braidstream.net.sentinels import Place
from braidstream.net.wire import Connection
from braidstream.protocol.plan import Batch, Replies

T = TypeVar("T")

# If replies are due on a lane and nothing arrives for so long, its connection is dead.
SILENCE_S: Final = 30.0
_FOR_EVER: Final = float("inf")


def shared_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task for several waiters. Its error is retrieved also if all of them are cancelled at a shutdown."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class Lane:
    """The shared connection of one user and database; opened when needed, and again when lost.

    An engine decides at connect time whether a client without a login may send commands, and an open
    connection keeps that right when a password is set later. A lane without a login outlives its first
    client. So for each later client without a login the gateway checks with a new connection: `admits`.
    most_bytes: it is closed if one reply has more.
    """

    def __init__(self, address: Address, on_new: Callable[[], None]) -> None:
        self.address = address
        self.conn: Connection | None = None
        self.users = 0
        self.most_bytes: int | None = None
        self._on_new = on_new
        self._connecting: asyncio.Task[Connection] | None = None
        self._checking: asyncio.Task[bool] | None = None
        self._open_at = 0.0  # when the engine last accepted a connection without a login
        self._closed = False
        self._waits_for: object = None
        self._silent_since = 0.0

    async def ready(self) -> Connection:
        if self.conn is not None and self.conn.lost is None:
            return self.conn
        if self._connecting is None:
            self._connecting = shared_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def admits(self, connected_at: float) -> bool:
        """Whether a client that connected then without a login may use it. Concurrent calls share a check."""
        await self.ready()
        while self._open_at < connected_at:
            if self._checking is None:
                self._checking = shared_task(self._check())
            if not await asyncio.shield(self._checking):
                return False
        return True

    async def is_open(self, connected_at: float) -> bool:
        """Whether the engine needs no login of a client that connected then."""
        if connected_at <= self._open_at < _FOR_EVER:
            return True
        if self._checking is None:
            self._checking = shared_task(self._check())
        return await asyncio.shield(self._checking)

    async def _connect(self) -> Connection:
        try:
            self._on_new()
            began = time.monotonic()
            conn = await wire.connect(self.address, most_bytes=self.most_bytes)
            if self.address.password is None:
                # If the engine requires a login it refuses each command itself: any client may use the lane.
                is_open = await accepts(conn)
                if not is_open and self.address.db:
                    conn.close()  # it is in database 0, and must not be used if the engine opens later
                    raise ReplyError("NOAUTH Authentication required.")
                self._open_at = began if is_open else _FOR_EVER
            if self._closed:
                conn.close()
            self.conn = conn
            return conn
        finally:
            self._connecting = None

    async def _check(self) -> bool:
        try:
            began = time.monotonic()
            conn = await wire.connect(self.address.in_db(0))
            try:
                is_open = await accepts(conn)
            finally:
                conn.close()
            if is_open and self._open_at < _FOR_EVER:
                self._open_at = max(self._open_at, began)
            return is_open
        finally:
            self._checking = None

    async def send(self, batch: Batch) -> Replies:
        return await (await self.ready()).send(batch)

    def leave_others(self, place: Place) -> None:
        if self.conn is not None and self.conn.place != place:
            self.conn.close("the sentinels name another primary, {}:{}".format(*place))

    def leave_silent(self, now: float) -> None:
        """Give up a connection that is dead: a firewall forgot it, say. Called regularly."""
        waits_for = None if self.conn is None else self.conn.waits_for
        if waits_for is None or waits_for != self._waits_for:
            self._waits_for, self._silent_since = waits_for, now
        elif now - self._silent_since > SILENCE_S:
            self.abandon(f"it said nothing for {SILENCE_S:g} s")

    def abandon(self, why: str = "it does not answer") -> None:
        """Give up the connection. The next batch opens another one."""
        if self.conn is not None:
            self.conn.close(why)

    def close(self) -> None:
        self._closed = True
        if self.conn is not None:
            self.conn.close()


class Backends:
    """Every connection to the engine.

    own_limit: how many clients keep an own connection; beyond, those of idle clients are closed.
    new_lane: how a lane is made. most_bytes: of the replies that the gateway holds for one client.
    denied: replies NOPERM on own connections.
    """

    def __init__(self, address: Address, own_limit: int, most_bytes: int | None = None) -> None:
        self._address, self._own_limit, self._most_bytes = address, own_limit, most_bytes
        self.new_lane: Callable[[Address, Callable[[], None]], Lane] = Lane
        self._lanes: dict[Address, Lane] = {}
        self._apart: set[Lane] = set()
        self._owners: OrderedDict[Any, Callable[[], bool]] = OrderedDict()
        self._owns: WeakSet[OwnConnection] = WeakSet()
        self.denied = 0

    def borrow(self, login: Login | None, db: int, on_new: Callable[[], None]) -> Lane:
        """The lane of a user and database; login None: of clients that have not logged in."""
        user, password = (login.user, login.password) if login is not None else (None, None)
        address = self._address.as_user(user, password).in_db(db)
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = self.new_lane(address, on_new)
            lane.most_bytes = self._most_bytes
        lane.users += 1
        return lane

    def set_apart(self, lane: Lane) -> None:
        """Keep a lane for its present clients only: the next to borrow gets another."""
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
        at: Address | None = None,
    ) -> OwnConnection:
        """A new own connection of a client. `park`: called when there are too many; closes it if it can.

        at: the node of a cluster.
        """
        is_first = client not in self._owners
        if is_first and len(self._owners) >= self._own_limit:
            next((True for parks in list(self._owners.values()) if parks()), False)
        self._owners[client] = park
        try:
            where = at or await self._address.resolve()
            own = await wire.open_socket(
                where, lambda: OwnConnection(where, sinks, on_lost, self._most_bytes)
            )
            own.on_denied = self._count_denied
            self._owns.add(own)
            if where.as_user(None, None).must_reset:
                await own.reset()
            return own
        except BaseException:
            if is_first or at is None:
                self._owners.pop(client, None)
            raise

    def _count_denied(self) -> None:
        self.denied += 1

    def leave_others(self, place: Place) -> None:
        """Close connections to servers other than the primary."""
        for own in [*self._owns]:
            if own.place != place:
                own.abort()
        for lane in (*self._lanes.values(), *self._apart):
            lane.leave_others(place)

    def leave_silent(self, now: float) -> None:
        for lane in (*self._lanes.values(), *self._apart):
            lane.leave_silent(now)

    def used(self, client: Any) -> None:
        if client in self._owners:
            self._owners.move_to_end(client)

    def released(self, client: Any) -> None:
        self._owners.pop(client, None)

    @property
    def owned(self) -> int:
        return len(self._owners)

    def close(self) -> None:
        for lane in (*self._lanes.values(), *self._apart):
            lane.close()
        for own in list(self._owns):
            own.abort()
