"""The engine's side: connections of clients' own, and lanes that the clients of one user and database share.

client A --- lane (user, db) ---+
client B --/                    |   engine      plans, many in flight on one connection
client B --- its own -----------+               everything else, byte for byte; WATCH, MULTI, blocking
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast
from weakref import WeakSet

import hiredis

from braidstream.errors import LostError, ReplyError
from braidstream.gateway.session import Login
from braidstream.net import wire
from braidstream.net.address import Address
from braidstream.net.reply_shape import resp2
from braidstream.net.resp import Scanner, elements
from braidstream.net.sentinels import Place
from braidstream.net.wire import Connection, pack
from braidstream.protocol import exchange
from braidstream.protocol.exchange import Exchange
from braidstream.protocol.plan import Batch, Replies

_PUSH: Final = ord(">")
_FOR_EVER: Final = float("inf")
Sinks = tuple[Callable[[bytes], None], Callable[[bytes], None]]


class Own(asyncio.Protocol):
    """A connection of one client's own. One thing at a time.

    Replies that are passed on go to `sinks[0]`; what the engine sends unasked (messages) to `sinks[1]`.
    """

    def __init__(self, at: Address, sinks: Sinks, on_lost: Callable[[], None]) -> None:
        self.lost: LostError | None = None
        self.place = at.place
        self._name, self._on_lost = str(at), on_lost
        self._sink, self._push = sinks
        self._scanner = Scanner()
        self._answer: asyncio.Future[None] | None = None
        self._need, self._streams, self._blind, self._turns_blind = 0, False, False, False
        self._refused, self._pings = False, False
        self._until: bytes | None = None
        self._pieces: list[bytes] = []
        self._torn: list[bytes] = []
        self._writes = False

    # What a client's worker calls

    async def relay(self, data: bytes, need: int) -> None:
        """Send packed commands, and pass on whatever comes until so many replies were among it."""
        self._streams = True
        await self._exchange(data, need, writes=True)

    async def collect(self, data: bytes, need: int, *, writes: bool = True) -> list[bytes]:
        """Send packed commands, and return their replies as they were sent."""
        await self._exchange(data, need, writes=writes)
        pieces, self._pieces = self._pieces, []
        return pieces

    async def listen(self, data: bytes) -> bool:
        """Send a packed command that is answered by any number of messages; whether none was an error.

        A PING with a word of our own follows it: whatever comes before the answer to that is passed on.
        """
        token = secrets.token_hex(8).encode()
        self._until, self._refused = token + b"\r\n", False
        self._pings = data[4:12].upper() == b"$4\r\nPING"
        try:
            await self._exchange(data + pack([(b"PING", token)]), 1, writes=False)
        finally:
            self._until = None
        return not self._refused

    def tell(self, data: bytes) -> None:
        """Send, and expect nothing."""
        if self.lost is None:
            self._transport.write(data)

    async def pass_blindly(self, data: bytes) -> bool:
        """From now on bytes are bytes, both ways; unless an error comes back, which is passed on."""
        self._turns_blind = True
        await self._exchange(data, 1, writes=False)
        return self._blind

    async def send(self, batch: Batch) -> Replies:
        """A batch of a plan. Of an Exchange the replies stay as they were sent."""
        commands = exchange.wire(batch)
        raw = await self.collect(pack(commands), len(commands), writes=not batch.resend)
        if isinstance(batch, Exchange) and batch.atomic:
            *queued, last = raw
            if last.startswith(b"-"):
                refused = next((each for each in queued if each.startswith(b"-")), last)
                raise ReplyError(refused[1:-2].decode("utf-8", "replace"))
            return None if parse(last) is None else elements(last)  # type: ignore[return-value]
        return exchange.unpack(batch, [parse(each) for each in raw], resp2)

    def close(self) -> None:
        """What was written still goes out."""
        if self.lost is None:
            self._on_lost = lambda: None
            self._transport.close()
            self._fail("we closed it")

    def abort(self) -> None:
        """End it now: TLS would say goodbye and wait."""
        self._transport.abort()

    def pause(self) -> None:
        with suppress(RuntimeError):
            self._transport.pause_reading()

    def resume(self) -> None:
        with suppress(RuntimeError):
            self._transport.resume_reading()

    @property
    def is_idle(self) -> bool:
        return self._answer is None and self._scanner.at_end

    @property
    def broke_off(self) -> bool:
        """Whether it was lost when a reply was passed on in part."""
        return self.lost is not None and self._streams and not self._scanner.at_end

    async def _exchange(self, data: bytes, need: int, *, writes: bool) -> None:
        if self.lost is not None:
            raise LostError(self._name, self.lost.why, wrote=False)
        assert self._answer is None, "one thing at a time"
        self._need, self._writes = need, writes
        self._transport.write(data)
        if not need:
            self._streams = False
            return
        self._answer = asyncio.get_running_loop().create_future()
        try:
            await self._answer
        finally:
            self._answer = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._turns_blind:
            self._turns_blind, self._blind = False, data[:1] in (b"+", b"$", b"\n")
            self._streams = not self._blind
            self._count(self._blind)
        if self._blind:
            self._sink(data)
            return
        try:
            ends = self._scanner.feed(data)
        except ValueError:
            self._fail("it sent an invalid reply")
            self._transport.abort()
            return
        if self._streams:
            self._pass_on(data, ends)
        else:
            self._take(data, ends)

    def _pass_on(self, data: bytes, ends: list[tuple[int, int]]) -> None:
        """All of it, up to the last reply that was asked for."""
        if self._torn:
            self._sink(b"".join(self._torn))
            self._torn = []
        for at, (end, kind) in enumerate(ends):
            self._count(kind != _PUSH)
            if not self._streams and end < len(data):
                self._sink(data[:end])
                self._take(data[end:], [(later - end, kind) for later, kind in ends[at + 1 :]])
                return
        self._sink(data)

    def _take(self, data: bytes, ends: list[tuple[int, int]]) -> None:
        """Reply by reply."""
        begin = 0
        for end, kind in ends:
            piece = data[begin:end]
            if self._torn:
                piece, self._torn = b"".join((*self._torn, piece)), []
            begin = end
            if kind == _PUSH:
                self._push(piece)
            elif self._until is not None:
                if self._is_answer_to_ping(piece, self._until):
                    self._count(True)
                else:
                    is_error = piece[:1] == b"-"
                    self._refused = self._refused or is_error
                    (self._sink if is_error else self._push)(piece)
            elif self._answer is None or self._answer.done():
                self._push(piece)  # a message, a monitor's line, or the engine's goodbye
            else:
                self._pieces.append(piece)
                self._count(True)
        if begin < len(data):
            self._torn.append(data[begin:])

    def _is_answer_to_ping(self, piece: bytes, token: bytes) -> bool:
        """The PING is refused too where nobody has logged in, and to users who may not PING."""
        if piece.startswith(b"-NOAUTH"):
            return self._refused
        if piece.startswith(b"-NOPERM") and b"run the 'ping' command" in piece:
            return self._refused or not self._pings
        return piece.endswith(token) and piece[:1] in (b"$", b"*")

    def _count(self, counts: bool) -> None:
        if counts and self._need:
            self._need -= 1
            if not self._need:
                self._streams = False
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "it closed the connection")

    def _fail(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = LostError(self._name, why, wrote=self._writes)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self.lost)
        self._on_lost()


def parse(reply: bytes) -> Any:
    """One reply, as plans know replies."""
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(reply)
    return reader.gets()


class Lane:
    """The shared connection of one user and database; made when needed, and again when lost.

    The engine lets in who has not logged in when it connects, or not; whom it let in stays in when it
    changes its mind. A lane of nobody's stays in too, and outlives whom it was made for, so whoever comes to
    it without a login is shown to the engine first: `lets_in`.
    """

    def __init__(self, address: Address, on_new: Callable[[], None]) -> None:
        self.address = address
        self.conn: Connection | None = None
        self.users = 0
        self._on_new = on_new
        self._making: asyncio.Task[Connection] | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._open_at = 0.0  # then, the engine let in somebody who had not logged in
        self._closed = False

    async def ready(self) -> Connection:
        if self.conn is not None and self.conn.lost is None:
            return self.conn
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def lets_in(self, came: float) -> bool:
        """Whether a client that came then without a login may use it. Those who ask together ask once."""
        await self.ready()
        while self._open_at < came:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            if not await asyncio.shield(self._asking):
                return False
        return True

    async def _make(self) -> Connection:
        try:
            self._on_new()
            began = time.monotonic()
            conn = await wire.connect(self.address)
            if self.address.password is None:
                # Where the engine did not let it in it judges each command of it: anybody may try.
                self._open_at = began if await _is_let_in(conn) else _FOR_EVER
            if self._closed:
                conn.close()
            self.conn = conn
            return conn
        finally:
            self._making = None

    async def _ask(self) -> bool:
        try:
            began = time.monotonic()
            conn = await wire.connect(self.address.in_db(0))
            try:
                is_open = await _is_let_in(conn)
            finally:
                conn.close()
            if is_open:
                self._open_at = max(self._open_at, began)
            return is_open
        finally:
            self._asking = None

    async def send(self, batch: Batch) -> Replies:
        return await (await self.ready()).send(batch)

    def leave_others(self, place: Place) -> None:
        if self.conn is not None and self.conn.place != place:
            self.conn.close("the sentinels name another primary, {}:{}".format(*place))

    def close(self) -> None:
        self._closed = True
        if self.conn is not None:
            self.conn.close()


async def lets_anybody_in(address: Address) -> bool:
    """Whether the engine takes commands of a connection that has not logged in."""
    try:
        conn = await wire.connect(address.as_user(None, None).in_db(0))
        try:
            return await _is_let_in(conn)
        finally:
            conn.close()
    except LostError:
        return False


async def _is_let_in(conn: Connection) -> bool:
    """Whether the engine takes commands from a new connection; this one may still be refused to its user."""
    [reply] = await conn.send(Batch([("PING",)], resend=True, attempt=True))
    return not (isinstance(reply, ReplyError) and reply.code in ("NOAUTH", "DENIED"))


class Backends:
    """Every connection to the engine.

    own_limit: so many connections of clients' own are kept; beyond, those of idle clients are parked.
    """

    def __init__(self, address: Address, own_limit: int) -> None:
        self._address, self._own_limit = address, own_limit
        self._lanes: dict[Address, Lane] = {}
        self._apart: set[Lane] = set()
        self._owners: OrderedDict[Any, Callable[[], bool]] = OrderedDict()
        self._owns: WeakSet[Own] = WeakSet()

    def borrow(self, login: Login | None, db: int, on_new: Callable[[], None]) -> Lane:
        """The lane to the engine as a user sees it; nobody, where nobody has logged in."""
        user, password = (login.user, login.password) if login is not None else (None, None)
        address = self._address.as_user(user, password).in_db(db)
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(address, on_new)
        lane.users += 1
        return lane

    def set_apart(self, lane: Lane) -> None:
        """Leave a lane to those who are on it: the next to borrow gets another."""
        if self._lanes.get(lane.address) is lane:
            del self._lanes[lane.address]
            self._apart.add(lane)

    def give_back(self, lane: Lane) -> None:
        lane.users -= 1
        if not lane.users:
            lane.close()
            self.set_apart(lane)
            self._apart.discard(lane)

    async def own(
        self,
        client: Any,
        sinks: Sinks,
        on_lost: Callable[[], None],
        park: Callable[[], bool],
    ) -> Own:
        """A new connection of a client's own; `park` closes it if it can, when there are too many."""
        if len(self._owners) >= self._own_limit:
            next((True for parks in list(self._owners.values()) if parks()), False)
        self._owners[client] = park
        try:
            at = await self._address.located()
            own = await wire.open_socket(at, lambda: Own(at, sinks, on_lost))
            self._owns.add(own)
            return own
        except BaseException:
            self._owners.pop(client, None)
            raise

    def leave_others(self, place: Place) -> None:
        """The primary is there: connections to other servers end."""
        for own in [*self._owns]:
            if own.place != place:
                own.abort()
        for lane in (*self._lanes.values(), *self._apart):
            lane.leave_others(place)

    def used(self, client: Any) -> None:
        if client in self._owners:
            self._owners.move_to_end(client)

    def disowned(self, client: Any) -> None:
        self._owners.pop(client, None)

    @property
    def owned(self) -> int:
        return len(self._owners)

    def close(self) -> None:
        for lane in (*self._lanes.values(), *self._apart):
            lane.close()
        for own in list(self._owns):
            own.abort()
