"""Compressed connections between daemons: the bytes on the wire, and the side that connects.

    wire.Connection --- Tunnel ======= TCP or TLS ======= replication/receiver.py --- engine

    hello     BRAID-ZSTD 1 HOST:PORT\\n    which server is wanted; only the receiver of a cluster looks at it
    answer    BRAID-ZSTD 1 OK\\n           or -ERR and a reason, as a Redis server would write it
    frames    4 bytes with a length, then the bytes: a flushed part of one zstd stream for each direction

A frame decompresses to at most MOST bytes, and a stream has a window of 1 MB. Decompression fails at the
first byte over these limits, so a hostile peer cannot make it allocate more.

The first thing that is written is the login. It is sent as it is (STORED), and no later byte refers to it:
else the lengths of later frames would tell someone who may write entries what the password looks like.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from braidstream.errors import ConfigError

if TYPE_CHECKING:
    import zstandard

HELLO: Final = b"BRAID-ZSTD 1 "
OK: Final = HELLO + b"OK\n"
# Of a hello and of an answer.
LONGEST_LINE: Final = 1_024
# How many bytes a frame stands for: one block of zstd. Bytes that do not compress need some more.
MOST: Final = 128 * 1024
LARGEST_FRAME: Final = MOST + 1_024
STORED: Final = 1 << 31
# How many bytes a connection passes on before others have their turn.
_AT_ONCE: Final = 4 * MOST
LEVEL: Final = 1
WINDOW_LOG: Final = 20
# Shown of an answer that is none.
_SHOWN: Final = 80
_HINT: Final = "Is it a receiver, and do both sides use TLS, with certificates that the other one accepts?"

P = TypeVar("P", bound=asyncio.BaseProtocol)


class TunnelError(Exception):
    """The other side does not keep to the format."""


@dataclass(slots=True)
class Traffic:
    """Bytes before compression and on the wire (without TLS), in both directions."""

    raw_sent: int = 0
    wire_sent: int = 0
    raw_received: int = 0
    wire_received: int = 0


@dataclass(frozen=True, slots=True)
class Via:
    """The receiver through which an engine is reached. traffic: of all connections through it."""

    host: str
    port: int
    url: str = field(repr=False)
    traffic: Traffic = field(default_factory=Traffic, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def uses_tls(self) -> bool:
        return self.url.startswith("tls:")


def load_zstandard() -> Any:
    """The package, which is an extra. Raises ConfigError if it is not installed."""
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            "compression needs the package zstandard, which is not installed. Install it with: "
            "pip install 'braidstream[compression]'"
        ) from None
    return zstandard


class Packer:
    """Compresses one direction of a connection. What it returns can be unpacked at once."""

    def __init__(self) -> None:
        self._zstd = load_zstandard()
        settings = self._zstd.ZstdCompressionParameters.from_level(LEVEL, window_log=WINDOW_LOG)
        self._stream: zstandard.ZstdCompressionObj = self._zstd.ZstdCompressor(
            compression_params=settings
        ).compressobj()

    def pack(self, data: bytes) -> bytes:
        return b"".join(self._frame(part) for part in _parts(data))

    def _frame(self, part: memoryview) -> bytes:
        body = self._stream.compress(part) + self._stream.flush(self._zstd.COMPRESSOBJ_FLUSH_BLOCK)
        return len(body).to_bytes(4, "big") + body


def store(data: bytes) -> bytes:
    """The frames of bytes that must not be compressed."""
    return b"".join((STORED | len(part)).to_bytes(4, "big") + part for part in _parts(data))


def _parts(data: bytes) -> Iterator[memoryview]:
    whole = memoryview(data)
    return (whole[at : at + MOST] for at in range(0, len(whole), MOST))


class Unpacker:
    """Decompresses one direction of a connection."""

    def __init__(self) -> None:
        zstd = load_zstandard()
        self._error: type[Exception] = zstd.ZstdError
        self._waiting = bytearray()
        self._output = _Bounded()
        # Room for one byte more than a frame may stand for: so a sound frame leaves nothing inside of zstd.
        self._stream: zstandard.ZstdDecompressionWriter = zstd.ZstdDecompressor(
            max_window_size=1 << WINDOW_LOG
        ).stream_writer(cast(Any, self._output), write_size=MOST + 1)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """What complete frames stand for, in parts of up to twice MOST. Raises TunnelError."""
        found, size = list[bytes](), 0
        for raw in self._frames(data):
            found.append(raw)
            size += len(raw)
            if size >= MOST:
                yield b"".join(found)
                found, size = [], 0
        if found:
            yield b"".join(found)

    def _frames(self, data: bytes) -> Iterator[bytes]:
        waiting = self._waiting
        waiting += data
        while len(waiting) >= 4:
            head = int.from_bytes(waiting[:4], "big")
            size = head & ~STORED
            if not 0 < size <= (MOST if head & STORED else LARGEST_FRAME):
                raise TunnelError(f"a frame has {size:,} bytes")
            if len(waiting) < 4 + size:
                return
            body = bytes(waiting[4 : 4 + size])
            del waiting[: 4 + size]
            raw = body if head & STORED else self._inflate(body)
            if not raw:
                raise TunnelError("a frame is empty")
            yield raw

    def _inflate(self, body: bytes) -> bytes:
        try:
            self._stream.write(body)
        except self._error as error:
            raise TunnelError(str(error)) from None
        return self._output.take()


class _Bounded:
    """Takes what zstd writes for one frame, up to the limit."""

    def __init__(self) -> None:
        self._parts = list[bytes]()

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        if sum(map(len, self._parts)) > MOST:
            raise TunnelError(f"a frame stands for more than {MOST:,} bytes")
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def open_tunnel(via: Via, wanted: str, make: Callable[[], P], *, tls: SSLContext | None) -> P:
    """Connect a protocol to an engine through a receiver. The caller limits the time.

    Raises OSError, or ConfigError if zstandard is not installed.
    """
    inner = make()
    loop = asyncio.get_running_loop()
    tunnel = Tunnel(cast(asyncio.Protocol, inner), wanted, via.traffic)
    try:
        await loop.create_connection(lambda: tunnel, via.host, via.port, ssl=tls)
        await tunnel.opened
    except BaseException:
        tunnel.opened.cancel()
        tunnel.abort()
        raise
    return inner


class Tunnel(asyncio.Protocol, asyncio.WriteTransport):
    """To the socket a protocol, to the protocol inside a transport."""

    def __init__(self, inner: asyncio.Protocol, wanted: str, traffic: Traffic) -> None:
        super().__init__()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner, self._wanted, self._traffic = inner, wanted, traffic
        self._packer, self._unpacker = Packer(), Unpacker()
        self._transport: asyncio.WriteTransport | None = None
        self._answer: bytes | None = b""  # None: it has come
        self._has_written = False

    # As a protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(HELLO + self._wanted.encode() + b"\n")

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            data = self._read_answer(self._answer + data)
        self._traffic.wire_received += len(data)
        self._pass_on(self._unpacker.unpack(data))

    def _pass_on(self, parts: Iterator[bytes]) -> None:
        """Some of the parts, and then others have their turn: few bytes may stand for a gigabyte."""
        transport, left = cast(asyncio.Transport, self._transport), _AT_ONCE
        try:
            for raw in parts:
                self._traffic.raw_received += len(raw)
                self._inner.data_received(raw)
                if transport.is_closing():
                    return
                left -= len(raw)
                if left <= 0:
                    transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self._pass_on, parts)
                    return
        except TunnelError as error:
            self._fail(f"the receiver sent invalid bytes: {error}")
            return
        transport.resume_reading()

    def _read_answer(self, data: bytes) -> bytes:
        """Returns what follows the answer."""
        line, end, rest = data.partition(b"\n")
        if not end and len(data) <= LONGEST_LINE:
            self._answer = data
        elif line + end == OK:
            self._answer = None
            self._inner.connection_made(self)
            if not self.opened.done():
                self.opened.set_result(None)
            return rest
        else:
            self._fail(_why_not(line))
        return b""

    def pause_writing(self) -> None:
        if self._answer is None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._answer is None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is None:
            self._inner.connection_lost(exc)
        else:
            why = str(exc or "") or "it closed the connection"
            self._fail(f"{why} before it answered. {_HINT}")

    # As a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._transport is not None
        packed = self._packer.pack(bytes(data)) if self._has_written else store(bytes(data))
        self._has_written = True
        self._traffic.raw_sent += len(data)
        self._traffic.wire_sent += len(packed)
        self._transport.write(packed)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        error = ConnectionError(why)
        if self._answer is None:
            self._inner.connection_lost(error)
        elif not self.opened.done():
            self.opened.set_exception(error)
        self.abort()


def _why_not(line: bytes) -> str:
    """Why an answer is none. A receiver and a Redis server refuse in the same way."""
    shown = line[:LONGEST_LINE].decode("utf-8", "replace").strip()
    if shown.startswith("-ERR receiver: "):
        return shown.removeprefix("-ERR receiver: ")
    return f"there is no receiver at this address, or of another version: it answered {shown[:_SHOWN]!r}"
