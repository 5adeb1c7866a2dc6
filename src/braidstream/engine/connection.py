"""One pipelined asyncio connection to an engine: many batches in flight, answered in the order of sending.

     send(batch) ---+                                     +--> its replies
     send(batch) ---+--> one write per turn of the loop --+--> its replies
     send(batch) ---+      hiredis parses the answers     +--> its replies

`send` waits while too much is in flight, so memory stays bounded. If the connection is lost, every batch in
flight fails with `LostError`, which says whether a write may have been applied. A lost connection is not
reopened: the caller makes a new one. A plan that WATCHes or blocks needs a connection of its own.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, cast

import hiredis

from braidstream.engine.address import Address as Address
from braidstream.engine.address import parse_address as parse_address
from braidstream.engine.address import receiver_tls
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import Scanner
from braidstream.engine.sentinels import Place
from braidstream.engine.tunnel import open_tunnel
from braidstream.errors import LostError, ReplyError
from braidstream.model.strand import Command, bulk
from braidstream.model.strand import pack as pack
from braidstream.plan.plan import Batch, Replies, unpack, wire

# ----------------------------------------------------------------------------------------------------
#
# Takes whole replies out of a connection's incoming bytes, unparsed. No I/O.
#
# The command is sent between two PINGs with a random mark, so its reply is what stands between the marks:
#
#     ...reply  mark  *512 *2 $15 1794702853882-4 ...  mark  reply...
#     --------------  ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~  --------------
#     to the parser   raw                              to the parser
#
# If PING is refused, there are no marks, and the parser gets everything.


def new_mark() -> bytes:
    """Random, so no entry contains it."""
    return secrets.token_hex(16).encode()


class RawReplies:
    """Splits the incoming bytes. One object for each connection."""

    def __init__(self) -> None:
        self._marks = deque[bytes]()  # of raw replies that are due
        self._seen = b""  # the end of what went to the parser: the first mark may have begun
        self._raw: bytearray | None = None  # the reply, after its first mark

    def __bool__(self) -> bool:
        return bool(self._marks)

    @property
    def mark(self) -> bytes:
        """Of the reply that is due next."""
        return self._marks[0]

    def expect(self, mark: bytes) -> None:
        """A command between two marks was sent."""
        self._marks.append(mark)

    def forget(self, mark: bytes) -> None:
        """Its replies have come, with or without marks."""
        if mark in self._marks:
            self._marks.remove(mark)
            self._seen = b""

    def split(self, data: bytes) -> Iterator[bytes | bytearray]:
        """The parts in order: bytes for the parser, which include the marks; a raw reply as bytearray."""
        while self._marks and data:
            mark = bulk(self._marks[0])
            if self._raw is None:
                seen = self._seen + data
                at = seen.find(mark)
                if at < 0:
                    self._seen = seen[1 - len(mark) :]
                    break
                end = at + len(mark) - len(self._seen)
                self._seen, self._raw = b"", bytearray()
                yield data[:end]
                data = data[end:]
            else:
                raw = self._raw
                start = max(0, len(raw) - len(mark) + 1)
                raw += data
                at = raw.find(mark, start)
                if at < 0:
                    return
                data = bytes(raw[at:])
                del raw[at:]
                self._raw = None
                yield raw
                self._marks.popleft()
        if data:
            yield data


# ----------------------------------------------------------------------------------------------------
# Connection

# How much may be in flight: batches, and bytes not yet written to the socket.
IN_FLIGHT: Final = 10_000
UNSENT: Final = 4_000_000
CONNECT_WITHIN_S: Final = 10.0
# How many values a reply of a peer may announce before it sends them.
MOST_VALUES: Final = 4_000_000
_FOR_EVER: Final = float("inf")

# Ends a login by certificate: the connection then has the rights of a client without a login.
RESET: Final = ("RESET",)

# Error codes of a server that is not the primary (any more).
DEMOTED: Final = ("READONLY", "MASTERDOWN")

P = TypeVar("P", bound=asyncio.BaseProtocol)
Push = Callable[[list[Any]], None]
Done = Callable[[Replies | LostError], None]


def _handshake_commands(address: Address, protocol: int, *, needs_role: bool) -> list[Command]:
    """The first commands of a new connection. The reply to HELLO contains the server's role."""
    login = (address.user or "default", address.password or "")
    commands: list[Command] = [RESET] if address.must_reset else []
    if protocol == 3 or needs_role:
        auth = () if address.password is None else ("AUTH", *login)
        commands.append(("HELLO", protocol, *auth))
    elif address.password is not None:
        # Without a user: AUTH password, which servers without ACLs also accept.
        commands.append(("AUTH", *(login if address.user else login[1:])))
    if address.db:
        commands.append(("SELECT", address.db))
    return commands


async def connect(
    address: Address,
    *,
    protocol: int = 2,
    primary: bool = False,
    on_push: Push | None = None,
    silence_s: float | None = None,
    most_bytes: int | None = None,
    most_values: int | None = None,
) -> "Connection":
    """Connect, log in and select the database.

    Raises LostError if the server does not answer, ReplyError if it refuses, ConfigError if this machine
    lacks what its receiver needs.
    primary: refuse a replica; always so if sentinels name the server. on_push: gets RESP3 push messages.
    silence_s: close if replies are due and nothing arrives for this time. most_bytes: the same if the replies
    to a batch are larger. most_values: the same if a reply announces more values: a few bytes can announce
    billions, and the parser reserves memory for all of them, and takes half a minute to give it back.
    """
    primary = primary or address.sentinels is not None
    at = await address.resolve()
    conn = await open_socket(at, lambda: Connection(str(at), on_push, silence_s, most_bytes, most_values))
    conn.place = at.place
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await _handshake(conn, at, _handshake_commands(at, protocol, needs_role=primary))
    except TimeoutError:
        conn.close()
        raise LostError(str(at), "it does not answer", wrote=False) from None
    except BaseException:
        conn.close()
        raise
    return conn


async def _handshake(conn: "Connection", address: Address, commands: list[Command]) -> None:
    if not commands:
        return
    replies = await conn.send(Batch(commands, resend=True, attempt=True))
    for reply in replies:
        # Without a password, NOAUTH is not an error here: the server checks each command later.
        if isinstance(reply, ReplyError) and (reply.code != "NOAUTH" or address.password is not None):
            raise reply
    if any(
        command[0] == "HELLO" and is_replica(reply) for command, reply in zip(commands, replies, strict=True)
    ):
        raise LostError(str(address), "it is a replica", wrote=False)


def is_replica(hello: Any) -> bool:
    """Whether a reply to HELLO comes from a replica."""
    if not isinstance(hello, list):
        return False
    return dict(zip(hello[::2], hello[1::2], strict=False)).get(b"role") in (b"replica", b"slave")


async def open_socket(address: Address, make: Callable[[], P]) -> P:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            if address.via is not None:
                tls, wanted = receiver_tls(address.via), "{}:{}".format(*address.place)
                protocol = await open_tunnel(address.via, wanted, make, tls=tls)
            elif address.path is not None:
                _, protocol = await loop.create_unix_connection(make, address.path)
            else:
                _, protocol = await loop.create_connection(make, address.host, address.port, ssl=address.tls)
    except (OSError, TimeoutError) as error:
        why = str(error) or "it does not answer"
        raise LostError(str(address), why, wrote=False) from error
    return protocol


def _between(mark: bytes, commands: list[Command]) -> list[Command]:
    """The first command between two marks (see `RawReplies` above), then the others."""
    return [("PING", mark), commands[0], ("PING", mark), *commands[1:]]


class Flight:
    """Commands that were sent, and their replies so far. Every append has one, so it is kept small."""

    __slots__ = ("block_s", "done", "need", "replies", "since", "writes")

    def __init__(self, need: int, done: Done, writes: bool, block_s: float, since: float) -> None:
        self.need, self.done, self.writes, self.block_s, self.since = need, done, writes, block_s, since
        self.replies: Replies = []


class Connection(asyncio.Protocol):
    """See the top of the file. Made by `connect`."""

    def __init__(
        self,
        name: str,
        on_push: Push | None = None,
        silence_s: float | None = None,
        most_bytes: int | None = None,
        most_values: int | None = None,
    ) -> None:
        self.name, self.lost = name, None  # type: str, LostError | None
        self._on_push, self._silence_s = on_push, silence_s
        self._most_bytes, self._unanswered, self._arrivals = most_bytes, 0, 0
        self.place: Place = ("", 0)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._most_values, self._scanner = most_values, Scanner()
        self._raw = RawReplies()
        self._flights: deque[Flight] = deque()
        self._out: list[bytes] = []
        self._unsent = 0
        self._heard = 0.0
        self._full = False
        self._room: deque[asyncio.Future[None]] = deque()

    async def send(self, batch: Batch) -> Replies:
        """Send one batch in one round trip, as `plan.arun` needs. Batches of other callers may share it."""
        while self.is_full and self.lost is None:
            await self._wait_for_room()
        commands = wire(batch)
        if not commands:
            return []
        mark = new_mark() if batch.raw else b""
        data = batch.packed or pack(_between(mark, commands) if mark else commands)
        if not mark:
            replies = await self._answers(data, len(commands), not batch.resend, batch.block_ms)
            return unpack(batch, replies, resp2)
        self._raw.expect(mark)
        _, raw, _, *replies = await self._answers(data, len(commands) + 2, not batch.resend, batch.block_ms)
        self._raw.forget(mark)  # PING may have been refused
        return unpack(batch, [raw, *replies], resp2)

    async def send_packed(self, data: bytes, need: int, writes: bool) -> Replies:
        """Send packed commands in one round trip; returns their replies, errors as values."""
        while self.is_full and self.lost is None:
            await self._wait_for_room()
        return await self._answers(data, need, writes, None)

    def _answers(
        self, data: bytes, need: int, writes: bool, block_ms: int | None
    ) -> "asyncio.Future[Replies]":
        answer: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()

        def done(replies: Replies | LostError) -> None:
            if answer.done():
                return
            if isinstance(replies, LostError):
                answer.set_exception(replies)
            else:
                answer.set_result(replies)

        self.post(data, need, done, writes=writes, block_ms=block_ms)
        return answer

    def post(
        self, data: bytes, need: int, done: Done, *, writes: bool = True, block_ms: int | None = None
    ) -> None:
        """Send packed commands at the end of this turn of the loop. `done` is called with the parsed replies.

        This applies no back-pressure: check `is_full` first.
        """
        if self.lost is not None:
            done(LostError(self.name, self.lost.why, wrote=False))
            return
        block_s = 0.0 if block_ms is None else block_ms / 1000 or _FOR_EVER
        since = time.monotonic() if self._silence_s is not None else 0.0
        self._start(data, Flight(need, done, writes, block_s, since))

    def post_again(self, data: bytes, flight: Flight) -> None:
        """`post`, without a new object: all replies to an earlier use of the flight have come. Not with
        silence_s."""
        if self.lost is not None:
            flight.done(LostError(self.name, self.lost.why, wrote=False))
            return
        flight.replies = []
        self._start(data, flight)

    def _start(self, data: bytes, flight: Flight) -> None:
        self._flights.append(flight)
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)
        self._unsent += len(data)

    @property
    def is_full(self) -> bool:
        """Whether the connection accepts no more at the moment."""
        return self._full or len(self._flights) >= IN_FLIGHT or self._unsent >= UNSENT

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def waits_since(self) -> int | None:
        """How often something has arrived, if replies are due; None if none are.

        As long as nothing arrives it stays the same. Watching it costs an append nothing, unlike silence_s.
        """
        return self._arrivals if self._flights else None

    @property
    def waiting_s(self) -> float:
        """How long the oldest reply has been due; 0.0 if none is. Needs silence_s."""
        if not self._flights or self._silence_s is None:
            return 0.0
        first = self._flights[0]
        return max(0.0, time.monotonic() - max(self._heard, first.since) - first.block_s)

    def close(self, why: str = "we closed it") -> None:
        """Close now. Batches in flight fail."""
        self._fail(why)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is not a subclass
        if self._silence_s is not None:
            self._watchdog = asyncio.get_running_loop().call_later(self._silence_s / 8, self._watch)

    def data_received(self, data: bytes) -> None:
        if self._silence_s is not None:
            self._heard = time.monotonic()
        self._unanswered += len(data)
        self._arrivals += 1
        try:
            if self._raw:
                for part in self._raw.split(data):
                    if isinstance(part, bytearray):
                        self._take_raw(part)
                    else:
                        self._parse(part)
            else:
                self._parse(data)
        except (hiredis.ProtocolError, TypeError, ValueError) as error:
            self._fail(f"it sent an invalid reply: {error}")
        if self._most_bytes is not None and self._unanswered > self._most_bytes:
            self._fail(f"its reply has more than {self._most_bytes:,} bytes")
        if self._room and not self.is_full:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "it closed the connection")

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._make_room()

    # Private

    def _parse(self, data: bytes) -> None:
        reader, flights, demoted = self._reader, self._flights, False
        if self._most_values is not None:
            self._scanner.feed(data)
            if self._scanner.waiting > self._most_values:
                self._fail(f"its reply announces more than {self._most_values:,} values")
                return
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            if type(reply) is hiredis.PushNotification:
                if self._on_push is not None:
                    self._on_push(list(reply))
                continue
            if not flights:
                self._fail(f"it said {reply!s:.200} without a request")
                return
            flight = flights[0]
            flight.replies.append(reply)
            if type(reply) is ReplyError and reply.code in DEMOTED:
                demoted = True
            if len(flight.replies) == flight.need:
                flights.popleft()
                self._unanswered = 0
                flight.done(flight.replies)
        if demoted:
            self._fail("it is a replica now")

    def _take_raw(self, raw: bytearray) -> None:
        """A reply between two marks. The parser has read the first of them, or the server does not speak
        RESP."""
        flights = self._flights
        if not flights or flights[0].replies != [self._raw.mark] or self._reader.has_data():
            self._fail("it sent an invalid reply: a mark in another reply")
        elif raw.startswith(b"*"):
            flights[0].replies.append(raw)
        else:
            self._parse(bytes(raw))

    def _flush(self) -> None:
        out, self._out, self._unsent = self._out, [], 0
        if out and self.lost is None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._room and not self.is_full:
            self._make_room()

    def _fail(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = LostError(self.name, why, wrote=False)
        self._reader, self._raw = hiredis.Reader(), RawReplies()  # drops an incomplete reply
        if self._silence_s is not None:
            self._watchdog.cancel()
        self._transport.abort()
        self._out = []
        flights, self._flights = self._flights, deque()
        for flight in flights:
            flight.done(LostError(self.name, why, wrote=flight.writes))
        self._make_room()

    async def _wait_for_room(self) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(room)
        await room

    def _make_room(self) -> None:
        waiting, self._room = self._room, deque()
        for room in waiting:
            if not room.done():
                room.set_result(None)

    def _watch(self) -> None:
        assert self._silence_s is not None
        if self.waiting_s > self._silence_s:
            self._fail(f"it said nothing for {self._silence_s:g} s")
            return
        self._watchdog = asyncio.get_running_loop().call_later(self._silence_s / 8, self._watch)
