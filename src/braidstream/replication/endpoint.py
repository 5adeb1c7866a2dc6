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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from braidstream.clusters.command_keys import keys_of, slot_of
from braidstream.clusters.slots import READ_MAP, SLOTS, SlotRange, parse_slots
from braidstream.engine.address import Address
from braidstream.engine.connection import Connection, connect, is_replica
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import Command
from braidstream.observability.events import Repeated, emit
from braidstream.plan.lookup import INFO_CLUSTER, info_facts, is_cluster
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
        self._conn: Connection | None = None
        self._lock = asyncio.Lock()

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._connected().send)

    async def send(self, batch: Batch) -> Replies:
        return await self._connected().send(batch)

    def _connected(self) -> Connection:
        conn = self._conn
        if conn is None or conn.lost is not None:
            raise LostError(str(self.address), "not connected", wrote=False)
        return conn

    @property
    def waiting_s(self) -> float:
        """How long the oldest reply has been due."""
        return 0.0 if self._conn is None else self._conn.waiting_s

    @property
    def conn(self) -> Connection | None:
        """The current connection. It may be lost."""
        return self._conn

    @property
    def connected(self) -> bool:
        return self._conn is not None and self._conn.lost is None

    async def connect(self) -> None:
        """Connect, unless connected; LostError or ReplyError if that fails."""
        async with self._lock:
            if not self.connected:
                self._conn = await self._open()

    async def _open(self) -> Connection:
        """Its errors name our address, also if sentinels have resolved it to a server."""
        try:
            conn = await connect(
                self.address, primary=self._primary, silence_s=SILENCE_S, most_bytes=self.most_bytes
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
        while (conn := self._conn) is not None and conn.lost is None:
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
        if self._conn is not None:
            self._conn.close(why)


class Pinned:
    """Runs plans only while the node keeps its present connection, then raises LostError.

    The next connection may reach an engine that lost data, so a caller must read its state again.
    """

    def __init__(self, runner: PlanRunner, node: Node) -> None:
        self._runner, self._node, self._conn = runner, node, node.conn

    async def run(self, plan: Plan[T]) -> T:
        self._check()
        reply = await self._runner.run(plan)
        self._check()
        return reply

    @property
    def is_same_connection(self) -> bool:
        return self._node.conn is self._conn

    def _check(self) -> None:
        if not self.is_same_connection:
            raise LostError(str(self._node.address), "reconnected: it may be another server", wrote=True)


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

# The epoch of a cluster, and who serves which slots.
_Map = tuple[int, list[SlotRange]]

# The replies of a node that has not run the command.
REDIRECTS: Final = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
# The replies of a node that cannot answer now: it is lost (`_scatter`), it starts, or a script runs.
_AWAY: Final = (*REDIRECTS, "LOST", "LOADING", "BUSY", "MASTERDOWN")
# How often the map is read, and how soon after a redirect.
LEARN_S: Final = 5.0
LEARN_AGAIN_S: Final = 0.1
# After how long an older map is taken, if no node knows the present one any more.
OLDER_S: Final = 15.0
# How long `run` waits before it follows redirects, each time. Then the reply stands.
_PAUSES_S: Final = (0.02, 0.1, 0.3, 0.6, 1.0)


class Endpoint:
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
        self._owners: list[Node | None] = [None] * SLOTS
        self._versions = [0] * SLOTS
        self._epoch = 0  # of the cluster, in the map
        self._older_s: float | None = None  # since when nodes know only older maps
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
        serving = [node for node in self.nodes if node in self._owners]
        return sorted(((self._owners.index(node), node) for node in serving), key=lambda each: each[0])

    def node_of(self, name: bytes) -> Node:
        """The server that holds a stream."""
        return self._only or self._owner(_slot(name))

    def version_of(self, name: bytes) -> int:
        """Another number after the stream has moved to another server."""
        return 0 if self._only is not None else self._versions[_slot(name)]

    def number_at(self, node: Node, key: Callable[[int], bytes], least: int) -> int:
        """The first number from `least` on whose key is on a node. LostError if it serves no slots."""
        if node in self._owners:
            for number in count(least):
                if self._owners[slot_of(key(number))] is node:
                    return number
        raise LostError(str(node.address), "it serves no slots now", wrote=False)

    def look_again(self) -> None:
        """A server has refused something because it does not hold the stream."""
        self._must_learn.set()

    def spares(self, error: BaseException) -> bool:
        """Whether an error is that of one node of a cluster, while others are connected."""
        return self.is_cluster and self.connected and (isinstance(error, LostError) or is_away(error))

    def _owner(self, slot: int) -> Node:
        owner = self._owners[slot]
        if owner is None:
            self.look_again()
            raise LostError(str(self.address), f"no node serves slot {slot}", wrote=False)
        return owner

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
            await self._learn()
            faults = await asyncio.gather(*(node.connect() for node in self.nodes), return_exceptions=True)
            if not self.connected:
                raise next(
                    (each for each in faults if each),
                    LostError(str(self.address), "it has no nodes", wrote=False),
                )

    async def _is_of_cluster(self, server: Node) -> bool:
        """Connect to the server, and ask whether it is a node of a cluster."""
        await server.connect()
        [info] = await server.send(Batch([INFO_CLUSTER], resend=True, attempt=True))
        if is_cluster(info):
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
        if batch.atomic:
            return await self._send_whole(batch)
        replies: Replies = [None] * len(batch.commands)
        left = list(range(len(replies)))
        for pause_s in (*_PAUSES_S, None):
            for at, reply in zip(left, await self._scatter(batch, left), strict=True):
                replies[at] = reply
            left = [at for at in left if is_redirect(replies[at])]
            if not left or pause_s is None:
                break
            await self._learn_after(pause_s)
        return replies

    async def _send_whole(self, batch: Batch) -> Replies:
        """A MULTI, which a node runs or refuses as a whole."""
        for pause_s in _PAUSES_S:
            try:
                return await self._node_for(batch.commands).send(batch)
            except ReplyError as error:
                if not is_redirect(error):
                    raise
            await self._learn_after(pause_s)
        return await self._node_for(batch.commands).send(batch)

    async def _scatter(self, batch: Batch, which: Sequence[int]) -> Replies:
        """Some commands of a batch, each to its node. A read that may fail in part gets LOST as the reply of
        a node that is lost, and for a slot that no node serves."""
        parts, found = dict[Node, list[int]](), dict[int, Any]()
        may_fail = batch.attempt and batch.resend
        for at in which:
            try:
                node = self._node_for(batch.commands[at : at + 1], [*parts])
            except LostError as error:
                if not may_fail:
                    raise
                found[at] = _lost(error)
            else:
                parts.setdefault(node, []).append(at)
        if [*parts.values()] == [[*range(len(batch.commands))]]:
            answers: list[Any] = [await _settled(next(iter(parts)), batch)]
        else:
            shares = [replace(batch, commands=[batch.commands[at] for at in some]) for some in parts.values()]
            answers = await asyncio.gather(*map(_settled, parts, shares))
        for some, answer in zip(parts.values(), answers, strict=True):
            if isinstance(answer, LostError):
                self.look_again()
                if not may_fail:
                    raise answer
                answer = [_lost(answer)] * len(some)
            found.update(zip(some, answer, strict=True))
        return [found[at] for at in which]

    def _node_for(self, commands: Iterable[Command], others: Sequence[Node] = ()) -> Node:
        """The node of the first key. Without a key: one that gets other commands, or any."""
        for command in commands:
            for key in keys_of(command, _second_word):
                return self._owner(slot_of(key))
        return others[0] if others else self._any()

    # The map

    async def learn(self) -> None:
        """Read the map of a cluster now. If no node answers, the last one stays."""
        with contextlib.suppress(BraidError):
            await self._learn()

    async def _learn_after(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        await self.learn()

    async def _learn(self) -> None:
        """Read the map from a node that answers, another one each time. One that was cut off from the others
        may be wrong: it has an older epoch, because each failover raises it. If for OLDER_S no node knows a
        newer one, or all nodes know older ones, the cluster was created again."""
        nodes = [node for node in self.nodes if node.connected]
        random.shuffle(nodes)
        older = list[_Map]()
        for node in nodes:
            with contextlib.suppress(BraidError):
                found = await node.run(_read_map(node.address.host))
                if self._take_newer(found):
                    return
                older.append(found)
        if older:
            self._take_older(older, all_say_so=len(older) == len(self.nodes))
            return
        addresses = [node.address for node in self.nodes]
        random.shuffle(addresses)
        fault: BraidError | None = None
        for address in dict.fromkeys([*addresses, self.address]):
            try:
                found = await _ask_map(address)
                if self._take_newer(found):
                    return
                older.append(found)
            except BraidError as error:
                fault = error
        if older:
            self._take_older(older, all_say_so=fault is None)
            return
        assert fault is not None
        raise LostError(str(self.address), fault.why, wrote=False) if isinstance(fault, LostError) else fault

    def _take_newer(self, found: _Map) -> bool:
        epoch, ranges = found
        if epoch >= self._epoch:
            self._older_s = None
            self._take(epoch, ranges)
        return epoch >= self._epoch

    def _take_older(self, older: Sequence[_Map], *, all_say_so: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        self._older_s = now_s if self._older_s is None else self._older_s
        if all_say_so or now_s - self._older_s >= OLDER_S:
            self._older_s = None
            self._take(*max(older, key=lambda each: each[0]))

    def _take(self, epoch: int, ranges: Sequence[SlotRange]) -> None:
        self._epoch = epoch
        places = {each.primary for each in ranges}
        for place in [place for place in self._nodes if place not in places]:
            self._nodes.pop(place).close("it serves no slots now")
        for host, port in places - self._nodes.keys():
            at = replace(self.address, host=host, port=port, path=None)
            self._nodes[host, port] = Node(at, self.most_bytes)
        owners: list[Node | None] = [None] * SLOTS
        for each in ranges:
            owners[each.first : each.last + 1] = [self._nodes[each.primary]] * (each.last + 1 - each.first)
        moved = [slot for slot in range(SLOTS) if owners[slot] is not self._owners[slot]]
        for slot in moved:
            self._versions[slot] += 1
        self._owners = owners
        if moved:
            self._must_learn.set()  # `watch` looks after new nodes
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
                await self._learn_after(LEARN_AGAIN_S)
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
                facts = trouble.over(clock())
                if facts or not was_connected:
                    emit("node.up", node=node.address, **facts)
                    self.changed()
                tries, was_connected = 0, True
                await node.watch()
            except Exception as error:  # also for an unexpected reply
                why = error.why if isinstance(error, LostError) else reason(error)
                trouble.log("node.lost", clock(), node=node.address, why=why)
                self.look_again()
            await back_off(tries)
            tries += 1


def _lost(error: LostError) -> ReplyError:
    return ReplyError(f"LOST {error}")


def is_redirect(reply: object) -> bool:
    return isinstance(reply, ReplyError) and reply.code in REDIRECTS


def is_away(reply: object) -> bool:
    """Whether a server cannot answer now, so that the reply says nothing about the key."""
    return isinstance(reply, ReplyError) and reply.code in _AWAY


async def _settled(node: Node, batch: Batch) -> Replies | LostError:
    try:
        return await node.send(batch)
    except LostError as error:
        return error


async def _ask_map(address: Address) -> _Map:
    """A replica answers too."""
    conn = await connect(address, silence_s=SILENCE_S)
    try:
        return await arun(_read_map(address.host), conn.send)
    finally:
        conn.close()


def _read_map(host: str) -> Plan[_Map]:
    """The epoch of the cluster, and who serves which slots. Epoch 0 if the user may not read it."""
    slots, info = yield Batch([READ_MAP, ("CLUSTER", "INFO")], resend=True, attempt=True)
    if isinstance(slots, ReplyError):
        raise slots
    epoch = 0 if isinstance(info, ReplyError) else int(info_facts(info).get(b"cluster_current_epoch", b"0"))
    return epoch, [*parse_slots(slots, host)]


def _second_word(command: Command) -> Sequence[Any]:
    """The keys of a command that the table lacks: the daemon's have one, after the first word."""
    return command[1:2]


def _slot(name: bytes) -> int:
    return slot_of(keys.meta(name))
