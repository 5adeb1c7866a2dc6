"""The listening side: who may come in, how many, and how it ends."""

import asyncio
import ssl
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from braidstream.errors import ConfigError, LostError
from braidstream.gateway.backends import Backends, Lane, lets_anybody_in
from braidstream.gateway.client_connection import Client
from braidstream.gateway.region_cache import Known
from braidstream.gateway.session import Login
from braidstream.net.address import Address
from braidstream.net.resp import Limits
from braidstream.net.sentinels import Sentinels
from braidstream.observability.events import emit

_REFRESH_S: Final = 0.4
_FOLLOW_S: Final = 1.0
_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses.

    backends: so many clients keep a connection of their own to the engine while idle.
    grace_s: how long a shutdown waits for commands that were taken.
    allow_open: listen on the network though the engine asks for no password.
    """

    maxclients: int = 20_000
    backends: int = 4_000
    grace_s: float = 10.0
    limits: Limits = field(default_factory=Limits)
    tls: ssl.SSLContext | None = None
    allow_open: bool = False


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
    """A server before one engine. It holds nothing that a client or the engine could not tell again."""

    def __init__(self, address: Address, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.limits = self.settings.limits
        self.backends = Backends(address, self.settings.backends)
        self.clients: set[Client] = set()
        self._address, self.db = address, address.db
        self._known: dict[int, Known] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._socket: str | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, listen: Listen) -> str:
        """Listen; the address that clients connect to. The engine must answer, and be a region."""
        await self.known(self.db).refuse_cluster()
        await self.known(self.db).ask()
        try:
            await self._check_exposure(listen)
            where = await self._listen(listen)
        except BaseException:
            await self.stop()
            raise
        self.run(self._keep_fresh())
        if self._address.sentinels is not None:
            self.run(self._follow_primary(self._address.sentinels))
        return where

    async def _check_exposure(self, listen: Listen) -> None:
        """The engine sees our address, not the clients': its protected-mode and bind do not hold for them."""
        tls = self.settings.tls
        asks_certificates = tls is not None and tls.verify_mode == ssl.CERT_REQUIRED
        if listen.is_local or asks_certificates or not await lets_anybody_in(self._address):
            return
        if not self.settings.allow_open:
            raise ConfigError(
                f"anybody who can reach {listen} could read and change everything: the server behind it "
                "asks for no password. Set one there (requirepass or ACL users), demand client certificates "
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
        for client in list(self.clients):
            client.retire()
        deadline = asyncio.get_running_loop().time() + self.settings.grace_s
        while self.clients and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for client in list(self.clients):
            client.transport.abort()
        for task in self._tasks:
            task.cancel()
        self.backends.close()
        for known in self._known.values():
            known.lane.close()
        for _ in range(5):  # turns of the loop until sockets are closed: TLS takes some
            await asyncio.sleep(0)

    # What clients ask for

    def admit(self, client: Client) -> bool:
        if len(self.clients) >= self.settings.maxclients:
            return False
        self.clients.add(client)
        return True

    def left(self, client: Client) -> None:
        self.clients.discard(client)

    def known(self, db: int) -> Known:
        if db not in self._known:
            self._known[db] = Known(self._address.in_db(db))
        return self._known[db]

    def borrow(self, login: Login | None, db: int) -> Lane:
        return self.backends.borrow(login, db, self.known(db).forget)

    def give_back(self, lane: Lane) -> None:
        self.backends.give_back(lane)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def crashed(self, error: Exception) -> None:
        emit("gateway.failed", why="".join(traceback.format_exception(error)))

    def _client(self) -> Client:
        return Client(self)

    async def _follow_primary(self, sentinels: Sentinels) -> None:
        """After a failover the old primary may go on answering for a while: leave it."""
        while True:
            await asyncio.sleep(_FOLLOW_S)
            with suppress(LostError):  # no sentinel answers: stay where we are
                place = await sentinels.primary()
                self.backends.leave_others(place)
                for known in self._known.values():
                    known.lane.leave_others(place)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            for known in list(self._known.values()):
                await known.keep_fresh()


def _remove_socket(path: str) -> None:
    """What a gateway before us left behind. Nothing else is ever removed."""
    place = Path(path)
    if place.is_socket():
        place.unlink()
