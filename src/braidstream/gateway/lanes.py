"""Connections to the engine: clients' own ones, and lanes, shared by all clients of one user and database.

client A --- lane (user, db) ---+--- shared connection --- node 1      plans, many in flight; a batch goes
client B --/                    +--- shared connection --- node 2      where its keys are
client B --- its own ----------------------------------- a node        everything else; WATCH, MULTI, blocking

One server is the only node, which has every slot. So nothing is redirected, and batches pass as they are.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar
from weakref import WeakSet

from braidstream.clusters.command_keys import CommandKeys, slot_of
from braidstream.clusters.raw_sender import BatchCarrier
from braidstream.clusters.slots import SlotMap
from braidstream.engine import connection
from braidstream.engine.address import Address
from braidstream.engine.connection import CONNECT_WITHIN_S, Connection, connect
from braidstream.engine.exposure import accepts
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, ConfigError, LibraryError, LostError, NotARegionError, ReplyError
from braidstream.gateway.own_connections import OwnConnection, Sinks
from braidstream.gateway.session import Login
from braidstream.lua.cluster_facts import load_libraries, read_libraries
from braidstream.plan.lookup import ask_is_cluster, read_node
from braidstream.plan.plan import Batch, Replies, arun

T = TypeVar("T")

# If replies are due on a lane and nothing arrives for this time, its connection is dead.
SILENCE_S: Final = 30.0
_FOR_EVER: Final = float("inf")


def shared_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task for several waiters. Its error is retrieved also if all of them are cancelled at a shutdown."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


# ----------------------------------------------------------------------------------------------------
#
# The nodes behind the gateway, as it sees them itself: which have which slots, and the functions.
#
# A primary of a cluster that was added without the engine functions gets them from another one first.


class Nodes:
    """keys: which keys a command has, by the table of one node. One server needs none of them."""

    def __init__(self, slots: SlotMap, keys: CommandKeys) -> None:
        self.slots, self.keys = slots, keys
        self._ready = set[Place]()
        self._preparing = dict[Place, asyncio.Task[None]]()

    async def ready(self, place: Place) -> None:
        """Before a command on a node. Raises LostError if it does not answer."""
        if self.slots.only is not None:
            return
        if place in self.slots.unreachable:
            self._ready.discard(place)  # it may be another process when it answers again
        if place in self._ready:
            return
        if place not in self._preparing:
            self._preparing[place] = shared_task(self._prepare(place))
        await asyncio.shield(self._preparing[place])

    async def _prepare(self, place: Place) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                conn = await connect(self.slots.address(place))
                try:
                    with suppress(ReplyError):  # for example, it is loading: commands get its error
                        await self._bring_functions(place, conn)
                finally:
                    conn.close()
            self._ready.add(place)
            self.slots.unreachable.discard(place)
        except TimeoutError:
            raise LostError(f"{place[0]}:{place[1]}", "it does not answer", wrote=False) from None
        except LostError as lost:  # a command that waits for this has sent nothing
            raise LostError(lost.address, lost.why, wrote=False) from None
        finally:
            self._preparing.pop(place, None)

    async def _bring_functions(self, place: Place, conn: Connection) -> None:
        try:
            await arun(read_node(), conn.send)
        except NotARegionError:
            texts = await self._libraries(place)
            if not texts:
                return  # no node has them: its commands get the engine's error
            try:
                await arun(load_libraries(texts), conn.send)
            except ReplyError as error:
                raise LibraryError(
                    f"node {place[0]}:{place[1]} lacks the braidstream functions, and the gateway's user may "
                    f"not load them ({error}). Load them with: braid init --url URL --region N --name NAME"
                ) from None

    async def _libraries(self, wanting: Place) -> list[bytes]:
        for place in self.slots.homes():
            if place == wanting:
                continue
            with suppress(BraidError):  # the next one has them too
                conn = await connect(self.slots.address(place))
                try:
                    if texts := await arun(read_libraries(), conn.send):
                        return texts
                finally:
                    conn.close()
        return []


def one_server(address: Address) -> Nodes:
    return Nodes(SlotMap.of_one(address), CommandKeys(()))


async def find_nodes(address: Address) -> Nodes:
    """The nodes of the cluster that a server is part of; or the server."""
    conn = await connect(address.in_db(0))
    try:
        if not await arun(ask_is_cluster(), conn.send):
            return one_server(address)
        if address.db:
            raise ConfigError("a region that is a cluster is in database 0. Name no other one in the URL.")
        if address.path is not None:
            raise ConfigError("a cluster is not reached by a unix socket. Name a host and a port in the URL.")
        [table] = await conn.send(Batch([("COMMAND",)], resend=True, attempt=True))
    finally:
        conn.close()
    if isinstance(table, ReplyError):
        raise table
    slots = SlotMap(address)
    await slots.read_now()
    return Nodes(slots, CommandKeys(table))


class SharedConnection:
    """A connection of one user and database to one node; opened when needed, and again when lost.

    An engine decides at connect time whether a client without a login may send commands, and an open
    connection keeps that right when a password is set later. A shared connection outlives its first
    client. So for each later client without a login the gateway checks with a new connection: `admits`.
    most_bytes: it is closed if one reply has more.
    """

    def __init__(self, address: Address, on_new: Callable[[], None], most_bytes: int | None) -> None:
        self.conn: Connection | None = None
        self._address, self._on_new, self._most_bytes = address, on_new, most_bytes
        self._connecting: asyncio.Task[Connection] | None = None
        self._checking: asyncio.Task[bool] | None = None
        self._open_at = 0.0  # when the engine last accepted a connection without a login
        self._closed = False
        self._waits_since: int | None = None
        self._silent_since = 0.0

    @property
    def is_connected(self) -> bool:
        return self.conn is not None and self.conn.lost is None

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
            conn = await connection.connect(self._address, most_bytes=self._most_bytes)
            if self._address.password is None:
                # If the engine requires a login it refuses each command itself: any client may use the lane.
                is_open = await accepts(conn)
                if not is_open and self._address.db:
                    conn.close()  # it is in database 0, and must not be used if the engine opens later
                    raise ReplyError("NOAUTH Authentication required.")
                self._open_at = began if is_open else _FOR_EVER
            if self._closed:
                conn.close()
            self.conn, self._waits_since = conn, None
            return conn
        finally:
            self._connecting = None

    async def _check(self) -> bool:
        try:
            began = time.monotonic()
            conn = await connection.connect(self._address.in_db(0))
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
        """Give up a connection that is dead, for example because a firewall dropped it. Called regularly."""
        waits_since = None if self.conn is None else self.conn.waits_since
        if waits_since is None or waits_since != self._waits_since:
            self._waits_since, self._silent_since = waits_since, now
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


# ----------------------------------------------------------------------------------------------------
# Lane

# Keys whose connection is remembered.
_KEYS: Final = 10_000


class Lane(BatchCarrier):
    """The shared connections of one user and database, one to each node.

    address: the seed, with the user. only: the one to the only node. users: clients that have borrowed it.
    """

    def __init__(
        self, address: Address, on_new: Callable[[], None], nodes: Nodes, most_bytes: int | None = None
    ) -> None:
        self.address, self.slots, self.users = address, nodes.slots, 0
        self._most_bytes = most_bytes
        self._on_new, self._nodes = on_new, nodes
        self._shared = dict[Place, SharedConnection]()
        self._by_key = dict[bytes, SharedConnection]()
        self._version = -1
        self._closed = False
        self.only = None if nodes.slots.only is None else self.at(nodes.slots.only)

    def at(self, place: Place) -> SharedConnection:
        shared = self._shared.get(place)
        if shared is None:
            address = replace(self.address, host=place[0], port=place[1])
            shared = self._shared[place] = SharedConnection(address, self._on_new, self._most_bytes)
            if self._closed:  # its last client left while a command runs
                shared.close()
        return shared

    def connection_for(self, key: bytes) -> Connection | None:
        """The connection to the node of a key, if it is open and has room. Every append asks for it."""
        shared = self.only
        if shared is None:
            if self._version != self.slots.version or len(self._by_key) > _KEYS:
                self._by_key, self._version = {}, self.slots.version
            shared = self._by_key.get(key)
            if shared is None:
                place = self.slots.owner(slot_of(key))
                if place is None:
                    return None
                shared = self._by_key[key] = self.at(place)
        conn = shared.conn
        return conn if conn is not None and conn.lost is None and not conn.is_full else None

    @property
    def is_connected(self) -> bool:
        return any(shared.is_connected for shared in self._shared.values())

    async def send(self, batch: Batch, home: Place | None = None) -> Replies:
        """Send a batch. Commands without keys go to this node; None: to any."""
        if self.only is not None:
            return await self.only.send(batch)
        return await self.deliver(batch, self.slots, home=home)

    async def admits(self, connected_at: float) -> bool:
        return await self._ask(lambda shared: shared.admits(connected_at))

    async def is_open(self, connected_at: float) -> bool:
        return await self._ask(lambda shared: shared.is_open(connected_at))

    async def _ask(self, question: Callable[[SharedConnection], Awaitable[bool]]) -> bool:
        """As any node answers: all have the same users."""
        lost: LostError | None = None
        for place in self.slots.homes():
            try:
                return await question(self.at(place))
            except LostError as error:
                lost = error
        raise lost or ReplyError("CLUSTERDOWN no node of the cluster has slots")

    # Carrier

    async def send_to(self, place: Place | None, batch: Batch) -> Replies:
        if place is None:
            return await self._send_anywhere(batch)
        await self._nodes.ready(place)
        return await self.at(place).send(batch)

    async def _send_anywhere(self, batch: Batch) -> Replies:
        """To the first primary that answers."""
        lost: LostError | None = None
        for place in self.slots.homes():
            try:
                return await self.send_to(place, batch)
            except LostError as error:
                if error.wrote:
                    raise
                self.slots.unreachable.add(place)
                lost = error
        raise lost or ReplyError("CLUSTERDOWN no node of the cluster has slots")

    # All connections

    def leave_others(self, place: Place) -> None:
        for shared in self._shared.values():
            shared.leave_others(place)

    def leave_silent(self, now: float) -> None:
        for shared in self._shared.values():
            shared.leave_silent(now)

    def abandon(self, why: str = "it does not answer") -> None:
        for shared in self._shared.values():
            shared.abandon(why)

    def close(self) -> None:
        self._closed = True
        for shared in self._shared.values():
            shared.close()


class Backends:
    """Every connection to the engine.

    own_limit: how many clients keep an own connection; beyond, those of idle clients are closed.
    most_bytes: of the replies that the gateway holds for one client.
    denied: replies NOPERM on own connections.
    """

    def __init__(self, address: Address, nodes: Nodes, own_limit: int, most_bytes: int | None = None) -> None:
        self.nodes = nodes
        self._address, self._own_limit, self._most_bytes = address, own_limit, most_bytes
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
            lane = self._lanes[address] = Lane(address, on_new, self.nodes, self._most_bytes)
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
        at: Address,
    ) -> OwnConnection:
        """A new own connection of a client to a node. `park`: called when there are too many; closes it if it
        can."""
        is_first = client not in self._owners
        if is_first and len(self._owners) >= self._own_limit:
            next((True for parks in list(self._owners.values()) if parks()), False)
        self._owners[client] = park
        try:
            where = await at.resolve()
            own = await connection.open_socket(
                where, lambda: OwnConnection(where, sinks, on_lost, self._most_bytes)
            )
            own.on_denied = self._count_denied
            self._owns.add(own)
            if where.as_user(None, None).must_reset:
                await own.reset()
            return own
        except BaseException:
            if is_first:
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
