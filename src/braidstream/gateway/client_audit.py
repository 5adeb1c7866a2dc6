"""Who did what: failed logins, with a growing delay, and administrative commands.

Only the client that failed waits. A client behind the same address (of a proxy) that knows its password does
not. One address logs at most 100 administrative commands a minute; the rest are only counted.
"""

import time
from collections import OrderedDict
from ipaddress import ip_address
from typing import Final

from braidstream.net.resp import Words
from braidstream.observability.events import emit
from braidstream.observability.metrics import Family
from braidstream.observability.repeated import Repeated

_FORGET_S: Final = 60.0
# Failures of one address within a minute that are answered at once; then the delay doubles.
_FREE: Final = 5
_FIRST_S: Final = 0.1
_MOST_S: Final = 3.0
_LINES: Final = 100
_MOST_ADDRESSES: Final = 10_000
_LONGEST: Final = 100

# Commands that change the server or the users, by their subcommands; empty: all of them.
_ADMIN: Final[dict[bytes, frozenset[bytes]]] = {
    b"ACL": frozenset((b"SETUSER", b"DELUSER", b"LOAD", b"SAVE")),
    b"CLIENT": frozenset((b"KILL", b"PAUSE")),
    b"CONFIG": frozenset((b"SET", b"REWRITE", b"RESETSTAT")),
    b"FUNCTION": frozenset((b"LOAD", b"DELETE", b"FLUSH", b"RESTORE", b"KILL")),
    b"MODULE": frozenset((b"LOAD", b"LOADEX", b"UNLOAD")),
    b"SCRIPT": frozenset((b"FLUSH", b"KILL")),
    **dict.fromkeys(
        (b"DEBUG", b"FAILOVER", b"FLUSHALL", b"FLUSHDB", b"MIGRATE", b"MONITOR", b"PSYNC", b"REPLICAOF")
        + (b"SHUTDOWN", b"SLAVEOF", b"SWAPDB", b"SYNC"),
        frozenset[bytes](),
    ),
}


def admin_command(words: Words) -> str:
    """The command and subcommand, without arguments, which may hold passwords; empty for other ones."""
    name = words[0].upper()
    about = _ADMIN.get(name)
    if about is None:
        return ""
    if not about:
        return name.decode()
    second = words[1].upper() if len(words) > 1 else b""
    return f"{name.decode()} {second.decode()}" if second in about else ""


class _Address:
    """What one address did. IPv6 addresses of one /64 are one."""

    __slots__ = ("failures", "failed_at", "lines", "lines_from", "trouble")

    def __init__(self) -> None:
        self.failures, self.failed_at = 0, 0.0
        self.lines, self.lines_from = 0, 0.0
        self.trouble = Repeated()


class Audit:
    """See the top of the file."""

    def __init__(self) -> None:
        self.failed_logins = self.admin_commands = 0
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def login_failed(self, client: str, user: bytes) -> float:
        """Returns how many seconds the client must wait for its answer."""
        self.failed_logins += 1
        now, at = time.monotonic(), self._at(client)
        if now - at.failed_at > _FORGET_S:
            at.failures, at.trouble = 0, Repeated()
        at.failures, at.failed_at = at.failures + 1, now
        at.trouble.log("gateway.login_failed", now, client=client, user=_text(user), why="wrong password")
        if at.failures <= _FREE:
            return 0.0
        return float(min(_MOST_S, _FIRST_S * 2 ** min(at.failures - _FREE - 1, 10)))

    def admin(self, client: str, user: bytes, command: str) -> None:
        self.admin_commands += 1
        now, at = time.monotonic(), self._at(client)
        if now - at.lines_from > _FORGET_S:
            at.lines, at.lines_from = 0, now
        at.lines += 1
        if at.lines <= _LINES:
            emit("gateway.admin", client=client, user=_text(user), command=command)

    def families(self, denied: int) -> list[Family]:
        """denied: commands that the engine refused with NOPERM."""
        return [
            Family.counter(
                "braid_gateway_login_failures_total",
                "AUTH and HELLO with a wrong user or password.",
                {(): self.failed_logins},
            ),
            Family.counter(
                "braid_gateway_denied_total",
                "Commands that the engine refused because the user lacks the right (NOPERM).",
                {(): denied},
            ),
            Family.counter(
                "braid_gateway_admin_commands_total",
                "Administrative commands of clients: those of the event gateway.admin.",
                {(): self.admin_commands},
            ),
        ]

    def _at(self, client: str) -> _Address:
        host = client.rpartition(":")[0]
        if ":" in host:
            host = ip_address(host.partition("%")[0]).exploded[:19]
        found = self._addresses.setdefault(host, _Address())
        self._addresses.move_to_end(host)
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        return found


def user_of(words: Words) -> bytes:
    """Whom AUTH or HELLO wants to log in."""
    if words[0].upper() == b"AUTH":
        return words[1] if len(words) == 3 else b"default"
    at = next((at for at, word in enumerate(words) if word.upper() == b"AUTH"), len(words))
    return words[at + 1] if at + 1 < len(words) else b"default"


def _text(user: bytes) -> str:
    return user[:_LONGEST].decode("utf-8", "replace")
