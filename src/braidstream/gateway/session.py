"""One client's state, without I/O: its user (also by a certificate), database, protocol, subscriptions.

A few commands (`greeting`) can restore most of that state on a new connection, so the gateway may close the
engine connection of an idle client. State that they cannot restore (a WATCH, a subscription, a client ID
that the client has read) keeps the connection open.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.commands.table import TABLE, Spec
from braidstream.engine.resp import Words
from braidstream.errors import RefusedError
from braidstream.model.strand import Command

SUBSCRIBES: Final = frozenset((b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"))
UNSUBSCRIBES: Final = frozenset((b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"))
PUBSUB: Final = SUBSCRIBES | UNSUBSCRIBES

# Commands that change the state of a connection: the engine answers, the gateway reads along.
STATEFUL: Final = PUBSUB | {b"AUTH", b"HELLO", b"SELECT", b"RESET", b"MONITOR", b"SYNC", b"PSYNC"}
TRANSACTION: Final = frozenset((b"MULTI", b"EXEC", b"DISCARD", b"UNWATCH"))
# Answered by a server that is in no cluster, unless the gateway announces one.
ABOUT_CLUSTERS: Final = frozenset((b"CLUSTER", b"READONLY", b"READWRITE", b"ASKING"))
NO_CLUSTER: Final = "ERR This instance has cluster support disabled"
# Commands with a handler of their own in the gateway.
SPECIAL: Final = (
    STATEFUL
    | TRANSACTION
    | ABOUT_CLUSTERS
    | {b"CLIENT", b"QUIT", b"INFO", b"COMMAND", b"FUNCTION", b"SCRIPT", b"WAIT", b"WAITAOF", b"REPLCONF"}
    | {b"SWAPDB"}
)
# Plans that WATCH need a connection of the client's own.
ALONE: Final = frozenset((b"RENAME", b"RENAMENX", b"COPY", b"WATCH", b"DUMP", b"RESTORE"))
# Native commands that may block: cancelled when the client disconnects.
BLOCKING: Final = frozenset(
    (b"BLPOP", b"BRPOP", b"BLMOVE", b"BRPOPLPUSH", b"BZPOPMIN", b"BZPOPMAX", b"BLMPOP", b"BZMPOP", b"WAIT")
)
# CLIENT subcommands after which the client depends on this very connection.
_KEEPS: Final = frozenset((b"ID", b"INFO", b"TRACKING", b"CACHING", b"NO-EVICT", b"NO-TOUCH"))
_LOG_COMMANDS: Final = frozenset((b"TWRITE", b"TREAD", b"TEVICT", b"TACK", b"TCFGSET"))
# Commands whose replies may have many entries or names.
_MANY: Final = frozenset(
    b"XRANGE XREVRANGE XREAD XREADGROUP XCLAIM XAUTOCLAIM XPENDING XINFO TREAD KEYS SCAN".split()
)
# Commands for which the gateway does much for each word, and serves no other client: up to 0.3 s for these
_MOST_WORDS: Final = {b"COMMAND": 512, b"WATCH": 10_000, b"XREAD": 20_000, b"XREADGROUP": 20_000}
# Memory of a word beyond its bytes.
_WORD: Final = 100
_STATES: Final = frozenset((b"READONLY", b"READWRITE", b"ASKING"))


@dataclass(frozen=True, slots=True)
class Login:
    """A client's credentials. The user is None if the client sent a password alone."""

    user: bytes | None
    password: bytes = field(repr=False)


def memory_of(words: Collection[bytes]) -> int:
    """About how many bytes of memory words take."""
    return sum(map(len, words)) + _WORD * len(words)


def login_by_certificate(certificate: Mapping[str, Any] | None, users: Mapping[str, str]) -> Login | None:
    """The login of a new client by the common name of its certificate, if the operator names it."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    password = users.get(names[0]) if len(names) == 1 else None
    return None if password is None else Login(names[0].encode(), password.encode())


def spec_of(words: Words) -> Spec | None:
    return TABLE.get(words[0].upper())


def size_refusal(words: Words) -> RefusedError | None:
    """The error for a command with so many names that it would hold up the other clients."""
    name = words[0].upper()
    most = _MOST_WORDS.get(name, len(words))
    if len(words) <= most:
        return None
    what = f"{name.decode()} with {len(words):,} words"
    return RefusedError(
        what, "other clients would wait for it", f"Name fewer at once, {most:,} words at most"
    )


def may_be_plain(words: Words) -> bool:
    """Whether a command of the table also works on plain keys: all but the stream and log commands."""
    return words[0][:1] not in (b"X", b"x") and words[0].upper() not in _LOG_COMMANDS


def blocks(words: Words) -> bool:
    """Whether a command may block."""
    name = words[0].upper()
    if name in (b"XREAD", b"XREADGROUP", b"TREAD"):
        return any(word.upper() == b"BLOCK" for word in words)
    return name in BLOCKING


def most_entries(words: Words, unlimited: int) -> int:
    """How many entries or names the reply to a command may have; `unlimited` if the command does not say."""
    name = words[0].upper()
    if name not in _MANY:
        return 0
    if name == b"XINFO":
        return unlimited if any(word.upper() == b"FULL" for word in words) else 2
    at = next((at for at, word in enumerate(words) if word.upper() == b"COUNT"), 0)
    count = words[at + 1] if 0 < at < len(words) - 1 else words[3] if name == b"TREAD" and words[3:] else b""
    if not count.isdigit() or len(count) > 9:
        return unlimited
    streams = next((at for at, word in enumerate(words) if word.upper() == b"STREAMS"), len(words) - 2)
    return int(count) * max(1, (len(words) - streams - 1) // 2)


@dataclass(slots=True)
class Subscriptions:
    """A client's subscriptions, as the engine confirmed them. size: about their bytes in memory."""

    names: dict[bytes, set[bytes]] = field(
        default_factory=lambda: {kind: set() for kind in (b"", b"P", b"S")}
    )
    size: int = 0

    def __bool__(self) -> bool:
        return any(self.names.values())

    def note(self, words: Words) -> None:
        """Update after the engine confirmed a command."""
        name = words[0].upper()
        listens = self.names[_kind(name)]
        if name in SUBSCRIBES:
            new = set(words[1:]) - listens
            listens |= new
            self.size += memory_of(new)
        else:
            gone = listens & set(words[1:]) if len(words) > 1 else set(listens)
            listens -= gone
            self.size -= memory_of(gone)


def _kind(name: bytes) -> bytes:
    return name[:1] if name[:2] in (b"PS", b"PU", b"SS", b"SU") and name != b"SUBSCRIBE" else b""


@dataclass(slots=True)
class Session:
    """See the top of the file.

    home: the database of a new client: the one in the gateway's URL.
    kept: the client depends on this connection (for example on its ID), so it may not be closed.
    tracks: CLIENT TRACKING is on: the engine pushes messages about commands of this connection, so all of the
    client's commands must use it.
    muted, skips: CLIENT REPLY OFF, CLIENT REPLY SKIP.
    """

    home: int = 0
    resp: int = 2
    db: int = 0
    login: Login | None = None
    name: bytes = b""
    library: dict[bytes, bytes] = field(default_factory=dict)
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    watching: bool = False
    in_multi: bool = False
    monitors: bool = False
    kept: bool = False
    tracks: bool = False
    muted: bool = False
    skips: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether commands have the same effect on any connection of the same user and database."""
        return not (
            self.in_multi
            or self.watching
            or self.tracks
            or self.muted
            or self.skips
            or self.monitors
            or self.subscriptions
        )

    @property
    def listens(self) -> bool:
        """RESP2 only: replies and messages are mixed, and the engine itself refuses other commands."""
        return self.monitors or (self.resp == 2 and bool(self.subscriptions))

    @property
    def can_park(self) -> bool:
        """Whether the connection can be closed and opened again without the client noticing."""
        return not (self.in_multi or self.watching or self.kept or self.monitors or self.subscriptions)

    def greeting(self) -> list[Command]:
        """Commands that restore this client's state on a new connection."""
        commands = list[Command]()
        if self.resp == 3:
            commands.append((b"HELLO", b"3", *self._auth(b"default")))
        elif self.login is not None:
            commands.append(self._auth(self.login.user))
        if self.db:
            commands.append((b"SELECT", b"%d" % self.db))
        if self.name:
            commands.append((b"CLIENT", b"SETNAME", self.name))
        commands += [(b"CLIENT", b"SETINFO", key, value) for key, value in self.library.items()]
        return commands

    def _auth(self, user: bytes | None) -> Command:
        """AUTH as the client sent it, or with a user for HELLO, which needs one."""
        if self.login is None:
            return ()
        user = self.login.user or user
        return (b"AUTH", self.login.password) if user is None else (b"AUTH", user, self.login.password)

    def note_sent(self, words: Words) -> None:
        """Update when a native command is sent on the client's own connection."""
        name = words[0].upper()
        about = words[1].upper() if name == b"CLIENT" and len(words) > 1 else b""
        if about in _KEEPS or name in _STATES:
            self.kept = True
        if about == b"TRACKING":
            self.tracks = True

    def note_reply(self, words: Words, reply: bytes) -> None:
        """Update after the engine answered a command that changes the connection's state."""
        name = words[0].upper()
        if reply.startswith(b"-"):
            return
        if name == b"AUTH":
            self.login = Login(words[1], words[2]) if len(words) == 3 else Login(None, words[1])
        elif name == b"SELECT":
            self.db = int(words[1])
        elif name == b"HELLO":
            self._hello(words)
        elif name == b"RESET":
            self.reset()
        elif name == b"CLIENT" and len(words) > 2 and words[1].upper() == b"SETNAME":
            self.name = words[2]
        elif name == b"CLIENT" and len(words) > 3 and words[1].upper() == b"SETINFO":
            self.library[words[2].upper()] = words[3]

    def _hello(self, words: Words) -> None:
        if len(words) > 1:
            self.resp = int(words[1])
        at = 2
        while at < len(words):
            if words[at].upper() == b"AUTH":
                self.login = Login(words[at + 1], words[at + 2])
                at += 3
            else:
                self.name = words[at + 1]
                at += 2

    def reset(self) -> None:
        """RESET: the state of a new connection."""
        fresh = Session(home=self.home, db=self.home)
        for each in self.__slots__:
            setattr(self, each, getattr(fresh, each))
