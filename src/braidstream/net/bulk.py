"""Servers and clusters for bulk work (Spark): plans by key, and connections that carry raw bytes.

redis-py opens and authenticates a connection. Then a `Wire` sends and receives bytes on its socket, so a
reply of thousands of entries becomes columns without becoming Python objects first. Clients do not use this.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.exceptions import RedisClusterException, RedisError
from redis.retry import Retry

from braidstream.errors import OptionError
from braidstream.model.command import Command
from braidstream.net.address import sentinel_pool, shown, split_sentinel
from braidstream.net.compat import QUICK_HELLO, socket_of
from braidstream.net.sender import NotResentError, Sender
from braidstream.protocol.plan import Plan, run

__all__ = ["RedisError", "Server", "Wire", "shown"]

T = TypeVar("T")

TRIES = 3
CHUNK = 1 << 20


class Server:
    """One server, or one cluster. `options` are redis-py's, as text or typed."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        typed = {name: _typed(name, value) for name, value in (options or {}).items()}
        is_cluster = bool(typed.pop("cluster", False))
        # RESP2, because the page parser reads only that. redis-py retries lost connections.
        settings = {"retry": Retry(ExponentialBackoff(cap=1.0), TRIES), **QUICK_HELLO, **typed}
        settings["protocol"] = 2
        group = split_sentinel(url)
        # Fails now if the URL is invalid, also for a cluster.
        parse_url(group.server if group else url)  # type: ignore[no-untyped-call]
        self.url = url
        self._settings = settings
        self._cluster: Any = None
        if is_cluster and group is not None:
            raise OptionError("redis.cluster", "sentinels watch one server, not a cluster")
        self._client: Any = None
        if group is not None:
            self._client = redis.Redis(connection_pool=sentinel_pool(url, settings))
        elif not is_cluster:
            self._client = redis.Redis.from_url(url, **settings)
        if self._client is not None:
            self._client.connection_pool.make_connection()  # fails now on an unknown option; opens no socket

    def close(self) -> None:
        for each in (self._client, self._cluster):
            if each is not None:
                each.close()

    def _nodes(self) -> Any:
        """The cluster, connected on first use."""
        if self._cluster is None:
            try:
                self._cluster = redis.RedisCluster.from_url(self.url, **self._settings)
            except RedisClusterException as error:
                raise redis.ConnectionError(str(error)) from error
            except (TypeError, ValueError) as error:
                raise OptionError("redis.*", str(error)) from None
        return self._cluster

    def _pools(self) -> list[Any]:
        if self._client is not None:
            return [self._client.connection_pool]
        cluster = self._nodes()
        return [cluster.get_redis_connection(node).connection_pool for node in cluster.get_primaries()]

    def _pool(self, key: bytes) -> Any:
        if self._client is not None:
            return self._client.connection_pool
        cluster = self._nodes()
        return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool

    def by_node(self, items: Iterable[T], key_of: Callable[[T], bytes]) -> list[list[T]]:
        """Groups of items whose keys are on the same server."""
        if self._client is not None:
            whole = [*items]
            return [whole] if whole else []
        cluster, groups = self._nodes(), dict[str, list[T]]()
        for item in items:
            groups.setdefault(cluster.get_node_from_key(key_of(item)).name, []).append(item)
        return list(groups.values())

    def run(self, plan: Plan[T], key: bytes) -> T:
        """Run a plan on the server that holds a key."""
        return _run(self._pool(key), plan)

    def run_everywhere(self, make: Any) -> list[Any]:
        """Run a plan on every primary."""
        return [run_here(make()) for run_here in self.each_primary()]

    def each_primary(self) -> list[Callable[[Plan[Any]], Any]]:
        """For every primary: a function that runs a plan on it."""
        return [partial(_run, pool) for pool in self._pools()]

    @contextmanager
    def wire(self, key: bytes) -> Iterator["Wire"]:
        """A raw connection to the server that holds a key. It is closed if the block raises."""
        pool = self._pool(key)
        conn = pool.get_connection()
        try:
            yield Wire(conn)
        except BaseException:
            conn.disconnect()
            raise
        finally:
            pool.release(conn)


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
        return run(plan, Sender(conn))
    except NotResentError as lost:
        raise lost.for_user() from None
    except BaseException:
        conn.disconnect()
        raise
    finally:
        pool.release(conn)


class Wire:
    """The socket of a connection, used as bytes."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self._buffer = bytearray(CHUNK)

    def send(self, *commands: Command) -> bytes:
        """Send commands. Returns the mark that ends their replies, for `receive`."""
        return self._send_packed(self.conn.pack_commands(commands))

    def ask(self, commands: Sequence[Command]) -> list[bytearray]:
        """Run commands in one round trip. Returns the reply to each, as bytes."""
        nonce, packed = secrets.token_hex(12).encode(), list[bytes]()
        marks = [b"%b%08d" % (nonce, at) for at in range(len(commands))]
        for command, mark in zip(commands, marks, strict=True):
            packed += self.conn.pack_command(*command)
            packed += self.conn.pack_command("ECHO", mark)
        socket_of(self.conn).sendall(b"".join(packed))
        ends = [b"$32\r\n%b\r\n" % mark for mark in marks]
        whole, at = self.receive(ends[-1]), 0
        replies = list[bytearray]()
        for end in ends[:-1]:
            stop = whole.index(end, at)
            replies.append(whole[at:stop])
            at = stop + len(end)
        return [*replies, whole[at:]]

    def call(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip. Errors are returned as values."""
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
        return self.receive(self._send_packed((*pack([*before]), packed, *pack([*after]))))

    def _send_packed(self, parts: Iterable[bytes]) -> bytes:
        mark = secrets.token_hex(16).encode()
        socket_of(self.conn).sendall(b"".join((*parts, *self.conn.pack_command("ECHO", mark))))
        return b"$32\r\n%s\r\n" % mark

    def receive(self, mark: bytes) -> bytearray:
        """All bytes before the mark. The mark is random, so no entry contains it."""
        buffer, filled = self._buffer, 0
        recv_into = socket_of(self.conn).recv_into
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
