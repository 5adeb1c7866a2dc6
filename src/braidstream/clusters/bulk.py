"""Servers and clusters for bulk work (Spark): plans by key, and connections that carry raw bytes.

redis-py opens and authenticates a connection. Then a `Wire` sends and receives bytes on its socket
(`Wire`; of a cluster `ClusterWire`). Clients do not use this.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
)
from redis.retry import Retry

from braidstream.clusters.command_keys import keys_of, slot_of
from braidstream.clusters.nodes import BlockingNodes, BlockingSender, ClusterSender, finish
from braidstream.clusters.redirects import FOLLOW_S, REDIRECTS, Leg, Patience, Round, deliver, drive
from braidstream.engine.address import shown, split_sentinel
from braidstream.engine.blocking import connect
from braidstream.engine.redis_py import LOST, QUICK_HELLO, NotResentError, parse_error, socket_of
from braidstream.engine.sender import Sender, run_plan
from braidstream.engine.sentinel_pool import sentinel_pool
from braidstream.errors import REDIRECTS as CODES
from braidstream.errors import OptionError
from braidstream.model.strand import Command
from braidstream.plan.lookup import ask_is_cluster
from braidstream.plan.plan import Batch, Plan

# ----------------------------------------------------------------------------------------------------
# The socket of a connection, used as bytes: a reply of thousands of entries becomes columns without
# becoming Python objects first. For bulk work (bulk.py).

CHUNK: Final = 1 << 20


class Wire:
    """A connection of redis-py, which opens and authenticates it."""

    is_cluster: ClassVar[bool] = False

    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self._buffer = bytearray(CHUNK)

    def send(self, *commands: Command) -> bytes:
        """Send commands. Returns the mark that ends their replies, for `receive`."""
        return self.send_on(self.conn, commands)

    def receive(self, mark: bytes) -> bytearray:
        """All bytes before the mark. The mark is random, so no entry contains it."""
        return self.receive_on(self.conn, mark)

    def ask(self, commands: Sequence[Command]) -> list[bytearray]:
        """Run commands in one round trip. Returns the reply to each, as bytes."""
        ends = self.send_marked(self.conn, commands)
        return self.receive_marked(self.conn, ends)

    def call(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip. Errors are returned as values."""
        connect(self.conn, may=False)  # it may WATCH keys
        self.conn.send_packed_command(self.conn.pack_commands(commands))
        replies = list[Any]()
        for _ in commands:
            try:
                replies.append(self.conn.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    def exchange(self, before: Iterable[Command], packed: bytes, after: Iterable[Command]) -> bytearray:
        """Send commands, then packed commands, then more commands. Returns all replies as bytes."""
        pack = self.conn.pack_commands
        mark = self._send_packed(self.conn, (*pack([*before]), packed, *pack([*after])))
        return self.receive_on(self.conn, mark)

    def send_on(self, conn: Any, commands: Sequence[Command]) -> bytes:
        return self._send_packed(conn, conn.pack_commands(commands))

    def _send_packed(self, conn: Any, parts: Iterable[bytes]) -> bytes:
        mark = secrets.token_hex(16).encode()
        socket_of(conn).sendall(b"".join((*parts, *conn.pack_command("ECHO", mark))))
        return b"$32\r\n%s\r\n" % mark

    def send_marked(self, conn: Any, commands: Sequence[Command]) -> list[bytes]:
        """Send commands. Returns the mark that ends the reply to each."""
        nonce, packed = secrets.token_hex(12).encode(), list[bytes]()
        marks = [b"%b%08d" % (nonce, at) for at in range(len(commands))]
        for command, mark in zip(commands, marks, strict=True):
            packed += conn.pack_command(*command)
            packed += conn.pack_command("ECHO", mark)
        socket_of(conn).sendall(b"".join(packed))
        return [b"$32\r\n%b\r\n" % mark for mark in marks]

    def receive_marked(self, conn: Any, ends: Sequence[bytes]) -> list[bytearray]:
        """The reply before each mark."""
        whole, at = self.receive_on(conn, ends[-1]), 0
        replies = list[bytearray]()
        for end in ends[:-1]:
            stop = whole.index(end, at)
            replies.append(whole[at:stop])
            at = stop + len(end)
        return [*replies, whole[at:] if at else whole]

    def receive_on(self, conn: Any, mark: bytes) -> bytearray:
        buffer, filled = self._buffer, 0
        recv_into = socket_of(conn).recv_into
        while True:
            if filled == len(buffer):
                buffer.extend(bytes(len(buffer)))
            got = recv_into(memoryview(buffer)[filled:])
            if not got:
                raise redis.ConnectionError("the server closed the connection while it was read")
            filled += got
            if filled >= len(mark) and buffer.endswith(mark, 0, filled):
                break
        self._buffer = bytearray(CHUNK)
        del buffer[filled - len(mark) :]
        return buffer


# ----------------------------------------------------------------------------------------------------
#
# A cluster for bulk work (bulk.py): plans and raw connections that follow slots when they move.
#
# A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing of that command:
#
#     plans                       clusters/nodes.py follows, each command by itself
#     raw reads                   each reply that is a redirect is read again, where it points to
#     raw writes, under WATCH     SlotMovedError: nothing of the step was done, `in_slot` begins it again
#
# A write whose reply is lost is never sent again.

T = TypeVar("T")

_REDIRECTED: Final = tuple(b"-%b " % code.encode() for code in sorted(CODES))


class SlotMovedError(RedisError):
    """A slot moves, and nothing was done."""


async def _unprepared(conn: Any) -> None:
    """Spark reads which region it is by itself."""


class BulkCluster:
    """The nodes of a cluster, connected."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        try:
            self.cluster: Any = redis.RedisCluster.from_url(url, **settings)
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error
        except (TypeError, ValueError) as error:
            raise OptionError("redis.*", str(error)) from None
        self.nodes = BlockingNodes(self.cluster, _unprepared)

    def close(self) -> None:
        self.cluster.close()

    def pools(self) -> list[Any]:
        """Of each primary."""
        return [self.nodes.pool_of(node) for node in self.cluster.get_primaries()]

    def by_node(self, items: Iterable[T], key_of: Callable[[T], bytes]) -> list[list[T]]:
        groups = dict[str, list[T]]()
        for item in items:
            groups.setdefault(self._node(slot_of(key_of(item))).name, []).append(item)
        return list(groups.values())

    def _node(self, slot: int | None) -> Any:
        try:
            return finish(self.nodes.node_of(slot))
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error

    def take(self, slot: int | None) -> Any:
        """A connection to the primary of a slot, to be released. Waits for a failover."""
        patience = Patience()
        while True:
            try:
                return finish(self.nodes.take(self._node(slot)))
            except LOST as error:
                if isinstance(error, AuthenticationError) or patience.runs_out():
                    raise
            self.look_again(patience)

    def look_again(self, patience: Patience) -> None:
        time.sleep(patience.pause_s())
        finish(self.nodes.read_map())

    def run(self, plan: Plan[T], key: bytes | None) -> T:
        """Each command goes to the node of its key; those without keys to the node of `key`."""
        conn = self.take(None if key is None else slot_of(key))
        send = BlockingSender(ClusterSender(self.nodes, conn))
        try:
            return run_plan(plan, send)
        except NotResentError as lost:
            conn.disconnect()
            raise lost.for_user() from None
        except RedisClusterException as error:
            conn.disconnect()
            raise redis.ConnectionError(str(error)) from error
        except BaseException:
            conn.disconnect()
            raise
        finally:
            send.close()
            self.nodes.release(conn)

    @contextmanager
    def wire(self, key: bytes) -> Iterator["ClusterWire"]:
        """A raw connection to the node of a key. All its connections are closed if the block raises."""
        wire = ClusterWire(self, self.take(slot_of(key)))
        try:
            yield wire
        except BaseException:
            wire.disconnect()
            raise
        finally:
            wire.release()

    def in_slot(self, key: bytes, work: Callable[[Wire], T]) -> T:
        """Begins again if the slot of the key moves: the last step has done nothing."""
        patience = Patience()
        while True:
            began_s = time.monotonic()
            try:
                with self.wire(key) as wire:
                    return work(wire)
            except SlotMovedError as error:
                if time.monotonic() - began_s > FOLLOW_S:
                    patience.start_over()
                if patience.runs_out():
                    raise SlotMovedError(
                        f"{error}, and has not arrived within {FOLLOW_S:g} s. Start again when resharding "
                        "is done"
                    ) from None
            self.look_again(patience)


class ClusterWire(Wire):
    """Raw connections to the nodes of a cluster. Reads follow redirects. Writes do not: SlotMovedError."""

    is_cluster = True

    def __init__(self, cluster: BulkCluster, conn: Any) -> None:
        super().__init__(conn)
        self._cluster, self._nodes = cluster, cluster.nodes
        self._conns = {conn.braid_node: conn}
        self._sent = dict[bytes, tuple[Any, Sequence[Command], list[bytes]]]()

    def disconnect(self) -> None:
        for conn in self._conns.values():
            conn.disconnect()

    def release(self) -> None:
        for conn in self._conns.values():
            self._nodes.release(conn)

    # Reads

    def send(self, *commands: Command) -> bytes:
        conn = self._owner_of(commands[0])
        ends = self.send_marked(conn, commands)
        self._sent[ends[-1]] = conn, commands, ends
        return ends[-1]

    def receive(self, mark: bytes) -> bytearray:
        conn, commands, ends = self._sent.pop(mark)
        first, *others = self._followed(commands, self.receive_marked(conn, ends))
        for reply in others:
            first += reply
        return first

    def ask(self, commands: Sequence[Command]) -> list[bytearray]:
        return self._followed(commands, super().ask(commands))

    def _followed(self, commands: Sequence[Command], replies: list[bytearray]) -> list[bytearray]:
        return [
            self._follow(command, reply) if reply.startswith(_REDIRECTED) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]

    def _follow(self, command: Command, reply: bytearray) -> bytearray:
        """The reply of the node that has the key now. After a while the last redirect stands."""
        delivery = deliver(Batch([command], resend=True), _no_keys, Patience(), watching=False)
        known, last = [reply], reply

        async def send(turn: Round) -> list[list[Any]]:
            nonlocal last
            [leg] = turn.legs
            last = known.pop() if known else self._ask_again(command, leg)
            return [[b"", _parsed(last)] if leg.ask else [_parsed(last)]]

        finish(drive(delivery, self._nodes.prepare, send))
        return last

    def _ask_again(self, command: Command, leg: Leg) -> bytearray:
        if leg.ask is None:
            conn = self._owner_of(command)
            return self.receive_on(conn, self.send_on(conn, [command]))
        conn = self._conn_to(finish(self._nodes.node_at(leg.ask)))
        reply = self.receive_on(conn, self.send_on(conn, leg.wire()))
        del reply[: reply.index(b"\r\n") + 2]  # of ASKING
        return reply

    def _owner_of(self, command: Command) -> Any:
        [key, *_] = keys_of(command, _no_keys)
        return self._conn_to(finish(self._nodes.node_of(slot_of(key))))

    def _conn_to(self, node: Any) -> Any:
        conn = self._conns.get(node.name)
        if conn is None:
            conn = self._conns[node.name] = finish(self._nodes.take(node))
        return conn

    # Writes, on the connection that WATCHes

    def call(self, *commands: Command) -> list[Any]:
        replies = super().call(*commands)
        for reply in replies:
            if isinstance(reply, REDIRECTS):
                self._note(reply)
                raise SlotMovedError(f"a slot moves to another node ({reply})")
        return replies

    def exchange(self, before: Iterable[Command], packed: bytes, after: Iterable[Command]) -> bytearray:
        reply = super().exchange(before, packed, after)
        lines = b"\r\n" + bytes(reply)
        for word in _REDIRECTED:
            at = lines.find(b"\r\n" + word)
            if at >= 0:  # then all of the MULTI was refused
                text = lines[at + 3 :].partition(b"\r\n")[0].decode()
                self._note(parse_error(text))
                raise SlotMovedError(f"a slot moves to another node ({text})")
        return reply

    def _note(self, error: Any) -> None:
        if isinstance(error, MovedError):
            finish(self._nodes.note_moved([error]))
        elif isinstance(error, ClusterDownError):
            finish(self._nodes.read_map())


def _parsed(reply: bytearray) -> Any:
    """A redirect as redis-py's exception; any other reply as it is."""
    return (
        parse_error(bytes(reply[1:]).partition(b"\r\n")[0].decode())
        if reply.startswith(_REDIRECTED)
        else reply
    )


def _no_keys(command: Command) -> Sequence[Any]:
    return ()


# ----------------------------------------------------------------------------------------------------
# Bulk

__all__ = ["RedisError", "Server", "Wire", "shown"]


TRIES = 3


class Server:
    """One server, or one cluster. `options` are redis-py's, as text or typed.

    The option cluster: whether it is one. Without it, the server is asked at the first use.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        typed = {name: _typed(name, value) for name, value in (options or {}).items()}
        self._is_cluster: bool | None = typed.pop("cluster", None)
        # RESP2, because the page parser reads only that. redis-py retries lost connections.
        settings = {"retry": Retry(ExponentialBackoff(cap=1.0), TRIES), **QUICK_HELLO, **typed}
        settings["protocol"] = 2
        group = split_sentinel(url)
        # Fails now if the URL is invalid, also for a cluster.
        parse_url(group.server if group else url)  # type: ignore[no-untyped-call]
        self.url = url
        self._settings = settings
        self._nodes: BulkCluster | None = None
        if self._is_cluster and group is not None:
            raise OptionError("redis.cluster", "sentinels watch one server, not a cluster")
        self._client: Any = None
        if group is not None:
            self._is_cluster = False
            self._client = redis.Redis(connection_pool=sentinel_pool(url, settings))
        elif not self._is_cluster:
            self._client = redis.Redis.from_url(url, **settings)
        if self._client is not None:
            self._client.connection_pool.make_connection()  # fails now on an unknown option; opens no socket

    def close(self) -> None:
        for each in (self._client, self._nodes):
            if each is not None:
                each.close()

    @property
    def is_cluster(self) -> bool:
        if self._is_cluster is None:
            self._is_cluster = _run(self._client.connection_pool, ask_is_cluster())
        return self._is_cluster

    @property
    def _cluster(self) -> BulkCluster | None:
        """The cluster, connected on first use; None if it is one server."""
        if self._nodes is None and self.is_cluster:
            self._nodes = BulkCluster(self.url, self._settings)
        return self._nodes

    def by_node(self, items: Iterable[T], key_of: Callable[[T], bytes]) -> list[list[T]]:
        """Groups of items whose keys are on the same server."""
        if self._cluster is not None:
            return self._cluster.by_node(items, key_of)
        whole = [*items]
        return [whole] if whole else []

    def run(self, plan: Plan[T], key: bytes | None = None) -> T:
        """Run a plan on the server that holds a key; of a cluster, on any without a key."""
        if self._cluster is not None:
            return self._cluster.run(plan, key)
        return _run(self._client.connection_pool, plan)

    def run_everywhere(self, make: Any) -> list[Any]:
        """Run a plan on every primary."""
        return [run_here(make()) for run_here in self.each_primary()]

    def each_primary(self) -> list[Callable[[Plan[Any]], Any]]:
        """For every primary: a function that runs a plan on it, and there only."""
        pools = [self._client.connection_pool] if self._cluster is None else self._cluster.pools()
        return [partial(_run, pool) for pool in pools]

    @contextmanager
    def wire(self, key: bytes) -> Iterator[Wire]:
        """A raw connection to the server that holds a key. It is closed if the block raises."""
        if self._cluster is not None:
            with self._cluster.wire(key) as wire:
                yield wire
            return
        pool = self._client.connection_pool
        conn = pool.get_connection()
        try:
            yield Wire(conn)
        except BaseException:
            conn.disconnect()
            raise
        finally:
            pool.release(conn)

    def in_slot(self, key: bytes, work: Callable[[Wire], T]) -> T:
        """Work with a raw connection to the server that holds a key. On a cluster, a step of the work that
        was refused because the slot moves has done nothing, and all of the work begins again."""
        if self._cluster is not None:
            return self._cluster.in_slot(key, work)
        with self.wire(key) as wire:
            return work(wire)


def _typed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "cluster":
        return value.lower() in ("true", "1", "yes")
    parser = URL_QUERY_ARGUMENT_PARSERS.get(name)
    return value if parser is None else parser(value)  # type: ignore[operator]


def _run(pool: Any, plan: Plan[T]) -> T:
    conn = pool.get_connection()
    try:
        return run_plan(plan, Sender(conn))
    except NotResentError as lost:
        raise lost.for_user() from None
    except BaseException:
        conn.disconnect()
        raise
    finally:
        pool.release(conn)
