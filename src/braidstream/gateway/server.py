"""The listening side: who may come in, how many, and how it ends."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from braidstream.errors import ConfigError, LostError
from braidstream.gateway.backends import lets_anybody_in
from braidstream.gateway.client_connection import ClientConnection
from braidstream.gateway.hub import Hub, Settings
from braidstream.model.region_config import Region
from braidstream.net.address import Address
from braidstream.net.sentinels import Sentinels
from braidstream.observability.events import emit

_REFRESH_S: Final = 0.4
_FOLLOW_S: Final = 1.0
_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class Listen:
    """HOST:PORT, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str | None = None

    @staticmethod
    def parse(text: str) -> "Listen":
        if text.startswith("unix:"):
            return Listen(path=text.removeprefix("unix:").replace("///", "/", 1))
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is no address to listen on. Write HOST:PORT or unix:/path/to/socket.")
        return Listen(host.strip("[]"), int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Gateway:
    """A server before one engine. It is stateless: run several and restart any of them."""

    def __init__(self, address: Address, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.hub = Hub(address, self.settings)
        self._address = address
        self._servers: list[asyncio.AbstractServer] = []
        self._socket: str | None = None

    async def start(self, listen: Listen) -> str:
        """Listen; the address that clients connect to. The engine must answer, and be a region."""
        region = self.hub.database(self._address.db)
        await region.refuse_cluster()
        await region.ask()
        try:
            await self._check_exposure(listen)
            where = await self._listen(listen)
        except BaseException:
            await self.stop()
            raise
        self.hub.run(self._keep_fresh())
        if self._address.sentinels is not None:
            self.hub.run(self._follow_primary(self._address.sentinels))
        return where

    @property
    def region(self) -> Region:
        """The region behind it; known once it has started."""
        region = self.hub.database(self._address.db).cache.region
        assert region is not None
        return region

    async def _check_exposure(self, listen: Listen) -> None:
        """The engine sees our address, not the clients': its protected-mode and bind do not hold for them."""
        tls = self.settings.tls
        asks_certificates = tls is not None and tls.verify_mode == ssl.CERT_REQUIRED
        if listen.is_local or asks_certificates or not await lets_anybody_in(self._address):
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
        server: asyncio.AbstractServer
        if listen.path is not None:
            _remove_socket(listen.path)
            server = await loop.create_unix_server(self._client, listen.path, ssl=tls, backlog=_BACKLOG)
            where = str(listen)
        else:
            server = await loop.create_server(
                self._client, listen.host, listen.port, ssl=tls, backlog=_BACKLOG
            )
            host, port = server.sockets[0].getsockname()[:2]
            where = f"{host}:{port}"
        self._servers.append(server)
        self._socket = listen.path
        return where

    async def stop(self) -> None:
        """Take nobody and nothing more, answer what was taken, then close."""
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
        for _ in range(5):  # turns of the loop until sockets are closed: TLS takes some
            await asyncio.sleep(0)

    def _client(self) -> ClientConnection:
        return ClientConnection(self.hub)

    async def _follow_primary(self, sentinels: Sentinels) -> None:
        """After a failover the old primary may go on answering for a while: leave it."""
        while True:
            await asyncio.sleep(_FOLLOW_S)
            with suppress(LostError):  # no sentinel answers: stay where we are
                place = await sentinels.primary()
                self.hub.backends.leave_others(place)
                for database in self.hub.databases.values():
                    database.lane.leave_others(place)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            for database in list(self.hub.databases.values()):
                await database.keep_fresh()


def _remove_socket(path: str) -> None:
    """What a gateway before us left behind. Nothing else is ever removed."""
    place = Path(path)
    if place.is_socket():
        place.unlink()
