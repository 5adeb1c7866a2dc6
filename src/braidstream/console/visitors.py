"""Who may use the console, and what proves that a form was sent by one of its pages.

    open      no password: only for an address of this machine. The Host must be this machine too, so that a
              web site whose name was made to point here (DNS rebinding) gets nothing
    password  a form sets a cookie; sessions are in memory and end after twelve hours or with the process
    proxy     a reverse proxy has authenticated the user and names them in a header. The header counts only if
              the connection comes from one of the proxy's addresses

A page that changes something needs a token in the form: an HMAC of the visitor's cookie with a key of this
process. Another site can neither read the cookie nor the page that has the token.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from braidstream.engine.address import network_of, plain_address

_SESSION_S: Final = 12 * 3600
_MOST_SESSIONS: Final = 1_000
_MOST_NETWORKS: Final = 10_000
# Wrong passwords of one address that are answered at once; then each further one has to wait.
_FREE_FAILURES: Final = 10
_FAILURES_WITHIN_S: Final = 60.0

Verdict = Literal["welcome", "login", "refused"]


@dataclass(frozen=True, slots=True)
class AccessRules:
    """password, or the header of a proxy and the addresses it connects from; with neither: open."""

    password: str = field(default="", repr=False)
    header: str = ""
    proxies: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        return not self.password and not self.header


class Visitors:
    """See the top of the file. cookie: its name, which contains the port: cookies do not know ports."""

    def __init__(self, rules: AccessRules, *, port: int, is_tls: bool) -> None:
        self.rules, self.cookie, self.is_tls = rules, f"braid_console_{port}", is_tls
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()  # by network

    def judge(self, request: HTTPConnection) -> Verdict:
        if self.rules.is_open:
            return "welcome" if _is_this_machine(request.headers.get("host", "")) else "refused"
        if self.rules.header:
            return "welcome" if self.user(request) else "refused"
        until = self._sessions.get(self.id_of(request), 0.0)
        return "welcome" if time.monotonic() < until else "login"

    def user(self, request: HTTPConnection) -> str:
        """The user that the trusted proxy names; empty if none, or if another peer sent the header."""
        if not self.rules.header or request.client is None:
            return ""
        is_proxy = plain_address(request.client.host) in self.rules.proxies
        return request.headers.get(self.rules.header, "") if is_proxy else ""

    def id_of(self, request: HTTPConnection) -> str:
        """The visitor's cookie; empty if there is none."""
        return request.cookies.get(self.cookie, "")

    # Passwords

    def is_busy(self, request: HTTPConnection) -> bool:
        """Whether too many wrong passwords came from there within a minute: no more are tried for now."""
        failures = self._failures.get(_network(request), deque())
        return len(failures) == _FREE_FAILURES and time.monotonic() - failures[0] < _FAILURES_WITHIN_S

    def log_in(self, password: str, request: HTTPConnection) -> str | None:
        """A new session; None if the password is wrong."""
        given, wanted = (hashlib.sha256(text.encode()).digest() for text in (password, self.rules.password))
        if not hmac.compare_digest(given, wanted):
            self._note_failure(_network(request))
            return None
        session = new_id()
        self._sessions[session] = time.monotonic() + _SESSION_S
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def _note_failure(self, network: str) -> None:
        self._failures.setdefault(network, deque(maxlen=_FREE_FAILURES)).append(time.monotonic())
        self._failures.move_to_end(network)
        while len(self._failures) > _MOST_NETWORKS:
            self._failures.popitem(last=False)

    def log_out(self, request: HTTPConnection) -> None:
        self._sessions.pop(self.id_of(request), None)

    # Forms

    def token(self, visitor: str) -> str:
        return hmac.new(self._key, visitor.encode(), "sha256").hexdigest()

    def is_own_form(self, request: HTTPConnection, token: str) -> bool:
        """Whether a form was sent by one of our pages, in the browser that got the page."""
        visitor = self.id_of(request)
        if not visitor or not hmac.compare_digest(self.token(visitor).encode(), token.encode()):
            return False
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def new_id() -> str:
    return secrets.token_urlsafe(32)


def _is_this_machine(host: str) -> bool:
    """Whether a Host header is an IP address or localhost: names that no other site can point here."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        ip_address(name)
    except ValueError:
        return False
    return True


def _network(request: HTTPConnection) -> str:
    return network_of(request.client.host if request.client else "")
