"""One client's state, without I/O: who it is, what it has opened, what a new connection must be told.

What can be told in a few commands (`greeting`) can be told again, so the connection behind an idle client
may be closed. What cannot (a WATCH, a subscription, a client ID that was asked for) keeps it.
"""

from dataclasses import dataclass, field
from typing import Final

from braidstream.commands.table import TABLE, Spec
from braidstream.model.command import Command
from braidstream.net.resp import Words

SUBSCRIBES: Final = frozenset((b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"))
UNSUBSCRIBES: Final = frozenset((b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"))
PUBSUB: Final = SUBSCRIBES | UNSUBSCRIBES

# Commands that change what a connection is: read by the gateway, answered by the engine.
STATEFUL: Final = PUBSUB | {b"AUTH", b"HELLO", b"SELECT", b"RESET", b"MONITOR", b"SYNC", b"PSYNC"}
TRANSACTION: Final = frozenset((b"MULTI", b"EXEC", b"DISCARD", b"UNWATCH"))
# Answered, or seen to, by the gateway in other ways.
SPECIAL: Final = (
    STATEFUL
    | TRANSACTION
    | {b"CLIENT", b"QUIT", b"INFO", b"FUNCTION", b"WAIT", b"WAITAOF", b"REPLCONF", b"SWAPDB"}
)
# Plans that WATCH need a connection that nobody else talks on.
ALONE: Final = frozenset((b"RENAME", b"RENAMENX", b"COPY", b"WATCH", b"DUMP", b"RESTORE"))
# Native commands that may wait: pointless once the client is gone.
BLOCKING: Final = frozenset(
    (b"BLPOP", b"BRPOP", b"BLMOVE", b"BRPOPLPUSH", b"BZPOPMIN", b"BZPOPMAX", b"BLMPOP", b"BZMPOP", b"WAIT")
)
# CLIENT subcommands after which the connection itself matters.
_KEEPS: Final = frozenset((b"ID", b"INFO", b"TRACKING", b"CACHING", b"NO-EVICT", b"NO-TOUCH"))
_LOG_COMMANDS: Final = frozenset((b"TWRITE", b"TREAD", b"TEVICT", b"TACK", b"TCFGSET"))
_STATES: Final = frozenset((b"READONLY", b"READWRITE", b"ASKING"))


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client said it is. The user is None where it gave a password alone. The password is not shown."""

    user: bytes | None
    password: bytes = field(repr=False)


def spec_of(words: Words) -> Spec | None:
    return TABLE.get(words[0].upper())


def may_be_plain(words: Words) -> bool:
    """Whether a command of the table means the same on plain keys: not the stream and log commands."""
    return words[0][:1] not in (b"X", b"x") and words[0].upper() not in _LOG_COMMANDS


def blocks(words: Words) -> bool:
    """Whether a command may wait."""
    name = words[0].upper()
    if name in (b"XREAD", b"XREADGROUP", b"TREAD"):
        return any(word.upper() == b"BLOCK" for word in words)
    return name in BLOCKING


@dataclass(slots=True)
class Subscriptions:
    """What a client listens to, from the engine's confirmations."""

    names: dict[bytes, set[bytes]] = field(
        default_factory=lambda: {kind: set() for kind in (b"", b"P", b"S")}
    )

    def __bool__(self) -> bool:
        return any(self.names.values())

    def note(self, words: Words) -> None:
        """A command was confirmed."""
        name = words[0].upper()
        listens = self.names[_kind(name)]
        if name in SUBSCRIBES:
            listens.update(words[1:])
        elif len(words) > 1:
            listens.difference_update(words[1:])
        else:
            listens.clear()


def _kind(name: bytes) -> bytes:
    return name[:1] if name[:2] in (b"PS", b"PU", b"SS", b"SU") and name != b"SUBSCRIBE" else b""


@dataclass(slots=True)
class Session:
    """See the top of the file.

    home: the database a new client is before: the one that the gateway's URL names.
    kept: something about the connection itself is known to the client, so it may not be closed.
    tracks: the engine tells the client by RESP3 what it does there, so it must do all of it there.
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
        """Whether commands mean what they mean on any connection of the same user and database."""
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
        """RESP2 only: replies and messages share the line, and the engine refuses other commands itself."""
        return self.monitors or (self.resp == 2 and bool(self.subscriptions))

    @property
    def can_park(self) -> bool:
        """Whether the connection can be closed and made again without anybody noticing."""
        return not (self.in_multi or self.watching or self.kept or self.monitors or self.subscriptions)

    def greeting(self) -> list[Command]:
        """What a new connection for this client says first."""
        says = list[Command]()
        if self.resp == 3:
            says.append((b"HELLO", b"3", *self._auth(b"default")))
        elif self.login is not None:
            says.append(self._auth(self.login.user))
        if self.db:
            says.append((b"SELECT", b"%d" % self.db))
        if self.name:
            says.append((b"CLIENT", b"SETNAME", self.name))
        says += [(b"CLIENT", b"SETINFO", key, value) for key, value in self.library.items()]
        return says

    def _auth(self, user: bytes | None) -> Command:
        """AUTH in the words of the client, or for HELLO, which needs a user."""
        if self.login is None:
            return ()
        user = self.login.user or user
        return (b"AUTH", self.login.password) if user is None else (b"AUTH", user, self.login.password)

    def sees(self, words: Words) -> None:
        """A command of the engine's own goes to the client's connection."""
        name = words[0].upper()
        about = words[1].upper() if name == b"CLIENT" and len(words) > 1 else b""
        if about in _KEEPS or name in _STATES:
            self.kept = True
        if about == b"TRACKING":
            self.tracks = True

    def said(self, words: Words, reply: bytes) -> None:
        """The engine answered a command that changes what the connection is."""
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
        elif name == b"MONITOR":
            self.monitors = True
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
        """RESET: as a new connection."""
        fresh = Session(home=self.home, db=self.home)
        for each in self.__slots__:
            setattr(self, each, getattr(fresh, each))
