"""The nodes of redis-py's cluster clients, and batches sent to them; the I/O is the only part that differs.

All above is written once, as coroutines: `ClusterSender`, and clients/cluster_*.py. `AsyncioNodes` does
their I/O in an event loop. `BlockingNodes` blocks instead, so nothing ever suspends a coroutine, and `finish`
runs it to its end as a function.
"""

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from random import choice, shuffle
from typing import Any, Final, TypeVar

from redis import exceptions
from redis.asyncio.cluster import ClusterNode as AsyncioNode
from redis.cluster import ClusterNode

from braidstream.clusters.command_keys import NativeKeys, is_routed, keys_of, slot_of, word_of
from braidstream.clusters.redirects import (
    REDIRECTS,
    Leg,
    Patience,
    Place,
    Round,
    deliver,
    drive,
    without_losses,
)
from braidstream.engine import aio_sender, awaiting, blocking, sender
from braidstream.engine.awaiting import awaited
from braidstream.engine.redis_py import (
    LOST,
    REFUSALS,
    is_connected,
    note_moved_slot,
    read_timeout,
    reply_error,
    resp2,
    socket_of,
)
from braidstream.errors import LostError
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan, Replies, refuse_early_end, unpack

T = TypeVar("T")

# After one connection has its reply: how often the waits of the others are ended, and for how long.
_END_AGAIN_S: Final = 0.1
_END_WITHIN_S: Final = 5.0


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose I/O blocks."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a coroutine of the synchronous client waits for an event loop")


def _silence(conn: Any) -> exceptions.TimeoutError:
    return exceptions.TimeoutError(f"Timeout reading from {conn!r}")


def _reply_or_loss(conn: Any) -> Any:
    try:
        return blocking.read_reply(conn, _END_WITHIN_S)
    except LOST as error:
        return error


class Nodes:
    """What both have in common.

    prepare: called with each connection before its first use by a command.
    """

    def __init__(self, cluster: Any, prepare: Callable[[Any], Awaitable[None]]) -> None:
        self.cluster, self._prepare = cluster, prepare

    async def node_of(self, slot: int | None) -> Any:
        """The primary of a slot; any primary for None."""
        await self.ready()
        try:
            if slot is None:
                return choice(self.cluster.get_primaries())
            return self.cluster.nodes_manager.get_node_from_slot(slot)
        except LookupError:
            raise exceptions.SlotNotCoveredError(f'Slot "{slot}" is not covered by the cluster.') from None

    async def node_at(self, place: Place) -> Any:
        found = self.cluster.get_node(*place)
        if found is None:
            await self.read_map()
            found = self.cluster.get_node(*place)
        if found is None:  # its first slot moves there: CLUSTER SLOTS names it when it has that
            found = self.new_node(*place)
            found = self.cluster.nodes_manager.nodes_cache.setdefault(found.name, found)
        return found

    async def take(self, node: Any) -> Any:
        """A connection to a node, to be released."""
        conn = self.acquire(node)
        try:
            await self.connect(conn)
            await self._prepare(conn)
        except BaseException:
            await self.disconnect(conn)
            self.release(conn)
            raise
        return conn

    async def take_any(self) -> Any:
        """A connection to any primary that can be reached, to be released."""
        await self.ready()
        primaries = list(self.cluster.get_primaries())
        shuffle(primaries)
        for node in primaries[:-1]:
            with suppress(*LOST):
                return await self.take(node)
        return await self.take(primaries[-1] if primaries else await self.node_of(None))

    def acquire(self, node: Any) -> Any:
        """A connection that may be closed, and may lack the functions."""
        pool = self.pool_of(node)
        conn = self.taken(pool)
        conn.braid_node, conn.braid_pool = node.name, pool
        return conn

    def release(self, conn: Any) -> None:
        conn.braid_pool.release(conn)

    async def note_moved(self, moved: Iterable[exceptions.MovedError]) -> None:
        for error in moved:
            try:
                await awaited(note_moved_slot(self.cluster.nodes_manager, error))
            except KeyError:  # the map has a gap there
                await self.read_map()

    async def read_map(self) -> None:
        """Read which node has which slots. If no node answers, the next attempt tries again."""
        with suppress(exceptions.RedisError, exceptions.RedisClusterException):
            await awaited(self.cluster.nodes_manager.initialize())

    async def prepare(self, turn: Round) -> None:
        """Before a round: wait, and learn what the last replies said about the map."""
        await self.note_moved(turn.moved)
        if turn.is_down:
            await self.read_map()
        if turn.pause_s:
            await self.sleep(turn.pause_s)

    async def native_keys(self, command: Any) -> Any:
        """The keys of a command that no plan sends."""
        word = word_of(command[0])
        if word in ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"):
            return command[3 : 3 + int(command[2])]
        await self.ready()
        return await awaited(self.parsed_keys(word, *command[1:]))

    async def ask(self, conn: Any, command: Command) -> Any:
        """The reply to one command. An error reply is returned."""
        try:
            await self.send(conn, [command])
            return await self.read(conn, None)
        except BaseException:
            await self.disconnect(conn)
            raise

    # What differs

    async def ready(self) -> None:
        """Before the first use of the map."""
        raise NotImplementedError

    def pool_of(self, node: Any) -> Any:
        raise NotImplementedError

    def taken(self, pool: Any) -> Any:
        raise NotImplementedError

    def new_node(self, host: str, port: int) -> Any:
        raise NotImplementedError

    def parsed_keys(self, *command: Any) -> Any:
        raise NotImplementedError

    async def connect(self, conn: Any, may: bool = True) -> None:
        raise NotImplementedError

    async def disconnect(self, conn: Any) -> None:
        raise NotImplementedError

    async def send(self, conn: Any, commands: Iterable[Command]) -> None:
        raise NotImplementedError

    async def read(self, conn: Any, timeout: float | None) -> Any:
        raise NotImplementedError

    async def race(self, conns: list[Any], timeout: float | None, end: Callable[[], Awaitable[None]]) -> Any:
        """The replies on several connections. When one of them has its reply, `end` ends the other waits.

        It is called again while one goes on: the command that waits may arrive after the one that ends it.
        A connection that is lost, or does not end, has the error as its reply.
        """
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def run(self, conn: Any, plan: Plan[T]) -> T:
        """Run a plan on this connection only."""
        raise NotImplementedError


class BlockingNodes(Nodes):
    """Those of `redis.RedisCluster`."""

    async def ready(self) -> None:
        """The constructor has read the map."""

    def pool_of(self, node: Any) -> Any:
        return self.cluster.get_redis_connection(node).connection_pool

    def taken(self, pool: Any) -> Any:
        return pool.get_connection()

    def new_node(self, host: str, port: int) -> Any:
        return ClusterNode(host, port)  # type: ignore[no-untyped-call]

    def parsed_keys(self, *command: Any) -> Any:
        anyone = self.cluster.get_redis_connection(self.cluster.get_default_node())
        return self.cluster.commands_parser.get_keys(anyone, *command)

    async def connect(self, conn: Any, may: bool = True) -> None:
        blocking.connect(conn, may)

    async def disconnect(self, conn: Any) -> None:
        conn.disconnect()

    async def send(self, conn: Any, commands: Iterable[Command]) -> None:
        blocking.send(conn, commands)

    async def read(self, conn: Any, timeout: float | None) -> Any:
        return blocking.read_reply(conn, timeout)

    async def race(self, conns: list[Any], timeout: float | None, end: Callable[[], Awaitable[None]]) -> Any:
        with selectors.DefaultSelector() as waiting:
            for conn in conns:
                waiting.register(socket_of(conn), selectors.EVENT_READ)
            ready = waiting.select(timeout)
            if not ready:
                raise exceptions.TimeoutError(f"Timeout reading from {conns[0]!r}")
            ends_s = time.monotonic() + _END_WITHIN_S
            while True:
                for key, _ in ready:
                    waiting.unregister(key.fileobj)
                if not waiting.get_map() or time.monotonic() > ends_s:
                    break
                await end()
                ready = waiting.select(_END_AGAIN_S)
            silent = {key.fileobj for key in waiting.get_map().values()}
            return [_silence(conn) if socket_of(conn) in silent else _reply_or_loss(conn) for conn in conns]

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, conn: Any, plan: Plan[T]) -> T:
        return sender.run_plan(plan, sender.Sender(conn))


class AsyncioNodes(Nodes):
    """Those of `redis.asyncio.RedisCluster`."""

    async def ready(self) -> None:
        try:
            await self.cluster.initialize()
        except exceptions.RedisClusterException:
            if not self.cluster.get_primaries():
                raise
            # It has read the map before, and cannot now: attempts go on with the old one.

    def pool_of(self, node: Any) -> Any:
        return node

    def taken(self, pool: Any) -> Any:
        return pool.acquire_connection()

    def new_node(self, host: str, port: int) -> Any:
        return AsyncioNode(host, port, **self.cluster.nodes_manager.connection_kwargs)

    def parsed_keys(self, *command: Any) -> Any:
        return self.cluster.commands_parser.get_keys(*command)

    async def connect(self, conn: Any, may: bool = True) -> None:
        if may and conn.should_reconnect():  # redis-py has read the map again
            await conn.disconnect(nowait=True)
        await awaiting.connect(conn, may)

    async def disconnect(self, conn: Any) -> None:
        await conn.disconnect(nowait=True)

    async def send(self, conn: Any, commands: Iterable[Command]) -> None:
        await awaiting.send(conn, commands)

    async def read(self, conn: Any, timeout: float | None) -> Any:
        return await awaiting.read_reply(conn, timeout)

    async def race(self, conns: list[Any], timeout: float | None, end: Callable[[], Awaitable[None]]) -> Any:
        reads = [asyncio.create_task(awaiting.read_reply(conn, timeout)) for conn in conns]
        try:
            _, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            ends_s = time.monotonic() + _END_WITHIN_S
            while waiting and time.monotonic() <= ends_s:
                await end()
                _, waiting = await asyncio.wait(waiting, timeout=_END_AGAIN_S)
            return [
                _silence(conn) if each in waiting else each.exception() or each.result()
                for conn, each in zip(conns, reads, strict=True)
            ]
        finally:
            for each in reads:
                each.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, conn: Any, plan: Plan[T]) -> T:
        return await aio_sender.run_plan(plan, aio_sender.AsyncSender(conn))


# ----------------------------------------------------------------------------------------------------
#
# Sends the batches of a plan to the nodes of a cluster (redirects.py), over connections of redis-py.
#
# For both cluster clients: the I/O is done by `Nodes`.

UNWATCH: Final = ("UNWATCH",)


class ClusterSender:
    """Sends batches, as `AsyncSender` does over one connection.

    home: the connection for commands without keys. It stays the user's.
    """

    def __init__(self, nodes: Nodes, home: Any, *, watching: bool = False) -> None:
        self._nodes, self._home = nodes, home
        self._held = {home.braid_node: home}
        self._watched: list[Any] = [home] if watching else []
        self._may_connect = not watching
        self._patience = Patience()
        self._is_sent = False  # whether a command of this batch was sent
        self._ran = False  # whether a node has run a command of this batch, as far as is known

    async def close(self) -> None:
        """Release the connections; those that still WATCH keys are closed."""
        for conn in self._held.values():
            if conn is not self._home:
                if conn in self._watched:
                    await self._nodes.disconnect(conn)
                self._nodes.release(conn)
        self._held = {}

    async def __call__(self, batch: Batch) -> Replies:
        began = time.monotonic()
        self._is_sent = self._ran = False
        try:
            replies = await self._deliver(batch)
        except (exceptions.SlotNotCoveredError, *LOST) as error:
            # A node that refuses says nothing about the other nodes of the batch.
            is_refused = isinstance(error, REFUSALS) and not self._ran
            wrote = self._is_sent and not batch.resend and not is_refused
            raise LostError("the cluster", str(error), wrote=wrote) from error
        if replies is None:
            return None  # type: ignore[return-value]  # only plans that WATCH get it
        self._patience.start_over()
        found = unpack(batch, replies, resp2)
        refuse_early_end(batch, found, time.monotonic() - began)
        return found

    async def _deliver(self, batch: Batch) -> list[Any] | None:
        native_keys = await self._native_keys(batch)
        if batch.atomic and self._watched and not await self._watches_where_it_runs(batch, native_keys):
            await self._unwatch()
            return None
        delivery = deliver(batch, native_keys, self._patience, watching=bool(self._watched))
        found = await drive(delivery, self._nodes.prepare, partial(self._send, batch))
        if batch.atomic:
            self._watched = []  # EXEC ends it, also if it is refused
        elif UNWATCH in batch.commands:
            await self._unwatch()
        return found

    async def _native_keys(self, batch: Batch) -> NativeKeys:
        """The keys of a user's own commands in a pipeline. Asked before, because `deliver` has no I/O."""
        found = dict[int, Any]()
        for command in batch.commands:
            if not is_routed(command):
                found[id(command)] = await self._nodes.native_keys(command)
        return lambda command: found[id(command)]

    # WATCH belongs to a connection

    async def _watches_where_it_runs(self, batch: Batch, native_keys: NativeKeys) -> bool:
        """Whether all WATCHes of the plan are on the connection that a MULTI will use."""
        keys = (key for each in batch.commands for key in keys_of(each, native_keys))
        slot = next((slot_of(key) for key in keys), None)
        if slot is None:
            return self._watched == [self._home]
        node = await self._nodes.node_of(slot)
        return self._watched == [self._held.get(node.name)]

    def _note_watches(self, conn: Any, legs: list[Leg]) -> None:
        watches = any(word_of(command[0]) == "WATCH" for leg in legs for command in leg.commands)
        if watches and conn not in self._watched:
            self._watched.append(conn)

    async def _unwatch(self) -> None:
        """End every WATCH, on whichever connection it is."""
        for conn in self._watched:
            if is_connected(conn):
                await self._nodes.ask(conn, UNWATCH)
        self._watched = []

    @property
    def watches(self) -> bool:
        return bool(self._watched)

    @property
    def watches_elsewhere(self) -> bool:
        """Whether keys are WATCHed on a connection that ends with this sender."""
        return any(conn is not self._home for conn in self._watched)

    # One round

    async def _send(self, batch: Batch, turn: Round) -> list[list[Any]]:
        if turn.is_race:
            return await self._race(batch, turn.legs)
        load = dict[Any, list[Leg]]()
        for leg in turn.legs:
            load.setdefault(await self._connection(leg), []).append(leg)
        read = dict[int, list[Any]]()
        if load:
            self._may_connect, self._is_sent = False, True
        try:
            for conn, legs in load.items():
                await self._nodes.send(conn, [command for leg in legs for command in leg.wire()])
            for conn, legs in load.items():
                timeout = read_timeout(conn, batch.block_ms)
                for leg in legs:
                    read[id(leg)] = await self._read(conn, leg, timeout)
                self._note_watches(conn, legs)
        except BaseException:
            self._ran = self._ran or len(load) > 1
            for conn in load:  # replies may still arrive
                await self._nodes.disconnect(conn)
            raise
        return without_losses(turn.legs, [read[id(leg)] for leg in turn.legs], LOST)

    async def _read(self, conn: Any, leg: Leg, timeout: float | None) -> list[Any]:
        """The replies to a leg. For one slot's share of a read, a lost connection is a reply: other nodes may
        have delivered entries to a group."""
        replies = list[Any]()
        try:
            for _ in leg.wire():
                replies.append(await self._nodes.read(conn, timeout))
        except LOST as error:
            if not leg.part:
                self._note_run(leg, replies)
                raise
            self._ran = True  # entries may have been delivered
            await self._nodes.disconnect(conn)
            return [error for _ in leg.wire()]
        self._note_run(leg, replies)
        return replies

    def _note_run(self, leg: Leg, replies: list[Any]) -> None:
        """Before the reply to its EXEC, a MULTI has not run, unless MULTI was refused: then its commands run
        one by one. A redirected command has not run either."""
        refused = any(isinstance(each, Exception) for each in leg.replies(replies)[:1])
        is_queued = leg.is_multi and not refused and len(replies) < len(leg.wire())
        ran = not is_queued and any(not isinstance(each, REDIRECTS) for each in replies)
        self._ran = self._ran or ran

    async def _connection(self, leg: Leg) -> Any:
        if leg.ask is not None:
            return await self._connection_to(await self._nodes.node_at(leg.ask))
        if leg.slot is not None:
            return await self._connection_to(await self._nodes.node_of(leg.slot))
        await self._nodes.connect(self._home, self._may_connect)
        return self._home

    async def _connection_to(self, node: Any) -> Any:
        conn = self._held.get(node.name)
        if conn is None:
            conn = self._held[node.name] = await self._nodes.take(node)
        await self._nodes.connect(conn, self._may_connect)
        return conn

    async def _race(self, batch: Batch, legs: list[Leg]) -> list[list[Any]]:
        """Wait in several slots at once, each on a connection of its own, until one has a reply."""
        conns, nodes = list[Any](), [await self._nodes.node_of(leg.slot) for leg in legs]

        async def end_others() -> None:
            for node, number in zip(nodes, numbers, strict=True):  # of that node, wherever its slots are now
                with suppress(*LOST):  # its read fails too
                    await self._ask(await self._connection_to(node), ("CLIENT", "UNBLOCK", number))

        try:
            for node in nodes:
                conns.append(await self._nodes.take(node))
            numbers = [await self._ask(conn, ("CLIENT", "ID")) for conn in conns]
            self._is_sent = True
            for conn, leg in zip(conns, legs, strict=True):
                await self._nodes.send(conn, leg.commands)
            replies = await self._nodes.race(conns, read_timeout(conns[0], batch.block_ms), end_others)
            for conn, reply in zip(conns, replies, strict=True):
                if isinstance(reply, LOST):
                    await self._nodes.disconnect(conn)
            return without_losses(legs, [[reply] for reply in replies], LOST)
        except BaseException:
            for conn in conns:
                await self._nodes.disconnect(conn)
            raise
        finally:
            for conn in conns:
                self._nodes.release(conn)

    async def _ask(self, conn: Any, command: tuple[Any, ...]) -> Any:
        reply = await self._nodes.ask(conn, command)
        if isinstance(reply, exceptions.ResponseError):
            raise reply_error(reply)
        return reply


class BlockingSender:
    """A `ClusterSender` as a function, for plans of the synchronous client."""

    def __init__(self, sender: ClusterSender) -> None:
        self._sender = sender

    def __call__(self, batch: Batch) -> Replies:
        return finish(self._sender(batch))

    def close(self) -> None:
        finish(self._sender.close())
