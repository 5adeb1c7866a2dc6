"""A gateway in a thread of its own, and a client of it that sees bytes.

with Served(engine.url) as gateway, Line(gateway.port) as line:
    assert line.say("PING") == b"+PONG\\r\\n"
"""

import asyncio
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import hiredis

from braidstream.config import RegionConfig
from braidstream.engine.address import Listen, parse_address
from braidstream.engine.resp import Scanner
from braidstream.gateway.hub import Settings
from braidstream.gateway.server import Gateway

Word = str | bytes | int


class Served:
    """`braid gateway` without the process: starts on a free port, stops at the end."""

    def __init__(
        self,
        url: str,
        settings: Settings | None = None,
        listen: str = "127.0.0.1:0",
        others: Sequence[RegionConfig] = (),
    ) -> None:
        self._others = others
        self._url, self._settings, self._listen = url, settings, Listen.parse(listen)
        self._ready: Future[str] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.where = self._ready.result(20)
        except BaseException:
            self._thread.join(20)
            raise
        self.port = int(self.where.rpartition(":")[2]) if not self.where.startswith("unix:") else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
        assert not self._thread.is_alive(), "the gateway should have stopped"

    def forget(self) -> None:
        """Make it look at the region and the streams again."""

        async def forget() -> None:
            for database in self.gateway.hub.databases.values():
                database.forget()

        asyncio.run_coroutine_threadsafe(forget(), self._loop).result(10)

    def most_waiting(self) -> int:
        """The most bytes that wait to be sent to one client; read in the gateway's own thread."""

        async def ask() -> int:
            return max(each.transport.get_write_buffer_size() for each in self.gateway.hub.clients)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(60)

    def most_queued(self) -> int:
        """The most bytes of commands that one client has waiting."""

        async def ask() -> int:
            return max(
                sum(len(word) for words in each.queue for word in words) for each in self.gateway.hub.clients
            )

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.gateway = Gateway(parse_address(self._url), self._settings, self._others)
            where = await self.gateway.start(self._listen)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(where)
        await self._stop.wait()
        await self.gateway.stop()


class Line:
    """A socket that speaks RESP and gives replies as the bytes that came."""

    def __init__(self, where: int | str, timeout_s: float = 10) -> None:
        if isinstance(where, int):
            self.socket = socket.create_connection(("127.0.0.1", where), timeout_s)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout_s)
            self.socket.connect(where)
        self._scanner, self._torn, self._replies = Scanner(), b"", list[bytes]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *words: Word) -> None:
        self.socket.sendall(packed(*words))

    def read(self) -> bytes:
        """The next reply; b"" if the other side closed."""
        while not self._replies:
            data = self.socket.recv(65536)
            if not data:
                return b""
            begin = 0
            for end, _ in self._scanner.feed(data):
                self._replies.append(self._torn + data[begin:end])
                self._torn, begin = b"", end
            self._torn += data[begin:]
        return self._replies.pop(0)

    def say(self, *words: Word) -> bytes:
        """A command, its reply. One word with blanks is a line of words."""
        self.send(*(words[0].split() if len(words) == 1 and isinstance(words[0], str) else words))
        return self.read()

    def pipeline(self, *lines: str) -> list[bytes]:
        self.socket.sendall(b"".join(packed(*line.split()) for line in lines))
        return [self.read() for _ in lines]


def packed(*words: Word) -> bytes:
    return bytes(hiredis.pack_command(words))  # type: ignore[arg-type]


def value_of(reply: bytes) -> Any:
    reader = hiredis.Reader(protocolError=AssertionError, replyError=str)  # type: ignore[arg-type]
    reader.feed(reply)
    return reader.gets()
