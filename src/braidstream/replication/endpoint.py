"""A region as daemons use it: pipelined connections to its servers, opened again when lost.

    Endpoint   a region: one server or a cluster, and which of its nodes has which stream
    Node       one server of it

    a link       works on one stream: on the node that holds it          node_of
    other jobs   look at many streams: each command goes to its node     run

A primary of a cluster that is lost stops the work on its streams only. The region is lost when no node is
left.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.raw_sender import BatchCarrier
from braidstream.clusters.redirects import Patience
from braidstream.clusters.slots import KnownMap, SlotMap, read_map
from braidstream.engine.address import Address
from braidstream.engine.connection import MOST_VALUES, Connection, connect, is_replica
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import Command
from braidstream.observability.events import Repeated, emit
from braidstream.plan.lookup import ask_is_cluster
from braidstream.plan.plan import Batch, Plan, Replies, arun

T = TypeVar("T")

SILENCE_S: Final = 10.0
# How often an idle connection is checked.
BEAT_S: Final = 1.0
# A peer's reply that is larger than this is an error. The largest are registries with thousands of groups.
PEER_REPLY_BYTES: Final = 64 * 1024 * 1024
BACK_OFF_S: Final = (0.05, 2.0)


class OwnError(BraidError):
    """An error of the daemon's own engine, while a link used it: it is not the peer's."""


class PlanRunner(Protocol):
    """Runs plans on one engine, and sends them in the order of the calls."""

    async def run(self, plan: Plan[T]) -> T: ...


class Node:
    """One server. Sends plans in the order of the calls. It resends nothing.

    most_bytes: a larger reply ends the connection. primary: refuse a replica.
    """

    def __init__(self, address: Address, most_bytes: int | None = None, *, primary: bool = True) -> None:
        self.address, self.most_bytes, self._primary = address, most_bytes, primary
        self.conn: Connection | None = None  # it may be lost
        self._lock = asyncio.Lock()

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._connected().send)

    async def send(self, batch: Batch) -> Replies:
        return await self._connected().send(batch)

    def _connected(self) -> Connection:
        conn = self.conn
        if conn is None or conn.lost is not None:
            raise LostError(str(self.address), "not connected", wrote=False)
        return conn

    @property
    def waiting_s(self) -> float:
        """How long the oldest reply has been due."""
        return 0.0 if self.conn is None else self.conn.waiting_s

    @property
    def connected(self) -> bool:
        return self.conn is not None and self.conn.lost is None

    async def connect(self) -> None:
        """Connect, unless connected; LostError or ReplyError if that fails."""
        async with self._lock:
            if not self.connected:
                self.conn = await self._open()

    async def _open(self) -> Connection:
        """Its errors name our address, also if sentinels have resolved it to a server."""
        try:
            conn = await connect(
                self.address,
                primary=self._primary,
                silence_s=SILENCE_S,
                most_bytes=self.most_bytes,
                most_values=None if self.most_bytes is None else MOST_VALUES,
            )
        except LostError as error:
            if error.address == str(self.address):
                raise
            raise LostError(str(self.address), f"{error.address}: {error.why}", wrote=False) from error
        conn.name = str(self.address)
        return conn

    async def watch(self) -> None:
        """Check regularly that the engine answers and is still the primary. Ends with LostError."""
        beat: asyncio.Task[None] | None = None
        while (conn := self.conn) is not None and conn.lost is None:
            if beat is None or beat.done():  # do not wait for its answer before the sentinels are queried
                beat = asyncio.ensure_future(_beat(conn))
                beat.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.sleep(BEAT_S)
            if self.address.sentinels is not None and self.address.via is None:
                with contextlib.suppress(LostError):  # no sentinel answers: keep the connection
                    place = await self.address.sentinels.primary()
                    if place != conn.place:
                        conn.close("the sentinels name another primary, {}:{}".format(*place))
        why = conn.lost.why if conn is not None and conn.lost is not None else "not connected"
        raise LostError(str(self.address), why, wrote=False)

    def close(self, why: str = "we closed it") -> None:
        if self.conn is not None:
            self.conn.close(why)


class Pinned:
    """Runs plans only while the node keeps its present connection, then raises LostError.

    The next connection may reach an engine that lost data, so a caller must read its state again.
    """

    def __init__(self, runner: PlanRunner, node: Node) -> None:
        self._runner, self._node, self._conn = runner, node, node.conn

    async def run(self, plan: Plan[T]) -> T:
        if self._node.conn is self._conn:
            reply = await self._runner.run(plan)
            if self._node.conn is self._conn:
                return reply
        raise LostError(str(self._node.address), "reconnected: it may be another server", wrote=True)

    @property
    def is_same_connection(self) -> bool:
        return self._node.conn is self._conn


async def _beat(conn: Connection) -> None:
    [hello] = await conn.send(Batch([("HELLO",)], resend=True))
    if is_replica(hello):
        conn.close("it is a replica now")


async def until_one_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Run all until the first one ends, then cancel the others. Raises its error, if it has one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def back_off(tries: int) -> None:
    """Wait before a retry: exponential backoff with a cap and jitter."""
    least, most = BACK_OFF_S
    await asyncio.sleep(min(most, least * 2**tries) * random.uniform(0.5, 1.0))


def reason(error: Exception) -> str:
    """An error as one line of text; with its type, if it is not a BraidError."""
    return str(error) if isinstance(error, BraidError) else f"{type(error).__name__}: {error}"


# ----------------------------------------------------------------------------------------------------
# The region
#
# A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing of that command. So `run` may
# send it again, to the next owner of the slot. Links begin their stream again instead: the target's state
# says how far they came.

# How often the map is read, and how soon after a redirect.
LEARN_S: Final = 5.0
LEARN_AGAIN_S: Final = 0.1
# How long `run` follows redirects. Then the reply stands.
_FOLLOW_S: Final = 2.0


class Endpoint(BatchCarrier):
    """A region. Whether it is one server or a cluster, the server says when `connect` first reaches it.

    primary: refuse a replica as the one server. changed: called when another node serves some slots, and
    when a node of a cluster was reached again.
    """

    def __init__(self, address: Address, most_bytes: int | None = None, *, primary: bool = True) -> None:
        self.address, self.most_bytes = address, most_bytes
        self.changed: Callable[[], None] = lambda: None
        self._lock = asyncio.Lock()
        self._only: Node | None = Node(address, most_bytes, primary=primary)  # None: a cluster
        self._nodes: dict[Place, Node] = {}
        self.slots = SlotMap(address, self._ask)
        self.slots.changed = self._note_map
        self._must_learn = asyncio.Event()

    @property
    def is_cluster(self) -> bool:
        """Whether each node has its own streams and its own facts about the region."""
        return self._only is None

    # Where streams are

    @property
    def nodes(self) -> list[Node]:
        """The servers that hold streams: one, or the primaries of the cluster that serve slots."""
        return [*self._nodes.values()] if self._only is None else [self._only]

    @property
    def nodes_by_slot(self) -> list[tuple[int, Node]]:
        """The nodes in the order of the lowest slot that each serves, with that slot."""
        if self._only is not None:
            return [(0, self._only)]
        return [(slot, self._nodes[place]) for slot, place in sorted(self.slots.by_lowest_slot.items())]

    def node_of(self, name: bytes) -> Node:
        """The server that holds a stream."""
        return self._only or self._owner(_slot(name))

    def version_of(self, name: bytes) -> int:
        """Another number after the stream has moved to another server."""
        return 0 if self._only is not None else self.slots.version_of(_slot(name))

    def number_at(self, node: Node, key: Callable[[int], bytes], least: int) -> int:
        """The first number from `least` on whose key is on a node. LostError if it serves no slots."""
        place = node.address.place
        if self._nodes.get(place) is node and place in self.slots.primaries:
            return next(number for number in count(least) if self.slots.owner(slot_of(key(number))) == place)
        raise LostError(str(node.address), "it serves no slots now", wrote=False)

    def look_again(self) -> None:
        """A server has refused something because it does not hold the stream."""
        self._must_learn.set()

    def spares(self, error: BaseException) -> bool:
        """Whether an error is that of one node of a cluster, while others are connected."""
        return self.is_cluster and self.connected and (isinstance(error, LostError) or is_away(error))

    def _owner(self, slot: int) -> Node:
        place = self.slots.owner(slot)
        if place is None:
            self.look_again()
            raise LostError(str(self.address), f"no node serves slot {slot}", wrote=False)
        return self._nodes[place]

    def _any(self) -> Node:
        node = next((node for node in self.nodes if node.connected), None)
        if node is None:
            raise LostError(str(self.address), "not connected", wrote=False)
        return node

    @property
    def conn(self) -> Connection | None:
        """The connection, on which all depends. A cluster has none: its nodes have."""
        return None if self._only is None else self._only.conn

    @property
    def connected(self) -> bool:
        """Whether any node is."""
        return any(node.connected for node in self.nodes)

    @property
    def waiting_s(self) -> float:
        """How long the oldest reply has been due."""
        return max((node.waiting_s for node in self.nodes), default=0.0)

    async def connect(self) -> None:
        """Connect to all nodes, unless one is connected. LostError or ReplyError if none answers; of a
        cluster, `watch` tries the others again."""
        async with self._lock:
            if self.connected or (self._only is not None and not await self._is_of_cluster(self._only)):
                return
            try:
                await self.slots.read_now()
            except LostError as lost:
                raise LostError(str(self.address), lost.why, wrote=False) from None
            faults = await asyncio.gather(*(node.connect() for node in self.nodes), return_exceptions=True)
            if not self.connected:
                raise next(
                    (each for each in faults if each),
                    LostError(str(self.address), "it has no nodes", wrote=False),
                )

    async def _is_of_cluster(self, server: Node) -> bool:
        """Connect to the server, and ask whether it is a node of a cluster."""
        await server.connect()
        if await server.run(ask_is_cluster()):
            server.close()
            self._only = None
        return self.is_cluster

    def close(self, why: str = "we closed it") -> None:
        for node in self.nodes:
            node.close(why)

    # Sending

    async def as_own(self, work: Awaitable[T]) -> T:
        """Await work of a link on this region, its own one: an error becomes an OwnError."""
        try:
            return await work
        except BraidError as error:
            raise OwnError(str(error)) from error

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self.send)

    async def send(self, batch: Batch) -> Replies:
        """Each command to the node of its key, again if it was redirected."""
        if self._only is not None:
            return await self._only.send(batch)
        may_fail, patience = batch.attempt and batch.resend, Patience(_FOLLOW_S)
        how = {"keys": _second_word, "keeps_losses": may_fail, "waits": False}
        try:
            return await self.deliver(batch, self.slots, patience=patience, **how)
        except LostError:
            self.look_again()
            raise

    async def send_to(self, place: Place | None, batch: Batch) -> Replies:
        if place is None:
            return await self._any().send(batch)
        node = self._node_at(place)
        if node.conn is None:  # the map has just named it
            await node.connect()
        return await node.send(batch)

    # The map

    async def _ask(self, place: Place) -> KnownMap:
        node = self._nodes.get(place)
        if node is None or not node.connected:
            return await self.slots.ask(place)
        return await node.run(read_map(place[0]))

    def _node_at(self, place: Place) -> Node:
        if place not in self._nodes:
            self._nodes[place] = Node(self.slots.address(place), self.most_bytes)
        return self._nodes[place]

    def _note_map(self) -> None:
        places = {*self.slots.primaries}
        for place in self._nodes.keys() - places:
            self._nodes.pop(place).close("it serves no slots now")
        for place in places:
            self._node_at(place)
        self.look_again()  # `watch` looks after new nodes
        self.changed()

    async def watch(self) -> None:
        """Check that the nodes answer. Ends with LostError when none is left.

        Of a cluster: keep them connected, and the map fresh.
        """
        if self._only is not None:
            return await self._only.watch()
        keepers = dict[Node, asyncio.Task[None]]()
        try:
            while self.connected:
                for node in [node for node in keepers if node not in self.nodes]:
                    keepers.pop(node).cancel()
                for node in self.nodes:
                    if node not in keepers:
                        keepers[node] = asyncio.ensure_future(self._keep(node))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEARN_S):
                        await self._must_learn.wait()
                self._must_learn.clear()
                await asyncio.sleep(LEARN_AGAIN_S * random.uniform(0.5, 1.0))
                await self.slots.read()
        finally:
            for keeper in keepers.values():
                keeper.cancel()
            await asyncio.gather(*keepers.values(), return_exceptions=True)
        raise LostError(str(self.address), "no primary answers", wrote=False)

    async def _keep(self, node: Node) -> None:
        """Keep one primary connected. One that answers again may have lost data: `changed`."""
        tries, clock, trouble = 0, asyncio.get_running_loop().time, Repeated()
        was_connected = node.connected
        while True:
            try:
                await node.connect()
                self.slots.unreachable.discard(node.address.place)
                facts = trouble.over(clock())
                if facts or not was_connected:
                    emit("node.up", node=node.address, **facts)
                    self.changed()
                tries, was_connected = 0, True
                await node.watch()
            except Exception as error:  # also for an unexpected reply
                why = error.why if isinstance(error, LostError) else reason(error)
                trouble.log("node.lost", clock(), node=node.address, why=why)
                self.slots.unreachable.add(node.address.place)
                self.look_again()
            await back_off(tries)
            tries += 1


def is_away(reply: object) -> bool:
    """Whether a server cannot answer now, so that the reply says nothing about the key."""
    return isinstance(reply, ReplyError) and reply.is_away


def _second_word(command: Command) -> Sequence[Any]:
    """The keys of a command that the table lacks: the daemon's have one, after the first word."""
    return command[1:2]


def _slot(name: bytes) -> int:
    return slot_of(keys.meta(name))
