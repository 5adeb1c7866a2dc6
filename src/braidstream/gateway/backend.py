"""The engine's side: connections of clients' own, and lanes that the clients of one user and database share.

client A --- lane (user, db) ---+
client B --/                    |   engine      plans, many in flight on one connection
client B --- its own -----------+               everything else, byte for byte; WATCH, MULTI, blocking
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast
from weakref import WeakSet

import hiredis

from braidstream.drivers import gather, wire
from braidstream.drivers.gather import Exchange
from braidstream.drivers.session import resp2
from braidstream.drivers.wire import Address, Connection, pack
from braidstream.errors import LostError, ReplyError
from braidstream.gateway.resp import Scanner, elements
from braidstream.gateway.session import Login
from braidstream.plan import Batch, Replies

_PUSH: Final = ord(">")
Sinks = tuple[Callable[[bytes], None], Callable[[bytes], None]]


class Own(asyncio.Protocol):
    """A connection of one client's own. One thing at a time.

    Replies that are passed on go to `sinks[0]`; what the engine sends unasked (messages) to `sinks[1]`.
    """

    def __init__(self, name: str, sinks: Sinks, on_lost: Callable[[], None]) -> None:
        self.lost: LostError | None = None
        self._name, self._on_lost = name, on_lost
        self._sink, self._push = sinks
        self._scanner = Scanner()
        self._answer: asyncio.Future[None] | None = None
        self._need, self._streams, self._blind, self._refused = 0, False, False, False
        self._turns_blind = False
        self._until: bytes | None = None
        self._pieces: list[bytes] = []
        self._torn = b""
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
        commands = gather.wire(batch)
        raw = await self.collect(pack(commands), len(commands), writes=not batch.resend)
        if isinstance(batch, Exchange) and batch.atomic:
            *queued, last = raw
            if last.startswith(b"-"):
                refused = next((each for each in queued if each.startswith(b"-")), last)
                raise ReplyError(refused[1:-2].decode("utf-8", "replace"))
            return None if parse(last) is None else elements(last)  # type: ignore[return-value]
        return gather.unpack(batch, [parse(each) for each in raw], resp2)

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
            self._fail("it sent what nobody can read")
            self._transport.abort()
            return
        if self._streams:
            self._sink(data)
            for _, kind in ends:
                self._count(kind != _PUSH)
        else:
            self._take(data, ends)

    def _take(self, data: bytes, ends: list[tuple[int, int]]) -> None:
        """Reply by reply."""
        begin = 0
        for end, kind in ends:
            piece, self._torn, begin = self._torn + data[begin:end], b"", end
            if kind == _PUSH:
                self._push(piece)
            elif self._until is not None:
                if piece.endswith(self._until) and piece[:1] in (b"$", b"*"):
                    self._count(True)
                else:
                    is_error = piece[:1] == b"-"
                    self._refused = self._refused or is_error
                    (self._sink if is_error else self._push)(piece)
            elif self._answer is None:
                self._push(piece)  # a message, a monitor's line, or the engine's goodbye
            else:
                self._pieces.append(piece)
                self._count(True)
        self._torn += data[begin:]

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
    """The shared connection of one user and database; made when needed, and again when lost."""

    def __init__(self, address: Address, on_new: Callable[[], None]) -> None:
        self.conn: Connection | None = None
        self.users = 0
        self._address, self._on_new = address, on_new
        self._making: asyncio.Task[Connection] | None = None

    async def ready(self) -> Connection:
        if self.conn is not None and self.conn.lost is None:
            return self.conn
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def _make(self) -> Connection:
        try:
            self._on_new()
            self.conn = await wire.connect(self._address)
            return self.conn
        finally:
            self._making = None

    async def send(self, batch: Batch) -> Replies:
        return await (await self.ready()).send(batch)

    def close(self) -> None:
        if self.conn is not None:
            self.conn.close()


class Backends:
    """Every connection to the engine.

    own_limit: so many connections of clients' own are kept; beyond, those of idle clients are parked.
    """

    def __init__(self, address: Address, own_limit: int) -> None:
        self._address, self._own_limit = address, own_limit
        self._lanes: dict[tuple[Login | None, int], Lane] = {}
        self._owners: OrderedDict[Any, Callable[[], bool]] = OrderedDict()
        self._owns: WeakSet[Own] = WeakSet()

    def at(self, login: Login | None, db: int) -> Address:
        """The engine as a user sees it; nobody, where nobody has logged in."""
        user, password = login or (None, None)
        return self._address.as_user(user, password).in_db(db)

    def borrow(self, login: Login | None, db: int, on_new: Callable[[], None]) -> Lane:
        lane = self._lanes.get((login, db))
        if lane is None:
            lane = self._lanes[login, db] = Lane(self.at(login, db), on_new)
        lane.users += 1
        return lane

    def give_back(self, login: Login | None, db: int) -> None:
        lane = self._lanes[login, db]
        lane.users -= 1
        if not lane.users:
            lane.close()
            del self._lanes[login, db]

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
            own = await wire.open_socket(self._address, lambda: Own(str(self._address), sinks, on_lost))
            self._owns.add(own)
            return own
        except BaseException:
            self._owners.pop(client, None)
            raise

    def used(self, client: Any) -> None:
        if client in self._owners:
            self._owners.move_to_end(client)

    def disowned(self, client: Any) -> None:
        self._owners.pop(client, None)

    @property
    def owned(self) -> int:
        return len(self._owners)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        for own in list(self._owns):
            own.abort()
