"""What the clients of a gateway share: connections, a cache per database, limits, metrics, audit."""

import asyncio
import hashlib
import secrets
import ssl
import time
import traceback
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from time import perf_counter
from typing import Any, Final, Protocol

from braidstream.commands.table import TABLE
from braidstream.engine.address import Address
from braidstream.engine.resp import Limits, Words
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError
from braidstream.gateway.announce import Announced
from braidstream.gateway.database import Database
from braidstream.gateway.lanes import Backends, Lane, Nodes, one_server
from braidstream.gateway.session import Login
from braidstream.observability.events import Repeated, emit
from braidstream.observability.metrics import Counts, Family, Histogram
from braidstream.observability.traces import Traces
from braidstream.plan.gather import Queued

# ----------------------------------------------------------------------------------------------------
#
# What a gateway counts: commands, latencies by the way a command took, errors by code.
#
#     way       append: XADD on the short way (append.py); plan: other commands on streams;
#               native: everything that passes to the engine
#
# Commands that wait (BLOCK, BLPOP, WAIT) are counted and not timed: their latency is the caller's choice.

__all__ = ["GatewayMetrics", "perf_counter"]

# One in this many single appends is timed.
TIMED_EVERY: Final = 16

# Errors that are not the client's fault: alert rules watch them.
_ALERTING: Final = ("LOST", "OOM", "LOADING", "LIBRARY", "NOREGION")

_NAMES = {name: name.decode().lower() for name in TABLE}


class GatewayMetrics:
    """See the top of the file. Everything is a plain int or float: it is updated on the hot path."""

    def __init__(self) -> None:
        self.appends, self.plans, self.natives = Histogram(), Histogram(), Histogram()
        self.appended = self._timed = 0  # XADD on the fast path
        self.routed = 0  # by a route (clients/routes.py)
        self.time_from = 0  # the first run after this many appends is timed
        self.commands = Counts(most=len(_NAMES) + 2)
        self.errors = Counts()
        self.errors.update(dict.fromkeys(_ALERTING, 0))  # there from the start, so that the first one is seen
        self.refused = 0  # clients above --maxclients
        self.evicted = 0  # clients disconnected by --maxmemory-clients

    def time_appends(self, began: float) -> None:
        """Observe a timed run of appends, which also counts for the untimed ones before it."""
        self.appends.observe(perf_counter() - began, self.appended - self._timed)
        self._timed = self.appended
        self.time_from = self.appended + TIMED_EVERY

    def count(self, words: Words) -> None:
        """Count by name; all native commands as one, so that clients cannot create labels."""
        self.commands.add(_NAMES.get(words[0].upper(), "native"))

    def failed(self, error: BraidError) -> None:
        self.errors.add(error.code)

    def families(self) -> list[Family]:
        commands = dict(self.commands.labelled)
        if self.appended:
            commands["xadd",] = commands.get(("xadd",), 0) + self.appended
        ways = {"append": self.appends, "plan": self.plans, "native": self.natives}
        return [
            Family.counter(
                "braid_gateway_commands_total",
                "Commands taken, by name. Commands that pass to the engine unchanged are counted as native.",
                commands,
                ("command",),
            ),
            Family.counter(
                "braid_gateway_routed_total",
                "XREADGROUP, XACK, XREAD, XLEN and TWRITE that took the short way: one round trip, no plan.",
                {(): self.routed},
            ),
            Family.histogram(
                "braid_gateway_command_duration_seconds",
                "Time from a command to its reply, by the way it took. Blocking commands are left out.",
                ways,
                "way",
            ),
            Family.counter(
                "braid_gateway_errors_total",
                "Error replies to stream commands, by code. LOST: the connection to the engine was lost.",
                self.errors.labelled,
                ("code",),
            ),
            Family.counter(
                "braid_gateway_clients_refused_total", "Clients refused by --maxclients.", {(): self.refused}
            ),
            Family.counter(
                "braid_gateway_clients_evicted_total",
                "Clients disconnected by --maxmemory-clients.",
                {(): self.evicted},
            ),
        ]


# ----------------------------------------------------------------------------------------------------
#
# Who did what: failed logins, with a growing delay, and administrative commands.
#
# Only the client that failed waits. One address has 60 failures, and one more each second, over all its
# connections; then its logins are refused without asking the engine. A login that has succeeded before is
# always asked for: clients behind the same address (of a proxy) that know their password go on. One address
# logs at most 100 administrative commands a minute; the rest are only counted.

_FORGET_S: Final = 60.0
# Failures of one address within a minute that are answered at once; then the delay doubles.
_FREE: Final = 5
_FIRST_S: Final = 0.1
_MOST_S: Final = 3.0
# Failures of one address over all its connections: how many at once, then one each second; the longest lock.
_BURST: Final = 60
_LOCKED_S: Final = 3600.0
_MOST_KNOWN: Final = 10_000
_LINES: Final = 100
_MOST_ADDRESSES: Final = 10_000
_LONGEST: Final = 100

# Commands that change the server or the users, by their subcommands; empty: all of them.
_ADMIN: Final[dict[bytes, frozenset[bytes]]] = {
    b"ACL": frozenset((b"SETUSER", b"DELUSER", b"LOAD", b"SAVE")),
    b"CLIENT": frozenset((b"KILL", b"PAUSE")),
    b"CONFIG": frozenset((b"SET", b"REWRITE", b"RESETSTAT")),
    b"FUNCTION": frozenset((b"LOAD", b"DELETE", b"FLUSH", b"RESTORE", b"KILL")),
    b"MODULE": frozenset((b"LOAD", b"LOADEX", b"UNLOAD")),
    b"SCRIPT": frozenset((b"FLUSH", b"KILL")),
    **dict.fromkeys(
        (b"DEBUG", b"FAILOVER", b"FLUSHALL", b"FLUSHDB", b"MIGRATE", b"MONITOR", b"PSYNC", b"REPLICAOF")
        + (b"SHUTDOWN", b"SLAVEOF", b"SWAPDB", b"SYNC"),
        frozenset[bytes](),
    ),
}


def admin_command(words: Words) -> str:
    """The command and subcommand, without arguments, which may hold passwords; empty for other ones."""
    name = words[0].upper()
    about = _ADMIN.get(name)
    if about is None:
        return ""
    if not about:
        return name.decode()
    second = words[1].upper() if len(words) > 1 else b""
    return f"{name.decode()} {second.decode()}" if second in about else ""


class _Address:
    """What one address did. IPv6 addresses of one /64 are one."""

    __slots__ = ("failures", "failed_at", "lines", "lines_from", "locked_until", "trouble")

    def __init__(self) -> None:
        self.failures, self.failed_at, self.locked_until = 0, 0.0, 0.0
        self.lines, self.lines_from = 0, 0.0
        self.trouble = Repeated()


class Audit:
    """See the top of the file."""

    def __init__(self) -> None:
        self.failed_logins = self.admin_commands = 0
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()  # logins that succeeded, hashed
        self._salt = secrets.token_bytes(16)

    def is_locked_out(self, client: str, login: tuple[bytes, bytes]) -> bool:
        """Whether the engine is not asked: too many wrong passwords came from this address."""
        now = time.monotonic()
        return self._at(client).locked_until > now and self._hashed(login) not in self._known

    def logged_in(self, login: tuple[bytes, bytes]) -> None:
        known = self._hashed(login)
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def login_failed(self, client: str, user: bytes) -> float:
        """Returns how many seconds the client must wait for its answer."""
        self.failed_logins += 1
        now, at = time.monotonic(), self._at(client)
        if now - at.failed_at > _FORGET_S:
            at.failures, at.trouble = 0, Repeated()
        at.failures, at.failed_at = at.failures + 1, now
        at.locked_until = min(max(at.locked_until, now - _BURST) + 1, now + _LOCKED_S)
        at.trouble.log("gateway.login_failed", now, client=client, user=_text(user), why="wrong password")
        if at.failures <= _FREE:
            return 0.0
        return float(min(_MOST_S, _FIRST_S * 2 ** min(at.failures - _FREE - 1, 10)))

    def admin(self, client: str, user: bytes, command: str) -> None:
        self.admin_commands += 1
        now, at = time.monotonic(), self._at(client)
        if now - at.lines_from > _FORGET_S:
            at.lines, at.lines_from = 0, now
        at.lines += 1
        if at.lines <= _LINES:
            emit("gateway.admin", client=client, user=_text(user), command=command)

    def families(self, denied: int) -> list[Family]:
        """denied: commands that the engine refused with NOPERM."""
        return [
            Family.counter(
                "braid_gateway_login_failures_total",
                "AUTH and HELLO with a wrong user or password.",
                {(): self.failed_logins},
            ),
            Family.counter(
                "braid_gateway_denied_total",
                "Commands that the engine refused because the user lacks the right (NOPERM).",
                {(): denied},
            ),
            Family.counter(
                "braid_gateway_admin_commands_total",
                "Administrative commands of clients: those of the event gateway.admin.",
                {(): self.admin_commands},
            ),
        ]

    def _hashed(self, login: tuple[bytes, bytes]) -> bytes:
        user, password = login
        return hashlib.sha256(b"%b%d:%b%b" % (self._salt, len(user), user, password)).digest()

    def _at(self, client: str) -> _Address:
        host = client.rpartition(":")[0]
        if ":" in host:
            host = ip_address(host.partition("%")[0]).exploded[:19]
        found = self._addresses.setdefault(host, _Address())
        self._addresses.move_to_end(host)
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        return found


def login_of(words: Words) -> tuple[bytes, bytes] | None:
    """The user and password of AUTH or HELLO, of which the engine uses the last; None for another command."""
    name = words[0].upper()
    if name == b"AUTH" and len(words) in (2, 3):
        return (words[1], words[2]) if len(words) == 3 else (b"default", words[1])
    login, at = None, 2
    while name == b"HELLO" and at < len(words):
        if words[at].upper() == b"AUTH" and at + 2 < len(words):
            login = words[at + 1], words[at + 2]
            at += 1
        at += 2
    return login


def _text(user: bytes) -> str:
    return user[:_LONGEST].decode("utf-8", "replace")


# ----------------------------------------------------------------------------------------------------
# Hub

GIGABYTE: Final = 1 << 30


def shown_client(transport: asyncio.Transport) -> str:
    """The address of a client, for the log."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix socket"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses.

    backends: how many idle clients keep an engine connection of their own.
    reuse_port: share the port with other gateways of the same user that have this option.
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
    reuse_port: bool = False
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
    db: the database of the region. homes: None if no file names the regions.
    announced: None if clients see one server. held: commands wait for it, because a failover is under way.
    """

    def __init__(self, address: Address, settings: Settings) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.backends = Backends(address, one_server(address), settings.backends, settings.most_reply)
        self.clients: set[Admitted] = set()
        self.memory = 0
        self.db = address.db
        self.databases: dict[int, Database] = {}
        self.metrics = GatewayMetrics()
        self.audit = Audit()
        self.traces = Traces()
        self.homes: Forwards | None = None
        self.announced: Announced | None = None
        if settings.announce:
            self.announced = Announced(settings.announce, uses_tls=settings.tls is not None)
        self.held: asyncio.Future[None] | None = None
        self._address = address
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refusals, self._evictions = Repeated(), Repeated()

    @property
    def nodes(self) -> Nodes:
        """Of the engine. Those of a cluster are known before the first client connects."""
        return self.backends.nodes

    @property
    def mode(self) -> bytes | None:
        """What INFO and HELLO call the server. None: what the engine says."""
        if self.announced is not None:
            return b"cluster"
        return None if self.nodes.slots.only is not None else b"standalone"

    def admit(self, client: Admitted) -> bool:
        """Count a new client; False if there are too many."""
        if len(self.clients) >= self.settings.maxclients:
            self.metrics.refused += 1
            now, most = asyncio.get_running_loop().time(), self.settings.maxclients
            self._refusals.log("gateway.clients_refused", now, maxclients=most, why="too many clients")
            return False
        self.clients.add(client)
        return True

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
            self.databases[db] = Database(self._address.in_db(db), self.nodes)
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
