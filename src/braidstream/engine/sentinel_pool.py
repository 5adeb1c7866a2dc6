"""redis-py's connection pools for sentinels. They leave a primary as soon as a failover begins.

redis-py notices a failover when a connection breaks or a write is refused. Before the sentinels demote the
old primary, some 10 s pass in which it acknowledges writes that are lost. So each checkout of a connection
looks at what the sentinels have announced.
"""

import asyncio
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import Any, Final

import hiredis
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.connection import RedisSSLContext
from redis.connection import parse_url
from redis.exceptions import RedisError

from braidstream.engine.address import split_sentinel
from braidstream.engine.redis_py import forced_primary
from braidstream.engine.sentinels import TIMEOUT_S, Place, Sentinels, login, pack_words

# ----------------------------------------------------------------------------------------------------
#
# Hears from the sentinels when a failover begins and who the new primary is, without a thread or a task.
#
#     SENTINEL FAILOVER           some 0.2 s            about 1 s              about 10 s
#           |------------------------|---------------------|------------------------|
#     +try-failover             replica promoted     +promoted-slave       old primary demoted
#           |<---- hold: send nothing ------------------->|<---- use the new primary only ------
#
# The sentinels demote the old primary late, and until then it acknowledges writes that are lost. Its role
# does not show that, so clients subscribe to the events of all sentinels: only the one that leads a
# failover has the first of them. `look` reads what has arrived and never blocks. Connections to sentinels
# are opened in a thread that ends: name servers, TLS and hosts that are down take time.

# Patterns of the events: +try-failover, +failover-end, -failover-abort-*; the other two name the new primary.
EVENTS: Final = ("*failover*", "+promoted-slave", "+switch-master")
_ENDS: Final = ("+failover-end", "-failover-abort")
# How often busy clients look. Between the first event and the promotion are two ticks of a sentinel: 0.2 s.
LOOK_S: Final = 0.01
# A program that ends sooner opens no connection.
OPEN_AFTER_S: Final = 1.0
OPEN_AGAIN_S: Final = 5.0
# The longest hold: then clients go on with the primary that they have.
HOLD_S: Final = 5.0
# For this time the event is newer than what a sentinel says that has not heard of it.
NEWS_S: Final = 60.0


class FailoverWatch:
    """See the top of the file. Call `look` before a command, and send nothing while `holds`.

    switches: how many times the primary changed. Connections from before must not be used.
    """

    def __init__(self, sentinels: Sentinels) -> None:
        self.switches = 0
        self._sentinels = sentinels
        self._lock = threading.Lock()
        self._held_until = float("-inf")
        self._news: tuple[Place, float] | None = None
        self._look_at = self._open_at = 0.0
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._opener: threading.Thread | None = None
        self._closed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._open: dict[Place, socket.socket] = {}

    @property
    def holds(self) -> bool:
        """Whether a failover is under way whose new primary is not known yet."""
        return time.monotonic() < self._held_until

    @property
    def primary(self) -> Place | None:
        """The new primary, if a failover ended a short time ago."""
        if self._news is None or time.monotonic() > self._news[1] + NEWS_S or not self._open:
            return None
        return self._news[0]

    def look(self) -> None:
        """`read`, but not too often: most calls only read the clock."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.read()

    def read(self) -> None:
        """Read what the sentinels have sent, and open connections that are missing."""
        self._leave_parent()
        if not self._lock.acquire(blocking=False):
            return
        try:
            for key, _ in self._selector.select(0):
                self._read(key)
            if len(self._open) < len(self._sentinels.places):
                self._reopen(time.monotonic())
        finally:
            self._lock.release()

    def fileno(self) -> int:
        """Readable when something has arrived, for event loops."""
        return self._selector.fileno()

    def close(self) -> None:
        self._leave_parent()
        with self._lock:
            self._close()
            self._open_at = 0.0

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._close()

    def _close(self) -> None:
        self._closed.set()
        for sock in self._open.values():
            sock.close()
        self._selector.close()
        self._reset()

    def _leave_parent(self) -> None:
        """In a forked process: connections and lock are those of its parent."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._close()

    def _reopen(self, now: float) -> None:
        if now < self._open_at or (self._opener is not None and self._opener.is_alive()):
            return
        wait_s = 0.0 if self._open_at else OPEN_AFTER_S
        self._open_at = now + OPEN_AGAIN_S
        missing = [place for place in self._sentinels.places if place not in self._open]
        args = missing, wait_s, self._closed
        self._opener = threading.Thread(target=self._open_all, args=args, daemon=True)
        self._opener.start()

    def _open_all(self, places: list[Place], wait_s: float, closed: threading.Event) -> None:
        closed.wait(wait_s)
        for place in places:
            if closed.is_set():
                return
            with suppress(OSError):
                sock = self._subscribe(place)
                with self._lock:
                    if closed.is_set():
                        sock.close()
                        return
                    self._open[place] = sock
                    self._selector.register(sock, selectors.EVENT_READ, (place, hiredis.Reader()))

    def _subscribe(self, place: Place) -> socket.socket:
        sock = socket.create_connection(place, TIMEOUT_S)
        try:
            if self._sentinels.tls is not None:
                sock = self._sentinels.tls.wrap_socket(sock, server_hostname=place[0])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.sendall(b"".join(map(pack_words, [*login(self._sentinels), ("PSUBSCRIBE", *EVENTS)])))
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def _read(self, key: selectors.SelectorKey) -> None:
        sock: Any = key.fileobj
        place, reader = key.data
        try:
            while data := sock.recv(65536):
                reader.feed(data)
            self._drop(place, sock)
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self._drop(place, sock)
        while (message := reader.gets()) is not False:
            # An error: the user has no right to subscribe, and the sentinel sends nothing.
            if isinstance(message, list) and message[0] == b"pmessage":
                self._hear(message[2].decode(), message[3].decode("utf-8", "replace").split())

    def _drop(self, place: Place, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        self._open.pop(place, None)
        sock.close()

    def _hear(self, event: str, words: list[str]) -> None:
        ours, now = self._sentinels.service, time.monotonic()
        match event, *words:
            case "+switch-master", service, _, _, host, port if service == ours:
                self._switch((host, int(port)), now)
            case "+promoted-slave", _, _, host, port, "@", service, _, _ if service == ours:
                self._switch((host, int(port)), now)
            case "+try-failover", "master", service, *_ if service == ours:
                self._held_until = now + HOLD_S
            case _, "master", service, *_ if service == ours and event.startswith(_ENDS):
                self._held_until = now

    def _switch(self, primary: Place, now: float) -> None:
        if self._news is None or self._news[0] != primary:
            self.switches += 1
        self._news = primary, now
        self._held_until = now


# ----------------------------------------------------------------------------------------------------
# Sentinel pool


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
    """Also closes the connections to the sentinels, which have no other owner."""

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
