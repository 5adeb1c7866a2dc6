"""Listens for clients: where, how many, and the shutdown."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from braidstream.clients.shared_multi_region import CAUGHT_UP_S
from braidstream.config import RegionConfig
from braidstream.engine.address import Address, Listen
from braidstream.engine.exposure import is_exposed
from braidstream.engine.sentinel_pool import FailoverWatch
from braidstream.engine.sentinels import Place, Sentinels
from braidstream.errors import BraidError, ConfigError, LostError
from braidstream.gateway.client_socket import ClientConnection
from braidstream.gateway.homes import Homes, OtherRegion
from braidstream.gateway.hub import Hub, Settings
from braidstream.gateway.lanes import find_nodes
from braidstream.model.region import Region
from braidstream.observability.events import Repeated, emit, event_families
from braidstream.observability.metrics import Family, process_families

_REFRESH_S: Final = 0.4
_FOLLOW_S: Final = 1.0
_WATCH_S: Final = 1.0
_SLOTS_S: Final = 5.0
_LISTEN_S: Final = 1.0
_STRANGERS_S: Final = 5.0
_BACKLOG: Final = 1024
# A connection counts for `maxclients` once its TLS handshake is done.
_HANDSHAKE_S: Final = 5.0
_ANSWERS_WITHIN_S: Final = 2.0


class Gateway:
    """A server before one engine. It is stateless: run several and restart any of them."""

    def __init__(
        self, address: Address, settings: Settings | None = None, others: Iterable[RegionConfig] = ()
    ) -> None:
        """others: the other regions. Writes to logs are forwarded to them."""
        self.settings = settings or Settings()
        self.hub = Hub(address, self.settings)
        self._address = address
        self._others = {region.id: OtherRegion(region) for region in others}
        self._lags = dict[str, float | None]()
        self._servers: list[asyncio.AbstractServer] = []
        self._socket: str | None = None

    async def start(self, listen: Listen) -> str:
        """Start to listen. Returns the address for clients. The engine must answer and be a region."""
        await self._identify()
        try:
            await self._check_exposure(listen)
            where = await self._listen(listen)
        except BaseException:
            await self.stop()
            raise
        self.hub.run(self._keep_fresh())
        self.hub.run(self._leave_silent())
        self.hub.run(self._watch_engine())
        self.hub.run(self._leave_strangers())
        if self.hub.announced is not None:
            host, _, port = where.rpartition(":")
            self.hub.run(self.hub.announced.watch((host, int(port))))
        self.hub.run(self._read_slots())
        if self._others:
            self.hub.homes = Homes(self.region.id, self._others)
            for other in self._others.values():
                self.hub.run(other.keep_fresh())
                self.hub.run(self._watch_lag(other))
        if self._address.sentinels is not None:
            self.hub.run(self._follow_primary(self._address.sentinels))
        return where

    @property
    def region(self) -> Region:
        """The region behind the gateway. Only after the start."""
        region = self.hub.database(self._address.db).cache.region
        assert region is not None
        return region

    def families(self) -> list[Family]:
        """For /metrics."""
        hub = self.hub
        return [
            *process_families("gateway"),
            *event_families(),
            Family.gauge("braid_gateway_clients", "Connected clients.", {(): len(hub.clients)}),
            Family.gauge(
                "braid_gateway_own_connections",
                "Connections to the engine that belong to one client.",
                {(): hub.backends.owned},
            ),
            Family.gauge(
                "braid_gateway_client_memory_bytes",
                "Commands and unread replies of all clients, beyond 64 kB of replies each.",
                {(): hub.memory},
            ),
            Family.gauge(
                "braid_engine_up",
                "1 if the region's engine is connected.",
                {(): int(hub.database(self._address.db).lane.is_connected)},
            ),
            *hub.metrics.families(),
            *hub.audit.families(hub.backends.denied + hub.metrics.errors.get("NOPERM", 0)),
            *([] if hub.homes is None else hub.homes.families()),
        ]

    async def why_not_ready(self) -> str:
        """Why the gateway cannot serve clients; empty if it can. Queries the engine."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                await self.hub.database(self._address.db).identify()
        except TimeoutError:
            return f"the region's engine does not answer within {_ANSWERS_WITHIN_S:g} s"
        except BraidError as error:
            return str(error)
        return ""

    def behind(self, most_s: float = CAUGHT_UP_S) -> str:
        """Of which other regions this one lacks entries that are older; empty if none says so."""
        found = {name: lag for name, lag in self._lags.items() if lag is not None and lag > most_s}
        text = ", ".join(
            f"{name} cannot send to it" if lag == inf else f"{name} has had entries for {lag:.1f} s"
            for name, lag in found.items()
        )
        return f"region {self.region.name} is behind: {text}" if found else ""

    async def _identify(self) -> None:
        """Read which nodes the engine has, and which region it is."""
        self.hub.backends.nodes = await find_nodes(self._address)
        await self.hub.database(self._address.db).identify()

    async def _check_exposure(self, listen: Listen) -> None:
        """Refuse to expose an engine without a password."""
        if not await is_exposed(self._address, listen, self.settings.tls):
            return
        if not self.settings.allow_open:
            raise ConfigError(
                f"anyone who can reach {listen} could read and change everything: the server behind it "
                "requires no password. Set one there (requirepass or ACL users), require client certificates "
                "(--tls-ca), listen on 127.0.0.1, or pass --allow-open."
            )
        emit("gateway.open", gateway=listen)

    async def _listen(self, listen: Listen) -> str:
        loop, tls = asyncio.get_running_loop(), self.settings.tls
        within_s = None if tls is None else _HANDSHAKE_S
        server: asyncio.AbstractServer
        if listen.path is not None:
            _remove_socket(listen.path)
            server = await loop.create_unix_server(
                self._client, listen.path, ssl=tls, ssl_handshake_timeout=within_s, backlog=_BACKLOG
            )
            where = str(listen)
        else:
            server = await loop.create_server(
                self._client,
                listen.host,
                listen.port,
                ssl=tls,
                ssl_handshake_timeout=within_s,
                backlog=_BACKLOG,
                reuse_port=self.settings.reuse_port or None,
            )
            host, port = server.sockets[0].getsockname()[:2]
            where = f"{host}:{port}"
        self._servers.append(server)
        self._socket = listen.path
        return where

    async def stop(self) -> None:
        """Accept no more clients and commands, answer the running commands, then close."""
        for server in self._servers:
            server.close()
        if self._socket is not None:
            _remove_socket(self._socket)
        for client in list(self.hub.clients):
            client.retire()
        deadline = asyncio.get_running_loop().time() + self.settings.grace_s
        while self.hub.clients and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for client in list(self.hub.clients):
            client.transport.abort()
        self.hub.close()
        for _ in range(5):  # let the event loop close sockets: TLS takes some iterations
            await asyncio.sleep(0)

    def _client(self) -> ClientConnection:
        return ClientConnection(self.hub)

    async def _follow_primary(self, sentinels: Sentinels) -> None:
        """During a failover commands wait. After it the old primary may still answer: disconnect from it."""
        watch, loop = FailoverWatch(sentinels), asyncio.get_running_loop()

        def heard() -> None:
            switches = watch.switches
            watch.read()
            if switches != watch.switches and watch.primary is not None:
                sentinels.expire()
                self._leave_others(watch.primary)
            self.hub.hold(watch.holds)

        loop.add_reader(watch.fileno(), heard)
        try:
            while True:
                watch.look()
                self.hub.hold(watch.holds)
                await asyncio.sleep(_FOLLOW_S)
                with suppress(LostError):  # no sentinel answers: keep the connections
                    self._leave_others(await sentinels.primary())
        finally:
            loop.remove_reader(watch.fileno())
            watch.close()
            self.hub.hold(False)

    def _leave_others(self, place: Place) -> None:
        self.hub.backends.leave_others(place)
        for database in self.hub.databases.values():
            database.lane.leave_others(place)

    async def _leave_silent(self) -> None:
        while True:
            await asyncio.sleep(_LISTEN_S)
            now = asyncio.get_running_loop().time()
            self.hub.backends.leave_silent(now)
            for database in list(self.hub.databases.values()):
                database.lane.leave_silent(now)

    async def _leave_strangers(self) -> None:
        """Disconnect clients that do not log in, if the engine needs a login."""
        while True:
            await asyncio.sleep(min(_STRANGERS_S, self.settings.login_s))
            latest = time.monotonic() - self.settings.login_s
            for client in [*self.hub.clients]:
                if client.is_known or client.connected_at > latest:
                    continue
                with suppress(BraidError):  # the engine does not answer: no client can log in
                    if not await client.is_let_in():
                        client.transport.abort()

    async def _read_slots(self) -> None:
        """Redirects correct the map too; but not for slots that no client uses."""
        while True:
            await asyncio.sleep(_SLOTS_S)
            await self.hub.nodes.slots.read()

    async def _watch_lag(self, other: OtherRegion) -> None:
        while True:
            self._lags[other.name] = await other.lag_of(self.region.name)
            await asyncio.sleep(_WATCH_S)

    async def _watch_engine(self) -> None:
        """Log when the region's server is lost, and when it is back."""
        clock, trouble = asyncio.get_running_loop().time, Repeated()
        while True:
            await asyncio.sleep(_WATCH_S)
            if why := await self.why_not_ready():
                trouble.log("gateway.engine_lost", clock(), why=why)
            elif was := trouble.over(clock()):
                emit("gateway.engine_up", **was)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            for database in list(self.hub.databases.values()):
                await database.keep_fresh()


def _remove_socket(path: str) -> None:
    """Remove the socket of an earlier gateway; never a file that is not a socket."""
    place = Path(path)
    if place.is_socket():
        place.unlink()
