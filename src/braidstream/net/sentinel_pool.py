"""redis-py's connection pools for sentinels. They leave a primary as soon as a failover begins.

redis-py notices a failover when a connection breaks or a write is refused. Before the sentinels demote the
old primary, some 10 s pass in which it acknowledges writes that are lost. So each checkout of a connection
looks at what the sentinels have announced (failover_watch.py).
"""

import asyncio
import time
from collections.abc import Mapping
from inspect import signature
from typing import Any

import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.connection import RedisSSLContext
from redis.connection import parse_url
from redis.exceptions import RedisError

from braidstream.net.address import split_sentinel
from braidstream.net.compat import forced_primary
from braidstream.net.failover_watch import LOOK_S, FailoverWatch
from braidstream.net.sentinels import Sentinels


class _Manager:
    """redis-py's Sentinel for one pool. An event of a sentinel is newer than what the others say."""

    def __init__(self, sentinel: Any, watch: FailoverWatch) -> None:
        self._sentinel, self._watch = sentinel, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sentinel, name)

    def _announced(self) -> tuple[str, int] | None:
        place, forced = self._watch.primary, forced_primary(self._sentinel)
        return place if place is None or forced is None else (forced, place[1])

    def discover_master(self, service_name: str) -> Any:
        return self._announced() or self._sentinel.discover_master(service_name)


class _AsyncManager(_Manager):
    async def discover_master(self, service_name: str) -> Any:
        return self._announced() or await self._sentinel.discover_master(service_name)


class _Watching:
    """What both pools share. A base class to list before redis-py's pool."""

    sentinel_manager: Any
    is_master: bool
    manager_class: type[_Manager]

    def __init__(self, service_name: str, sentinel_manager: Any, **options: Any) -> None:
        self.watch = FailoverWatch(_sentinels_of(sentinel_manager, service_name))
        manager = self.manager_class(sentinel_manager, self.watch)
        super().__init__(service_name, manager, **options)  # type: ignore[call-arg]

    def is_outdated(self, conn: Any) -> bool:
        """Whether a connection is from before the last failover."""
        seen, conn.seen_switches = getattr(conn, "seen_switches", self.watch.switches), self.watch.switches
        return self.is_master and bool(seen != self.watch.switches)


class SentinelPool(_Watching, redis.sentinel.SentinelConnectionPool):
    """See the top of the file."""

    manager_class = _Manager

    def get_connection(self, *args: Any, **options: Any) -> Any:
        if self.is_master:
            self.watch.look()
            while self.watch.holds:
                time.sleep(LOOK_S)
                self.watch.look()
        conn: Any = super().get_connection(*args, **options)
        if self.is_outdated(conn):
            try:
                conn.disconnect()
                conn.connect()
            except BaseException:
                self.release(conn)
                raise
        return conn

    def disconnect(self, inuse_connections: bool = True) -> None:
        """redis-py disconnects the idle ones when the primary changes. A client that closes, all of them."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.watch.close()


class AsyncSentinelPool(_Watching, redis.asyncio.sentinel.SentinelConnectionPool):
    """The same for asyncio."""

    manager_class = _AsyncManager

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        if self.is_master:
            self.watch.look()
            while self.watch.holds:
                await asyncio.sleep(LOOK_S)
                self.watch.look()
        conn: Any = await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        if self.is_outdated(conn):
            try:
                await conn.disconnect()
                await conn.connect()
            except BaseException:
                await self.release(conn)
                raise
        return conn

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            self.watch.close()


class _UrlPool(SentinelPool):
    """Also closes the connections to the sentinels, which nobody else has."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()


class _AsyncUrlPool(AsyncSentinelPool):
    """The same for asyncio."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def _sentinels_of(manager: Any, service: str) -> Sentinels:
    """The sentinels of redis-py's Sentinel, with the options of its connections to them."""
    pools = [each.connection_pool for each in manager.sentinels]
    options = pools[0].connection_kwargs if pools else {}
    tls = None
    if "ssl_cert_reqs" in options:
        known = signature(RedisSSLContext).parameters
        words = {key[4:]: value for key, value in options.items() if key.startswith("ssl_")}
        try:
            tls = RedisSSLContext(**{key: value for key, value in words.items() if key in known}).get()
        except (OSError, ValueError, RedisError):  # redis-py says so when it connects
            pools = []
    places = tuple((pool.connection_kwargs["host"], int(pool.connection_kwargs["port"])) for pool in pools)
    return Sentinels(places, service, options.get("username"), options.get("password"), tls)


def sentinel_pool(url: str, options: Mapping[str, Any], *, is_async: bool = False) -> Any:
    """A connection pool for a sentinel URL; None for any other URL."""
    group = split_sentinel(url)
    if group is None:
        return None
    kind: Any = redis.asyncio.sentinel.Sentinel if is_async else redis.sentinel.Sentinel
    pool: Any = _AsyncUrlPool if is_async else _UrlPool
    server = {**options, **parse_url(group.server)}  # type: ignore[no-untyped-call]
    sentinel = {name: value for name, value in server.items() if name.startswith(("ssl_", "socket_"))}
    if server.pop("connection_class", None) is not None:
        sentinel["ssl"] = server["ssl"] = True
    for name in ("host", "port"):
        server.pop(name, None)
    login = {"username": group.user, "password": group.password}
    sentinel |= {name: value for name, value in login.items() if value is not None}
    return pool(group.service, kind(group.places, sentinel_kwargs=sentinel), **server)
