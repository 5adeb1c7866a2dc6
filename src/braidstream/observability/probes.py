"""HTTP for probes and Prometheus: /metrics, /healthz, /readyz.

    GET /healthz    200 while the event loop runs
    GET /readyz     200 if the own engine answers, else 503 and the reason
    GET /readyz?behind=10   503 also if the region lacks entries that another one has had for 10 s (gateways)
    GET /metrics    Prometheus text

One request for each connection, answered and closed. A request has at most 8 KB and 5 seconds, and there are
at most 64 connections: another one replaces the oldest, so clients that say nothing keep no probe out. There
is no TLS and no password: listen on loopback, or on a network that only the monitoring reaches. Names of
regions, streams and groups are shown; URLs, passwords and entries never are.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from braidstream.observability.metrics import CONTENT_TYPE, Family, render

MOST_BYTES: Final = 8_192
WITHIN_S: Final = 5.0
MOST_CONNECTIONS: Final = 64
_PLAIN: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a process.

    why_not_ready: empty if it is.
    note: what a process that is ready says besides; a restart would not help.
    behind: of a gateway, what its region lacks for longer than so many seconds.
    """

    region: str
    families: Callable[[], Iterable[Family]]
    why_not_ready: Callable[[], Awaitable[str]]
    note: Callable[[], str] | None = None
    behind: Callable[[float], str] | None = None


class ProbeServer:
    """See the top of the file."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Start to listen. Returns HOST:PORT. OSError if that fails."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MOST_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(WITHIN_S):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # the client left, or is too slow
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(WITHIN_S / 2):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            return _response(400, "The request is too long.\n")
        except TimeoutError:
            return _response(408, "The request took too long.\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, "This is no HTTP request.\n")
        if words[0] not in (b"GET", b"HEAD"):
            return _response(405, "Only GET is served.\n")
        answer = await self._page(*words[1].split(b"?", 1))
        return answer if words[0] == b"GET" else answer[: answer.index(b"\r\n\r\n") + 4]

    async def _page(self, path: bytes, query: bytes = b"") -> bytes:
        if path == b"/healthz":
            return _response(200, "ok\n")
        if path == b"/readyz":
            most = re.fullmatch(rb"behind=(\d{1,9}(?:\.\d{1,3})?)", query)
            why = await self._answers.why_not_ready()
            if most and not why and self._answers.behind is not None:
                why = self._answers.behind(float(most[1]))
            note = self._answers.note() if self._answers.note is not None else ""
            lines = dict.fromkeys((why or "ready", note))
            return _response(503 if why else 200, "".join(f"{line}\n" for line in lines if line))
        if path == b"/metrics":
            return _response(200, render(self._answers.families(), self._answers.region), CONTENT_TYPE)
        return _response(404, "Pages: /metrics, /healthz, /readyz\n")


def _response(status: int, body: str | bytes, kind: str = _PLAIN) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    )
    return f"{head}Connection: close\r\n\r\n".encode() + content
