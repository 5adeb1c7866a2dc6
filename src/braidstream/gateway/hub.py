"""What the clients of a gateway share: connections to the engine, a cache per database, limits."""

import asyncio
import ssl
import traceback
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from braidstream.gateway.announce import Announced
from braidstream.gateway.backends import Backends, Lane
from braidstream.gateway.client_audit import Audit
from braidstream.gateway.cluster_database import ClusterDatabase
from braidstream.gateway.cluster_lane import ClusterLane
from braidstream.gateway.database import Database
from braidstream.gateway.gateway_metrics import GatewayMetrics
from braidstream.gateway.ready_nodes import ReadyNodes
from braidstream.gateway.session import Login
from braidstream.net.address import Address
from braidstream.net.resp import Limits
from braidstream.net.sentinels import Place
from braidstream.observability.events import emit
from braidstream.observability.metrics import Family
from braidstream.observability.repeated import Repeated
from braidstream.observability.traces import Traces
from braidstream.protocol.gather import Queued

GIGABYTE: Final = 1 << 30


def shown_client(transport: asyncio.Transport) -> str:
    """The address of a client, for the log."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix socket"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses.

    backends: how many idle clients keep an engine connection of their own.
    grace_s: how long a shutdown waits for running commands.
    allow_open: listen on the network even if the engine requires no password.
    announce: the gateways that cluster clients see as nodes: announce.py. Empty: clients see one server.
    users: passwords of the users that clients log in as by their certificate, by its common name.
    functions_admin: the user who may change the functions of braidstream. Empty: no user.
    login_s: how long a client may take to log in, if the engine needs a login.
    most_reply: bytes of replies that the gateway holds for one command or MULTI.
    maxmemory_clients: bytes of all clients together: their commands, and replies that they have not read.
    """

    maxclients: int = 20_000
    backends: int = 4_000
    grace_s: float = 10.0
    limits: Limits = field(default_factory=Limits)
    tls: ssl.SSLContext | None = None
    allow_open: bool = False
    announce: tuple[Place, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    functions_admin: str = ""
    login_s: float = 60.0
    most_reply: int = GIGABYTE
    maxmemory_clients: int = GIGABYTE


class Admitted(Protocol):
    """A connected client, as the hub counts and a shutdown closes it."""

    transport: asyncio.Transport
    counted: int
    connected_at: float
    is_known: bool

    async def is_let_in(self) -> bool: ...

    def retire(self) -> None: ...

    def evict(self) -> None: ...


class Forwards(Protocol):
    """Runs writes of logs in other regions: homes.py."""

    async def forward(self, client: Any, queued: list[Queued]) -> None: ...

    def families(self) -> list[Family]: ...

    def close(self) -> None: ...


class Hub:
    """See the top of the file.

    memory: bytes that all clients hold.
    db: the database of the region. homes: None if no file names the regions. nodes: None before one server.
    announced: None if clients see one server. held: commands wait for it, because a failover is under way.
    """

    def __init__(self, address: Address, settings: Settings) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.backends = Backends(address, settings.backends, settings.most_reply)
        self.clients: set[Admitted] = set()
        self.memory = 0
        self.db = address.db
        self.databases: dict[int, Database] = {}
        self.metrics = GatewayMetrics()
        self.audit = Audit()
        self.traces = Traces()
        self.homes: Forwards | None = None
        self.nodes: ReadyNodes | None = None
        self.announced: Announced | None = None
        if settings.announce:
            self.announced = Announced(settings.announce, uses_tls=settings.tls is not None)
        self.held: asyncio.Future[None] | None = None
        self._address = address
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refusals, self._evictions = Repeated(), Repeated()

    def serve_cluster(self, nodes: ReadyNodes) -> None:
        """The region is a cluster. Called before the first client connects."""
        self.nodes = nodes
        self.backends.new_lane = partial(ClusterLane, nodes=nodes)

    @property
    def mode(self) -> bytes | None:
        """What INFO and HELLO call the server. None: what the engine says."""
        if self.announced is not None:
            return b"cluster"
        return None if self.nodes is None else b"standalone"

    def admit(self, client: Admitted) -> bool:
        """Count a new client; False if there are too many."""
        if len(self.clients) >= self.settings.maxclients:
            self.metrics.refused += 1
            now, most = asyncio.get_running_loop().time(), self.settings.maxclients
            self._refusals.log("gateway.clients_refused", now, maxclients=most, why="too many clients")
            return False
        self.clients.add(client)
        return True

    def login_by_certificate(self, transport: asyncio.Transport) -> Login | None:
        """The login of a new client by the common name of its certificate, if the operator names it."""
        if not self.settings.users:
            return None
        subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]
        password = self.settings.users.get(names[0]) if len(names) == 1 else None
        return None if password is None else Login(names[0].encode(), password.encode())

    def left(self, client: Admitted) -> None:
        self.clients.discard(client)
        self.count_memory(client, 0)

    def count_memory(self, client: Admitted, size: int) -> None:
        """What a client holds now. If it is too much for all together, disconnect the one that holds most."""
        self.memory += size - client.counted
        client.counted = size
        while self.memory > self.settings.maxmemory_clients and self.clients:
            most = max(self.clients, key=lambda each: each.counted)
            if not most.counted:
                return
            self.metrics.evicted += 1
            self._evictions.log(
                "gateway.client_evicted",
                asyncio.get_running_loop().time(),
                client=shown_client(most.transport),
                bytes=most.counted,
                why="--maxmemory-clients is exceeded",
            )
            self.memory -= most.counted
            most.counted = 0
            most.evict()

    def database(self, db: int) -> Database:
        if db not in self.databases:
            address = self._address.in_db(db)
            self.databases[db] = (
                Database(address) if self.nodes is None else ClusterDatabase(address, self.nodes)
            )
        return self.databases[db]

    def borrow(self, login: Login | None, db: int) -> Lane:
        return self.backends.borrow(login, db, self.database(db).forget)

    def give_back(self, lane: Lane) -> None:
        self.backends.give_back(lane)

    def hold(self, holds: bool) -> None:
        """Let commands wait, or no more. Those that were sent are answered."""
        if holds and self.held is None:
            self.held = asyncio.get_running_loop().create_future()
        elif not holds and self.held is not None:
            self.held.set_result(None)
            self.held = None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task until the gateway stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def crashed(self, error: Exception) -> None:
        emit("gateway.failed", why="".join(traceback.format_exception(error)))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.backends.close()
        if self.homes is not None:
            self.homes.close()
        for database in self.databases.values():
            database.lane.close()
