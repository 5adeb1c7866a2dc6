"""The nodes of redis-py's cluster clients, and the I/O with them: the only part that differs between the two.

All above is written once, as coroutines: cluster_sender.py, and clients/cluster_*.py. `AsyncioNodes` does
their I/O in an event loop. `BlockingNodes` blocks instead, so nothing ever suspends a coroutine, and `finish`
runs it to its end as a function.
"""

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from random import choice, shuffle
from typing import Any, Final, TypeVar

from redis import exceptions
from redis.asyncio.cluster import ClusterNode as AsyncioNode
from redis.cluster import ClusterNode

from braidstream.model.command import Command
from braidstream.net.compat import awaited, note_moved_slot, packed, socket_of
from braidstream.net.routes import word_of
from braidstream.net.scatter import Place
from braidstream.net.sender import (
    LOST,
    AsyncSender,
    Sender,
    aconnect,
    aread_reply,
    asend,
    connect,
    read_reply,
)
from braidstream.protocol.plan import Plan, arun, run

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
        return read_reply(conn, _END_WITHIN_S)
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
        connect(conn, may)

    async def disconnect(self, conn: Any) -> None:
        conn.disconnect()

    async def send(self, conn: Any, commands: Iterable[Command]) -> None:
        conn.send_packed_command(packed(conn, commands))

    async def read(self, conn: Any, timeout: float | None) -> Any:
        return read_reply(conn, timeout)

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
        return run(plan, Sender(conn))


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
        await aconnect(conn, may)

    async def disconnect(self, conn: Any) -> None:
        await conn.disconnect(nowait=True)

    async def send(self, conn: Any, commands: Iterable[Command]) -> None:
        await asend(conn, commands)

    async def read(self, conn: Any, timeout: float | None) -> Any:
        return await aread_reply(conn, timeout)

    async def race(self, conns: list[Any], timeout: float | None, end: Callable[[], Awaitable[None]]) -> Any:
        reads = [asyncio.create_task(aread_reply(conn, timeout)) for conn in conns]
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
        return await arun(plan, AsyncSender(conn))
