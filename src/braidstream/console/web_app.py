"""The console as an ASGI application: routes, errors as pages, and headers that every answer has."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from braidstream.clients.raised import ServerError
from braidstream.console import dead_pages, entry_pages, region_pages, stream_pages
from braidstream.console.access import BoundError
from braidstream.console.page import (
    Console,
    MissingPageError,
    QueryError,
    console_of,
    form_of,
    render,
)
from braidstream.console.visitors import new_id
from braidstream.errors import BraidError

# ----------------------------------------------------------------------------------------------------
#
# uvicorn's protocol, which waits for a request for ever, and for a client that does not read its answers: a
# connection that sends no request, or takes nothing of an answer, is closed here.
#
# The number of connections served at once is limited, so without this anybody who reaches the port could
# take them all, before any password.

REQUEST_WITHIN_S: Final = 10.0


class ClosesIdle(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later()

    def _look_later(self) -> None:
        before = self.cycle, self.transport.get_write_buffer_size()
        self.loop.call_later(REQUEST_WITHIN_S, lambda: self._look(*before))

    def _look(self, before: object, unsent: int) -> None:
        """Close if no request has come since the last look, and none is being answered. Abort if it has taken
        nothing of an answer."""
        if self.transport.is_closing():
            return
        if unsent and self.cycle is before and self.transport.get_write_buffer_size() == unsent:
            self.transport.abort()
        elif self.cycle is before and (before is None or self.cycle.response_complete):
            self.transport.close()
        else:
            self._look_later()


# ----------------------------------------------------------------------------------------------------
# Web app

_STATIC: Final = Path(__file__).parent / "static"
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Only what comes from this console runs or is loaded. Inline scripts and styles are refused as well.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Handler = Callable[[Request], Awaitable[Response]]


def web_app(console: Console) -> ASGIApp:
    routes = [
        Route("/", region_pages.show),
        Route("/streams", stream_pages.list_page),
        Route("/stream", stream_pages.show),
        Route("/entries", entry_pages.list_page),
        Route("/entry", entry_pages.show),
        Route("/tail", entry_pages.tail),
        Route("/tail/new", entry_pages.newer),
        Route("/groups", stream_pages.group_list_page),
        Route("/group", stream_pages.show_group),
        Route("/dead", dead_pages.list_page),
        Route("/dead/retry", dead_pages.retry, methods=["POST"]),
        Route("/dead/drop", dead_pages.drop, methods=["POST"]),
        Route("/logs", entry_pages.log_list_page),
        Route("/log", entry_pages.show_log),
        Route("/doctor", region_pages.doctor),
        Route("/audit", region_pages.audit),
        Route("/login", _login_page),
        Route("/login", _login, methods=["POST"]),
        Route("/logout", _logout, methods=["POST"]),
    ]
    for path in sorted(_STATIC.iterdir()):
        if path.suffix in _KINDS:
            routes.append(Route(f"/static/{path.name}", _static(path)))
    made = Starlette(routes=routes, exception_handlers=_ERRORS)
    made.state.console = console
    return Guard(made, console)


class Guard:
    """Lets only visitors in who may look, gives each a cookie, and adds the headers."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app, self._visitors = app, console.visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        visitor = self._visitors.id_of(request)
        is_new = not visitor
        scope.setdefault("state", {})["visitor"] = visitor = visitor or new_id()
        is_static = scope["path"].startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "max-age=3600" if is_static else "no-store"
                if is_new and not is_static and "set-cookie" not in headers:
                    headers.append(
                        "Set-Cookie", _cookie(self._visitors.cookie, visitor, self._visitors.is_tls)
                    )
            await send(message)

        verdict = self._visitors.judge(request)
        app: ASGIApp = self._app
        if verdict == "refused":
            app = PlainTextResponse("You may not use this console from here.\n", 403)
        elif verdict == "login" and not is_static and scope["path"] != "/login":
            app = RedirectResponse("/login", 303)
        await app(scope, receive, send_with_headers)


def _cookie(name: str, value: str, is_tls: bool) -> str:
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if is_tls else ''}"


async def _login_page(request: Request) -> Response:
    return render(request, "login.html", wrong=False)


async def _login(request: Request) -> Response:
    visitors, form = console_of(request).visitors, await form_of(request)
    if visitors.is_busy(request):
        raise QueryError("too many wrong passwords. Wait a minute.")
    session = visitors.log_in(form.words.get("password", ""), request)
    if session is None:
        return render(request, "login.html", status=403, wrong=True)
    response = RedirectResponse("/", 303)
    response.headers["Set-Cookie"] = _cookie(visitors.cookie, session, visitors.is_tls)
    return response


async def _logout(request: Request) -> Response:
    await form_of(request)
    console_of(request).visitors.log_out(request)
    return RedirectResponse("/login", 303)


def _static(path: Path) -> Handler:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def serve(request: Request) -> Response:
        return Response(content, headers={"ETag": tag}, media_type=_KINDS[path.suffix])

    return serve


_OF_A_REGION: Final = (
    "/streams",
    "/stream",
    "/entries",
    "/entry",
    "/tail",
    "/groups",
    "/group",
    "/dead",
    "/logs",
    "/log",
)


async def _error(request: Request, error: Exception) -> Response:
    """Errors are pages too. The text of a BraidError has no secret."""
    status, title = HTTPStatus.BAD_GATEWAY, "This did not work"
    if isinstance(error, QueryError):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(error, MissingPageError):
        status, title = HTTPStatus.NOT_FOUND, "Not found"
    elif isinstance(error, BoundError):
        status = HTTPStatus.UNPROCESSABLE_ENTITY
    others = _elsewhere(request) if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.NOT_FOUND) else []
    return render(request, "error.html", status=status, title=title, text=str(error), elsewhere=others)


def _elsewhere(request: Request) -> list[tuple[str, str]]:
    """The same page in the other regions: their names and addresses. Only of pages that show one region."""
    if request.method != "GET" or request.url.path not in _OF_A_REGION:
        return []
    names = [each.name for each in console_of(request).regions.region]
    here, words = request.query_params.get("region") or names[0], dict(request.query_params)
    return [
        (name, f"{request.url.path}?{urlencode({**words, 'region': name})}") for name in names if name != here
    ]


async def _missing(request: Request, error: Exception) -> Response:
    return await _error(request, MissingPageError("there is no such page."))


async def _crash(request: Request, error: Exception) -> Response:
    """A defect of the console. The process logs the error; the page does not show it."""
    text = "the console failed on this page. What happened is in its log."
    return render(request, "error.html", status=500, title="This did not work", text=text, elsewhere=[])


_ERRORS: Final = {
    Exception: _crash,
    BraidError: _error,
    ServerError: _error,
    OSError: _error,
    404: _missing,
    405: _missing,
}
