"""One pipelined asyncio connection to an engine: many batches in flight, answered in the order of sending.

     send(batch) ---+                                     +--> its replies
     send(batch) ---+--> one write per turn of the loop --+--> its replies
     send(batch) ---+      hiredis parses the answers     +--> its replies

Whoever sends waits while too much is under way, so memory stays bounded. A connection that is lost fails
every batch in flight with `LostError`, which says whether a write may have been applied; it is never used
again. A plan that WATCHes or blocks needs a connection of its own, or others' batches would come in between.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import hiredis

from braidstream.errors import LostError, ReplyError
from braidstream.model.command import Command
from braidstream.model.command import pack as pack
from braidstream.net.address import Address as Address
from braidstream.net.address import parse_address as parse_address
from braidstream.net.reply_shape import resp2
from braidstream.net.sentinels import Place
from braidstream.protocol.exchange import unpack, wire
from braidstream.protocol.plan import Batch, Replies

# How much may be under way: batches, and bytes not yet given to the socket.
IN_FLIGHT: Final = 10_000
UNSENT: Final = 4_000_000
CONNECT_WITHIN_S: Final = 10.0
_FOR_EVER: Final = float("inf")

# What a server says that is no primary, or no longer one.
DEMOTED: Final = ("READONLY", "MASTERDOWN")

P = TypeVar("P", bound=asyncio.BaseProtocol)
Push = Callable[[list[Any]], None]
Done = Callable[[Replies | LostError], None]


def greeting(address: Address, protocol: int, *, asks_role: bool = False) -> list[Command]:
    """What a new connection says first. The reply to HELLO tells the server's role."""
    login = (address.user or "default", address.password or "")
    says = list[Command]()
    if protocol == 3 or asks_role:
        auth = () if address.password is None else ("AUTH", *login)
        says.append(("HELLO", protocol, *auth))
    elif address.password is not None:
        # One word, as servers without users know it, where no user is given.
        says.append(("AUTH", *(login if address.user else login[1:])))
    if address.db:
        says.append(("SELECT", address.db))
    return says


async def connect(
    address: Address,
    *,
    protocol: int = 2,
    primary: bool = False,
    on_push: Push | None = None,
    silence_s: float | None = None,
    most_bytes: int | None = None,
) -> "Connection":
    """Connect, log in and select the database. LostError if nobody answers, ReplyError if we are refused.

    primary: a replica is nobody to talk to; where sentinels name the server, it never is. on_push: gets
    RESP3 push messages. silence_s: a connection that owes us replies and says nothing for so long is given
    up. most_bytes: so is one whose reply is larger than that.
    """
    primary = primary or address.sentinels is not None
    at = await address.located()
    conn = await open_socket(
        at, lambda: Connection(str(at), on_push, silence_s=silence_s, most_bytes=most_bytes)
    )
    conn.place = at.place
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await _greet(conn, at, greeting(at, protocol, asks_role=primary))
    except TimeoutError:
        conn.close()
        raise LostError(str(at), "it does not answer", wrote=False) from None
    except BaseException:
        conn.close()
        raise
    return conn


async def _greet(conn: "Connection", address: Address, says: list[Command]) -> None:
    if not says:
        return
    replies = await conn.send(Batch(says, resend=True, attempt=True))
    for reply in replies:
        # Whoever has not logged in may come in: the server judges each of its commands.
        if isinstance(reply, ReplyError) and (reply.code != "NOAUTH" or address.password is not None):
            raise reply
    if says[0][0] == "HELLO" and is_replica(replies[0]):
        raise LostError(str(address), "it is a replica", wrote=False)


def is_replica(hello: Any) -> bool:
    """Whether a reply to HELLO is a replica's."""
    if not isinstance(hello, list):
        return False
    return dict(zip(hello[::2], hello[1::2], strict=False)).get(b"role") in (b"replica", b"slave")


async def open_socket(address: Address, make: Callable[[], P]) -> P:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            if address.path is not None:
                _, protocol = await loop.create_unix_connection(make, address.path)
            else:
                _, protocol = await loop.create_connection(make, address.host, address.port, ssl=address.tls)
    except (OSError, TimeoutError) as error:
        why = str(error) or "it does not answer"
        raise LostError(str(address), why, wrote=False) from error
    return protocol


class _Flight:
    """Commands that were sent, and the replies that came so far. One for every append: kept bare."""

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
        *,
        silence_s: float | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self.name, self.lost = name, None  # type: str, LostError | None
        self._on_push, self._silence_s = on_push, silence_s
        self._most_bytes, self._unparsed = most_bytes, 0
        self.place: Place = ("", 0)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._flights: deque[_Flight] = deque()
        self._out: list[bytes] = []
        self._unsent = 0
        self._heard = 0.0
        self._full = False
        self._room: deque[asyncio.Future[None]] = deque()

    # What others call

    async def send(self, batch: Batch) -> Replies:
        """One batch, one round trip: what `plan.arun` asks for. It may share it with batches of others."""
        while self.is_full and self.lost is None:
            await self._wait_for_room()
        commands = wire(batch)
        if not commands:
            return []
        answer: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        data = pack(commands)

        def done(replies: Replies | LostError) -> None:
            if answer.done():
                return
            if isinstance(replies, LostError):
                answer.set_exception(replies)
            else:
                answer.set_result(replies)

        self.post(data, len(commands), done, writes=not batch.resend, block_ms=batch.block_ms)
        return unpack(batch, await answer, resp2)

    def post(
        self, data: bytes, need: int, done: Done, *, writes: bool = True, block_ms: int | None = None
    ) -> None:
        """Packed commands, sent at the end of this turn of the loop; `done` gets their replies as parsed.

        No back-pressure here: look at `is_full` first.
        """
        if self.lost is not None:
            done(LostError(self.name, self.lost.why, wrote=False))
            return
        block_s = 0.0 if block_ms is None else block_ms / 1000 or _FOR_EVER
        since = time.monotonic() if self._silence_s is not None else 0.0
        self._flights.append(_Flight(need, done, writes, block_s, since))
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)
        self._unsent += len(data)

    @property
    def is_full(self) -> bool:
        """Whether the engine takes no more at the moment."""
        return self._full or len(self._flights) >= IN_FLIGHT or self._unsent >= UNSENT

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def close(self, why: str = "we closed it") -> None:
        """End it now. What is in flight fails."""
        self._fail(why)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass
        if self._silence_s is not None:
            self._watchdog = asyncio.get_running_loop().call_later(self._silence_s / 8, self._watch)

    def data_received(self, data: bytes) -> None:
        if self._silence_s is not None:
            self._heard = time.monotonic()
        reader, flights, demoted = self._reader, self._flights, False
        try:
            reader.feed(data)
            self._unparsed += len(data)
            while (reply := reader.gets()) is not False:
                self._unparsed = 0
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
                    flight.done(flight.replies)
        except (hiredis.ProtocolError, TypeError) as error:
            self._fail(f"it sent an invalid reply: {error}")
        if demoted:
            self._fail("it is a replica now")
        if self._most_bytes is not None and self._unparsed > self._most_bytes:
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

    # Our own

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
        self._reader = hiredis.Reader()  # what it had of a reply goes
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
        if self._flights:
            first = self._flights[0]
            if time.monotonic() - max(self._heard, first.since) > self._silence_s + first.block_s:
                self._fail(f"it said nothing for {self._silence_s:g} s")
                return
        self._watchdog = asyncio.get_running_loop().call_later(self._silence_s / 8, self._watch)
