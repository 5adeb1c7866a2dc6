"""A loopback proxy before an engine, that loses replies, cuts connections and refuses clients on demand.

with Proxy(engine.port) as proxy:
    proxy.lose_replies(b"XADD", times=1)   # forwarded and answered, and the answer never arrives
    proxy.lose_at_random(0.01, seed=7)     # one request in a hundred: itself lost, or its answer
    proxy.break_off(b"end of it")          # an answer with these words ends before them, with its connection
    proxy.cut()                            # every open connection ends now
    proxy.point(other.port)                # a virtual IP address that moves; open connections end
    proxy.shut()                           # refuses new connections, until open()
    proxy.cut_off()                        # both
    proxy.answer(b"XADD", b"+NO\\r\\n")      # requests with this word do not arrive, and are answered so
    proxy.swallow()                        # everybody gets in and nothing is ever answered, until deliver()
    proxy.forget()                         # instead: connections stay so, and only new ones work
    proxy.requests                         # what was sent so far, one buffer for each connection
"""

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """One port, any number of connections, two threads each."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.lost = 0
        self.requests: list[bytearray] = []
        self.stalled = threading.Event()
        self._pattern, self._times = b"", 0
        self._break_at: bytes | None = None
        self._answer: tuple[bytes, bytes] | None = None
        self._share, self._dice = 0.0, random.Random(0)
        self._stall_at: bytes | None = None
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self._door: socket.socket | None = None
        self._swallowing = False
        self._dead: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.shut()
        self._stall_at = None
        self.go_on()
        if self._accepting is not None:
            self._accepting.join()  # or it could add a connection after the cut
        self.cut()
        for thread in self._threads:
            thread.join()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_replies(self, pattern: bytes, *, times: int) -> None:
        """Forward the next requests that contain `pattern`, and cut each connection when its answer comes."""
        with self._lock:
            self._pattern, self._times, self.lost = pattern, times, 0

    def break_off(self, pattern: bytes) -> None:
        """Forward answers up to `pattern`, and cut the connection there."""
        self._break_at = pattern

    def answer(self, pattern: bytes, reply: bytes) -> None:
        """From now on answer requests that contain `pattern` ourselves; open connections end first."""
        self._answer = pattern, reply
        self.cut()

    def pass_on(self) -> None:
        """No longer."""
        self._answer = None
        self.cut()

    def lose_at_random(self, share: float, *, seed: int) -> None:
        """Of the requests that come, lose this share: the request itself or, as often, its answer."""
        with self._lock:
            self._share, self._dice, self.lost = share, random.Random(seed), 0

    def stall(self, pattern: bytes) -> None:
        """Forward each request up to the last place of `pattern` in it; `stalled` is set until go_on()."""
        self._stall_at = pattern

    def go_on(self) -> None:
        """Forward the rest of the request that has stalled."""
        self.stalled.clear()
        self._go_on.set()

    def cut_off(self) -> None:
        """Nobody gets in, and nobody stays."""
        self.shut()
        self.cut()

    def cut(self) -> None:
        """End every connection, on both sides."""
        with self._lock:
            sockets = list(self._open)
        for each in sockets:
            _end(each)

    def point(self, target_port: int) -> None:
        """From now on forward to another port."""
        self.target_port = target_port
        self.cut()

    def open(self) -> None:
        """Listen: on a free port the first time, on the same one later."""
        self._door = socket.create_server(("127.0.0.1", self.port))
        self.port = self._door.getsockname()[1]
        self._accepting = self._start(self._accept, self._door)

    def shut(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._door is not None:
            _end(self._door)
            self._door = None

    def swallow(self) -> None:
        """Half open: connections stay and come, and what is sent disappears."""
        self._swallowing = True

    def deliver(self) -> None:
        """No longer. Connections that lost something end: a stream with a hole is none."""
        self._swallowing = False
        self.cut()

    def forget(self) -> None:
        """Connections that lost something stay half open for ever; new ones work."""
        self._swallowing = False
        self._dead |= self._open

    def _start(self, target: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            try:
                engine = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                _end(client)
                continue
            with self._lock:
                self._open |= {client, engine}
            doomed = threading.Event()
            self._start(self._requests, client, engine, doomed)
            self._start(self._replies, engine, client, doomed)

    def _requests(self, client: socket.socket, engine: socket.socket, doomed: threading.Event) -> None:
        heard = bytearray()
        self.requests.append(heard)
        with suppress(OSError):
            while chunk := client.recv(65536):
                heard += chunk
                if self._swallowing or client in self._dead:
                    continue
                if self._answer is not None and self._answer[0] in chunk:
                    client.sendall(self._answer[1])
                    continue
                if self._is_to_be_lost(chunk):
                    doomed.set()
                if (fate := self._fate()) == "request":
                    break
                if fate == "answer":
                    doomed.set()
                if self._stall_at is not None and self._stall_at in chunk:
                    chunk = self._stalled(chunk, engine, self._stall_at)
                engine.sendall(chunk)
        self._forget(client, engine)

    def _replies(self, engine: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while chunk := engine.recv(65536):
                if doomed.is_set():
                    break
                if self._swallowing:
                    continue
                if self._break_at is not None and self._break_at in chunk:
                    client.sendall(chunk[: chunk.index(self._break_at)])
                    break
                client.sendall(chunk)
        self._forget(client, engine)

    def _stalled(self, chunk: bytes, engine: socket.socket, pattern: bytes) -> bytes:
        """Forward the first part, wait, and return the rest."""
        cut = chunk.rindex(pattern)
        engine.sendall(chunk[:cut])
        self._go_on.clear()
        self.stalled.set()
        self._go_on.wait()
        return chunk[cut:]

    def _is_to_be_lost(self, chunk: bytes) -> bool:
        with self._lock:
            if not self._times or self._pattern not in chunk:
                return False
            self._times -= 1
            self.lost += 1
            return True

    def _fate(self) -> str:
        with self._lock:
            if not self._share or self._dice.random() >= self._share:
                return "well"
            self.lost += 1
            return self._dice.choice(["request", "answer"])

    def _forget(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open -= set(sockets)
        for each in sockets:
            _end(each)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
