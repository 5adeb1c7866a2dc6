"""The receiver of compressed links: peers' daemons connect here, and it connects them to the own engine.

    daemon of a peer === zstd (engine/tunnel.py) === Receiver --- own engine

It is a tunnel. A peer logs in at the engine with its own user, so it has the rights that it would have there
without the receiver, and no others. Nothing is buffered beyond a few frames: who sends faster than the engine
takes is slowed down. A connection on which no complete frame arrives for IDLE_S is closed; links send some
every second.

Until the engine has accepted its login, a connection has STEP_WITHIN_S for each step, and all of these
together have few places. Strangers take no place of an address from which a login was accepted before.
"""

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError
from typing import Any, Final

from braidstream.engine.address import Address, Listen, network_of
from braidstream.engine.exposure import DENIALS
from braidstream.engine.sentinels import Place
from braidstream.engine.tunnel import HELLO, LONGEST_LINE, OK, Packer, Traffic, TunnelError, Unpacker
from braidstream.errors import BraidError, ConfigError, LostError
from braidstream.observability.events import Repeated
from braidstream.observability.metrics import Family
from braidstream.replication.daemon.reporting import traffic_families
from braidstream.replication.endpoint import Endpoint, until_one_ends

# Each takes about 4 MB: the windows and tables of zstd in both directions (measured: 3.8 MB), and buffers.
MOST_CONNECTIONS: Final = 128
# A handshake of TLS, the hello, the connection to the engine, and then the login have so long, each.
STEP_WITHIN_S: Final = 4.0
# Of one address (of IPv6: of one /64).
MOST_OF_ONE_HOST: Final = 64
# Before a login, of addresses that are not known: together, and of one address.
MOST_STRANGERS: Final = 32
MOST_STRANGERS_OF_ONE_HOST: Final = 8
# How many addresses are remembered as known.
_MOST_KNOWN: Final = 1_000
IDLE_S: Final = 60.0
LINGER_S: Final = 1.0
# How often the sentinels are asked whether the connections go to the primary.
LOOK_S: Final = 1.0
_READ: Final = 64 * 1024
# How long to wait if no connection can be accepted: too many files are open.
_ACCEPT_AGAIN_S: Final = 1.0
_DENIALS: Final = tuple(f"-{code}" for code in DENIALS)
# How the first answer of an engine begins if there is no login: an error, or the answer to RESET.
_NOT_IN: Final = (b"-", b"+RESET\r\n")
# So many bytes of its answers show whether there is one.
_HEAD: Final = 64
_REFUSAL: Final = b"-ERR receiver: %b\r\n"
_NOT_REDIS: Final = (
    "this is the receiver of braid replicate, not a Redis server. Only daemons of the same version connect"
)


class _RefusedError(Exception):
    """A connection that is closed; it gets an error, if it can read one."""


@dataclass(slots=True, eq=False)
class _Visitor:
    """A connection. network: where it comes from. login: the engine has accepted it."""

    network: str
    login: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_in(self) -> bool:
        return self.login.is_set()


class Receiver:
    """source: the own engine, as the daemon knows it. needs_password: do not connect to one without."""

    def __init__(self, source: Endpoint, *, needs_password: bool) -> None:
        self.traffic = Traffic()
        self._source, self._needs_password = source, needs_password
        self._tasks = set[asyncio.Task[None]]()
        self._open: dict[asyncio.Task[Any], Place] = {}
        self._visitors = set[_Visitor]()  # all connections, also during the handshake of TLS
        self._known = dict[str, None]()  # networks from which a login was accepted, the latest last
        self._trouble = Repeated()

    async def check(self) -> None:
        """ConfigError if the engine has no password, but needs one. Each connection is checked again."""
        with contextlib.suppress(LostError, OSError, ValueError):
            async with asyncio.timeout(STEP_WITHIN_S):
                _, engine, _ = await self._connect(self._source.address)
                engine.transport.abort()

    async def start(self, listen: Listen, tls: SSLContext | None) -> str:
        """Start to listen. Returns HOST:PORT. OSError if that fails."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
        places = dict.fromkeys((family, at) for family, _, _, _, at in found)
        listening = [socket.create_server(at, family=family) for family, at in places]
        host, port = listening[0].getsockname()[:2]
        for each in listening:
            each.setblocking(False)
            self._begin(self._accept(each, tls))
        return str(Listen(host, port))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def families(self) -> list[Family]:
        """For /metrics."""
        count = Family.gauge(
            "braid_receiver_connections", "Connections of peers' daemons.", {(): len(self._open)}
        )
        return [count, *traffic_families("braid_receiver", {(): self.traffic}, ())]

    async def watch(self) -> None:
        """Behind sentinels: close connections to a server that is not the primary any more."""
        sentinels = self._source.address.sentinels
        while sentinels is not None:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(LostError):  # no sentinel answers: keep the connections
                primary = await sentinels.primary()
                for task in [task for task, place in self._open.items() if place != primary]:
                    task.cancel()

    # One connection

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket, tls: SSLContext | None) -> None:
        """asyncio's server would not say which handshakes of TLS fail, and why."""
        with listening:
            while True:
                try:
                    sock, who = await asyncio.get_running_loop().sock_accept(listening)
                except OSError as error:
                    self._log(("?", 0), f"it cannot be accepted: {error}")
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                else:
                    self._begin(self._serve(sock, who, tls))
                    await asyncio.sleep(0)  # sock_accept does not wait while there are more

    async def _serve(self, sock: socket.socket, who: tuple[Any, ...], tls: SSLContext | None) -> None:
        visitor = _Visitor(network_of(who[0]))
        if not self._has_place(visitor.network):
            sock.close()
            self._log(who, "too many connections have not logged in")
            return
        self._visitors.add(visitor)
        try:
            reader, writer = await _open_streams(sock, tls)
            try:
                await self._serve_peer(reader, writer, who, visitor)
            finally:
                writer.close()
                # It may not take the last answers.
                asyncio.get_running_loop().call_later(STEP_WITHIN_S, writer.transport.abort)
        except _RefusedError as error:
            self._log(who, str(error))
        except TimeoutError as error:
            self._log(who, str(error) or "it said nothing for too long")
        except TunnelError as error:
            self._log(who, f"it sent invalid bytes: {error}")
        except OSError:
            pass  # one of the two left
        except asyncio.CancelledError:
            pass  # the primary changed, or the daemon stops
        finally:
            self._visitors.discard(visitor)

    def _has_place(self, network: str) -> bool:
        """Whether one more connection that has not logged in has a place."""
        waiting = [each.network for each in self._visitors if not each.is_in]
        if network in self._known:
            return len(self._visitors) < 2 * MOST_CONNECTIONS and waiting.count(network) < MOST_OF_ONE_HOST
        strangers = [each for each in waiting if each not in self._known]
        return len(strangers) < MOST_STRANGERS and strangers.count(network) < MOST_STRANGERS_OF_ONE_HOST

    def _admit(self, visitor: _Visitor) -> None:
        """The engine has accepted its login."""
        visitor.login.set()
        self._known.pop(visitor.network, None)
        self._known[visitor.network] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    async def _serve_peer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        who: tuple[Any, ...],
        visitor: _Visitor,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        engine: asyncio.StreamWriter | None = None
        try:
            answers, engine, self._open[task] = await self._introduce(reader, writer, visitor.network)
            await until_one_ends(
                self._to_engine(reader, engine),
                self._to_peer(answers, writer, visitor),
                _require_login(visitor),
            )
        except _RefusedError as error:
            self._log(who, f"{error}: {error.__cause__}" if error.__cause__ else str(error))
            await _refuse(reader, writer, str(error))
        finally:
            self._open.pop(task, None)
            if engine is not None:
                engine.transport.abort()

    async def _introduce(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, network: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Place]:
        """Read the hello, connect to the engine that it wants, and answer."""
        if sum(each.is_in for each in self._visitors) >= MOST_CONNECTIONS:
            raise _RefusedError(f"it has {MOST_CONNECTIONS} connections, which is its limit")
        if sum(each.network == network for each in self._visitors) > MOST_OF_ONE_HOST:
            raise _RefusedError(f"it has {MOST_OF_ONE_HOST} connections of your address, which is its limit")
        async with asyncio.timeout(STEP_WITHIN_S):
            wanted = await _read_hello(reader)
        try:
            async with asyncio.timeout(STEP_WITHIN_S):
                connected = await self._connect(await self._find(wanted))
        except ConfigError as error:
            raise _RefusedError(str(error)) from None
        except (BraidError, OSError, ValueError) as error:
            raise _RefusedError("its region's engine does not answer") from error
        writer.write(OK)
        self._trouble.over(asyncio.get_running_loop().time())
        return connected

    async def _find(self, wanted: str) -> Address:
        """The server that a peer wants. Only a cluster has more than one; a peer may know it earlier."""
        source = self._source
        with contextlib.suppress(BraidError):  # the peer has its own user
            await source.connect()
        if not source.is_cluster:
            return source.address
        for looks_again in (True, False):
            for address in (source.address, *(node.address for node in source.nodes)):
                if "{}:{}".format(*address.place) == wanted:
                    return address
            if looks_again:
                await source.slots.read()
        raise _RefusedError(f"{wanted} is not a primary of this region's cluster")

    async def _connect(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Place]:
        """A connection to the engine without a login. RESET ends one that our certificate may have.

        ConfigError if it needs none. Checked each time: a failover may lead to a server without a password.
        """
        at = await address.resolve()
        if at.path is not None:
            reader, writer = await asyncio.open_unix_connection(at.path, limit=_READ)
        else:
            reader, writer = await asyncio.open_connection(at.host, at.port, ssl=at.tls, limit=_READ)
        try:
            if (answer := await _ask(reader, writer, "RESET")) != "+RESET":
                raise ConnectionError(f"{at} answers RESET with {answer!r:.200}")
            if self._needs_password and (await _ask(reader, writer, "PING")).split(" ")[0] not in _DENIALS:
                raise ConfigError("the region's server requires no password")
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer, at.place

    async def _to_engine(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter) -> None:
        unpacker, traffic, clock = Unpacker(), self.traffic, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(STEP_WITHIN_S) as idle:
                while data := await reader.read(_READ):
                    traffic.wire_received += len(data)
                    for raw in unpacker.unpack(data):
                        traffic.raw_received += len(raw)
                        engine.write(raw)
                        await engine.drain()
                        await asyncio.sleep(0)  # others have their turn, also if this one never waits
                        idle.reschedule(clock() + IDLE_S)
        except TimeoutError:
            is_stuck = engine.transport.get_write_buffer_size() > 0
            raise TimeoutError("this region's engine read nothing for too long" if is_stuck else "") from None

    async def _to_peer(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: _Visitor
    ) -> None:
        packer, traffic, head = Packer(), self.traffic, b""
        while data := await answers.read(_READ):
            if not visitor.is_in and len(head) < _HEAD:
                head += data[:_HEAD]
                # With more after the first line: QUIT is answered by OK too, but by nothing else.
                if head.partition(b"\n")[2] and not head.startswith(_NOT_IN):
                    self._admit(visitor)
            packed = packer.pack(data)
            traffic.raw_sent += len(data)
            traffic.wire_sent += len(packed)
            writer.write(packed)
            try:
                async with asyncio.timeout(IDLE_S):
                    await writer.drain()
            except TimeoutError:
                raise TimeoutError("it read nothing for too long") from None

    def _log(self, who: tuple[Any, ...], why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._trouble.log("receiver.refused", now_s, client=f"{who[0]}:{who[1]}", why=why)


async def _require_login(visitor: _Visitor) -> None:
    """TimeoutError without a login. With one it never ends."""
    try:
        async with asyncio.timeout(STEP_WITHIN_S):
            await visitor.login.wait()
    except TimeoutError:
        raise TimeoutError(
            f"this region's engine accepted no login of it within {STEP_WITHIN_S:g} s"
        ) from None
    await asyncio.get_running_loop().create_future()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why: str) -> None:
    """Answer, and read on for a moment: unread bytes would reset the connection before the answer is read."""
    writer.write(_REFUSAL % why.encode())
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER_S):
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(_READ):
                pass


async def _read_hello(reader: asyncio.StreamReader) -> str:
    """Which server is wanted. A client of another protocol may not send a line at all."""
    data = b""
    while b"\n" not in data:
        more = await reader.read(LONGEST_LINE)
        data += more
        known = data[: len(HELLO)] == HELLO[: len(data)]
        if not more and not data:  # a health check of a load balancer
            raise ConnectionError("closed before the first byte")
        if not more or not known or len(data) > LONGEST_LINE:
            raise _RefusedError(_NOT_REDIS)
    line, _, rest = data.partition(b"\n")
    if rest:  # a daemon waits for the answer
        raise _RefusedError(_NOT_REDIS)
    return line.removeprefix(HELLO).decode("utf-8", "replace")


async def _open_streams(
    sock: socket.socket, tls: SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As asyncio.open_connection, for the side that accepted. _RefusedError if the handshake of TLS fails."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ)
    protocol = asyncio.StreamReaderProtocol(reader)
    within_s = None if tls is None else STEP_WITHIN_S
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=tls, ssl_handshake_timeout=within_s
        )
    except SSLError as error:
        raise _RefusedError(f"the TLS handshake failed: {error}") from None
    except ConnectionAbortedError:
        raise _RefusedError("it did not finish the TLS handshake") from None
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: str) -> str:
    """The engine's answer to a command: a line."""
    writer.write(f"{command}\r\n".encode())
    answer = await reader.readline()
    if not answer.endswith(b"\n"):
        raise ConnectionError("it closed the connection")
    return answer.decode("utf-8", "replace").rstrip()
