"""A client's own connection to the engine, for everything that a shared lane cannot carry."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import hiredis

from braidstream.engine.address import Address
from braidstream.engine.connection import RESET
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import Scanner, elements
from braidstream.errors import LostError, ReplyError
from braidstream.model.strand import pack
from braidstream.plan import plan
from braidstream.plan.plan import Batch, Exchange, Replies

_PUSH: Final = ord(">")
_ERROR: Final = ord("-")
Sinks = tuple[Callable[[bytes], None], Callable[[bytes], None]]


class OwnConnection(asyncio.Protocol):
    """A connection of one client. One exchange at a time.

    Relayed replies go to `sinks[0]`; pushed messages to `sinks[1]`.
    is_greeted: it has the state of the client's session: its database, its protocol.
    most_bytes: it is closed if replies that are not relayed have more.
    """

    def __init__(
        self, at: Address, sinks: Sinks, on_lost: Callable[[], None], most_bytes: int | None = None
    ) -> None:
        self.on_denied: Callable[[], None] = lambda: None
        self._most_bytes, self._kept = most_bytes, 0
        self.lost: LostError | None = None
        self.place, self.is_greeted = at.place, False
        self._name, self._on_lost = str(at), on_lost
        self._sink, self._push = sinks
        self._scanner = Scanner()
        self._answer: asyncio.Future[None] | None = None
        self._need, self._streams, self._raw, self._turns_raw = 0, False, False, False
        self._refused, self._answered, self._pings = False, False, False
        self._until: bytes | None = None
        self._pieces: list[bytes] = []
        self._torn: list[bytes] = []
        self._writes = False

    # What a client's worker calls

    async def relay(self, data: bytes, need: int) -> bool:
        """Send packed commands, and relay everything up to the last of `need` replies.

        Returns whether that one was no error.
        """
        self._streams = True
        await self._exchange(data, need, writes=True)
        return not self._refused

    async def collect(self, data: bytes, need: int, *, writes: bool = True) -> list[bytes]:
        """Send packed commands, and return their raw replies."""
        await self._exchange(data, need, writes=writes)
        pieces, self._pieces = self._pieces, []
        return pieces

    async def listen(self, data: bytes) -> bool:
        """Send a packed command with any number of messages as its reply. Returns whether none was an error.

        A PING with a random word follows: everything before the reply to that is relayed.
        """
        token = secrets.token_hex(8).encode()
        self._until, self._refused, self._answered = token + b"\r\n", False, False
        self._pings = data[4:12].upper() == b"$4\r\nPING"
        try:
            await self._exchange(data + pack([(b"PING", token)]), 1, writes=False)
        finally:
            self._until = None
        return not self._refused

    async def reset(self) -> None:
        """End a login by the gateway's certificate. Raises LostError if the engine refuses that."""
        [reply] = await self.collect(pack([RESET]), 1, writes=False)
        if reply != b"+RESET\r\n":
            self.close()
            why = f"it answers RESET with {reply[:200].decode('utf-8', 'replace').strip()}"
            raise LostError(self._name, why, wrote=False)

    def send_only(self, data: bytes) -> None:
        """Send, and expect no reply."""
        if self.lost is None:
            self._transport.write(data)

    async def relay_raw(self, data: bytes) -> bool:
        """Relay all bytes unread from now on; unless the engine replies with an error, which is relayed."""
        self._turns_raw = True
        await self._exchange(data, 1, writes=False)
        return self._raw

    async def send(self, batch: Batch) -> Replies:
        """Send a batch of a plan. The replies of an Exchange stay raw."""
        commands = plan.wire(batch)
        raw = await self.collect(pack(commands), len(commands), writes=not batch.resend)
        if isinstance(batch, Exchange) and batch.atomic:
            *queued, last = raw
            if last.startswith(b"-"):
                refused = next((each for each in queued if each.startswith(b"-")), last)
                raise ReplyError(refused[1:-2].decode("utf-8", "replace"))
            return None if parse(last) is None else elements(last)  # type: ignore[return-value]
        return plan.unpack(batch, [parse(each) for each in raw], resp2)

    def close(self) -> None:
        """Close, after what was written is sent."""
        if self.lost is None:
            self._on_lost = lambda: None
            self._transport.close()
            self._fail("we closed it")

    def abort(self) -> None:
        """Close at once, without TLS's shutdown handshake."""
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
        """Whether it was lost in the middle of a relayed reply."""
        return self.lost is not None and self._streams and not self._scanner.at_end

    async def _exchange(self, data: bytes, need: int, *, writes: bool) -> None:
        if self.lost is not None:
            raise LostError(self._name, self.lost.why, wrote=False)
        assert self._answer is None, "one exchange at a time"
        self._need, self._writes, self._kept = need, writes, 0
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
        if self._turns_raw:
            self._turns_raw, self._raw = False, data[:1] in (b"+", b"$", b"\n")
            self._streams = not self._raw
            self._count(self._raw)
        if self._raw:
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
        """Relay everything, up to the last reply that is expected."""
        if self._torn:
            self._sink(b"".join(self._torn))
            self._torn = []
        begin = 0
        for at, (end, kind) in enumerate(ends):
            if kind == _ERROR and data.startswith(b"-NOPERM", begin):
                self.on_denied()
            begin = end
            self._count(kind != _PUSH)
            if self._streams:
                continue
            self._refused = kind == _ERROR
            if end < len(data):
                self._sink(data[:end])
                self._take(data[end:], [(later - end, kind) for later, kind in ends[at + 1 :]])
                return
        self._sink(data)

    def _take(self, data: bytes, ends: list[tuple[int, int]]) -> None:
        """Collect reply by reply."""
        begin = 0
        for end, kind in ends:
            piece = data[begin:end]
            if self._torn:
                piece, self._torn = b"".join((*self._torn, piece)), []
            begin = end
            if kind == _ERROR and piece.startswith(b"-NOPERM"):
                self.on_denied()
            if kind == _PUSH:
                self._answered = self._answered or _confirms(piece)
                self._push(piece)
            elif self._until is not None:
                if self._is_answer_to_ping(piece, self._until):
                    self._count(True)
                else:
                    is_error = piece[:1] == b"-"
                    self._refused = self._refused or is_error
                    self._answered = self._answered or is_error or _confirms(piece)
                    (self._sink if is_error else self._push)(piece)
            elif self._answer is None or self._answer.done():
                self._push(piece)  # a message, a line of MONITOR, or an error before the engine closes
            else:
                self._pieces.append(piece)
                self._count(True)
        if begin < len(data):
            self._torn.append(data[begin:])
        self._kept = self._kept + len(data) if self._pieces or self._torn else 0
        if self._most_bytes is not None and self._kept > self._most_bytes:
            self._fail(f"its reply has more than {self._most_bytes:,} bytes")
            self._transport.abort()

    def _is_answer_to_ping(self, piece: bytes, token: bytes) -> bool:
        """Whether a piece is the reply to our PING. It may be an error: no login, no right."""
        if piece.startswith(b"-NOPERM") and b"run the 'ping' command" in piece:
            return self._answered or not self._pings
        if piece[:1] == b"-":
            return self._answered
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


def _confirms(piece: bytes) -> bool:
    """Whether a piece answers SUBSCRIBE and its kin, PING or REPLCONF; a message of a channel does not."""
    word = piece[:40].split(b"\r\n")[2:3]
    return piece[:1] == b"+" or (bool(word) and word[0].endswith((b"subscribe", b"pong")))


def parse(reply: bytes) -> Any:
    """One reply, parsed as plans expect it."""
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(reply)
    return reader.gets()
