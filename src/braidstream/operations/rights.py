"""The rights of ACL users: those of daemons, which `braid doctor` checks, and those of programs.

    ACL DRYRUN link XADD bs:1:s:{doctor} * f v   -->   OK, or why not   -->   ACL SETUSER link +xadd

Tests compare these lists with the guides, and with what daemons and clients really send.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan


def _words(text: str) -> list[str]:
    return text.split()


# ----------------------------------------------------------------------------------------------------
# Programs

READER: Final = _words("exec exists hgetall multi type xinfo|stream xlen xrange xread xrevrange")
WRITER: Final = _words(
    "del exec exists fcall hdel hget hgetall hset hsetnx multi time type unlink unwatch watch xadd xdel "
    "xgroup|create xgroup|destroy xinfo|stream xlen xrange xsetid xtrim"
)
# What a writer of idempotent messages needs besides.
IDEMPOTENT: Final = _words("hincrby hmget hrandfield lindex llen lpop lrange lrem pexpireat rpush")
CONSUMER: Final = _words(
    "exec exists fcall hdel hexists hget hgetall hset multi time unlink xack xadd xautoclaim xclaim "
    "xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy xgroup|setid xinfo|consumers "
    "xinfo|groups xinfo|stream xpending xrange xread xreadgroup"
)
# What a worker (braidstream.Consumer) needs besides: it creates streams, and writes dead letters.
WORKER: Final = _words("hsetnx type watch xlen xsetid")
FACTS: Final = "%R~bs:config"


def program_rights(kind: str, streams: Sequence[str], *, idempotent: bool = False) -> list[str]:
    """Of a reader, writer, consumer or worker of streams, each a name or a prefix like `orders*`."""
    commands = {
        "reader": READER,
        "writer": [*WRITER, *(IDEMPOTENT if idempotent else ())],
        "consumer": CONSUMER,
        "worker": [*CONSUMER, *WORKER],
    }[kind]
    dead = [f"{name}.dead" for name in streams if kind == "worker" and not name.endswith("*")]
    access = "%R" if kind == "reader" else ""
    patterns = [access + pattern for name in (*streams, *dead) for pattern in _patterns(name)]
    return [*patterns, FACTS, *(f"+{each}" for each in commands)]


def _patterns(name: str) -> tuple[str, str]:
    """The keys of a stream, or of all streams with a prefix."""
    prefix = name.removesuffix("*")
    if not prefix or "*" in prefix or any(char in "{} " or not char.isprintable() for char in prefix):
        raise BraidError(
            f"{name!r}: give names, or prefixes that end in a star, without spaces and braces. For others "
            "write the patterns by hand: docs/guides/servers.md"
        )
    prefix = re.sub(r"([?\[\\])", r"\\\1", prefix)
    if name.endswith("*"):
        return f"~{prefix}*", f"~bs:*:{{{prefix}*"
    return f"~{prefix}", f"~bs:*:{{{prefix}}}*"


# ----------------------------------------------------------------------------------------------------
# Daemons

KEYS: Final = "~bs:*"
# The length of any key, for `braid_stray_entries`: strays have plain names.
COUNT_STRAYS: Final = "(%R~* +xlen)"
# What a daemon needs on its own server, and on the server of a peer.
OWN: Final = _words(
    "client|tracking exec exists expire fcall fcall_ro function|list hdel hexists hget hgetall hincrby "
    "hset info multi ping scan time unwatch watch xadd xinfo|consumers xinfo|groups xinfo|stream "
    "xpending xrange xrevrange xsetid xtrim"
)
PEER: Final = _words(
    "exists expire fcall fcall_ro get hdel hget hgetall hincrby hset hsetnx info set time unlink xack "
    "xadd xdel xgroup|create xgroup|destroy xgroup|setid xinfo|groups xinfo|stream xpending xrange "
    "xrevrange xsetid xtrim"
)

_KEY: Final = keys.strand(b"doctor", keys.GENERATED, 1)
# Words that make each command complete: ACL DRYRUN refuses one with too few.
_WORDS: Final[dict[str, tuple[str | bytes, ...]]] = {
    "client|tracking": ("ON",),
    "exec": (),
    "expire": (_KEY, "1"),
    "fcall": ("f", "1", _KEY),
    "fcall_ro": ("f", "1", _KEY),
    "function|list": (),
    "hdel": (_KEY, "f"),
    "hexists": (_KEY, "f"),
    "hget": (_KEY, "f"),
    "hincrby": (_KEY, "f", "1"),
    "hset": (_KEY, "f", "v"),
    "hsetnx": (_KEY, "f", "v"),
    "info": (),
    "multi": (),
    "ping": (),
    "scan": ("0",),
    "set": (_KEY, "v"),
    "time": (),
    "unwatch": (),
    "xack": (_KEY, "g", "1-1"),
    "xadd": (_KEY, "*", "f", "v"),
    "xdel": (_KEY, "1-1"),
    "xgroup|create": (_KEY, "g", "0"),
    "xgroup|destroy": (_KEY, "g"),
    "xgroup|setid": (_KEY, "g", "0"),
    "xinfo|consumers": (_KEY, "g"),
    "xpending": (_KEY, "g"),
    "xrange": (_KEY, "-", "+"),
    "xrevrange": (_KEY, "+", "-"),
    "xsetid": (_KEY, "1-1"),
    "xtrim": (_KEY, "MAXLEN", "0"),
}
_DENIED: Final = re.compile(r"run the '([a-z_|]+)' command")


def missing_right(text: str) -> str:
    """The right that the text of an error NOPERM names, as ACL SETUSER takes it; empty if it names none."""
    found = _DENIED.search(text)
    return f"+{found[1]}" if found else ""


def with_right(text: str) -> str:
    """The text of an error; if it names a missing right, with the command that grants it."""
    right = missing_right(text)
    return (
        f"{text.rstrip('.')}. Grant it, with the name of this URL's user: ACL SETUSER USER {right}"
        if right
        else text
    )


def daemon_rights(*, own: bool, peer: bool) -> list[str]:
    """own, peer: a user with which a daemon logs in to its own server, to that of a peer, or to both."""
    rights = sorted({*(OWN if own else ()), *(PEER if peer else ())})
    return [KEYS, *([COUNT_STRAYS] if own else ()), *(f"+{right}" for right in rights)]


def lacking(user: str, rights: Iterable[str]) -> Plan[list[str] | None]:
    """Which of the rights a user lacks. None if there is no such user. One round trip.

    ReplyError if we may not ask: that needs +acl.
    """
    wanted = [*rights]
    asked: list[Command] = [("ACL", "DRYRUN", user, *_command(right)) for right in wanted]
    replies = yield Batch(asked, resend=True, attempt=True)
    texts = dict[str, str]()
    for right, reply in zip(wanted, replies, strict=True):
        if isinstance(reply, ReplyError):
            if "not found" in reply.text:
                return None
            raise reply
        texts[right] = bytes(reply).decode("utf-8", "replace")
    return [right for right, text in texts.items() if text != "OK" and _is_because_of(right, text)]


def _is_because_of(right: str, text: str) -> bool:
    """Whether a command was refused for lack of this right: of the command itself, or of its key."""
    is_command = bool(missing_right(text))
    return right == COUNT_STRAYS or is_command == (right != KEYS)


def _command(right: str) -> Command:
    if right == KEYS:
        return ("FCALL", "f", "1", _KEY)
    if right == COUNT_STRAYS:
        return ("XLEN", "doctor")
    name = right.removeprefix("+")
    return (*name.split("|"), *_WORDS.get(name, (_KEY,)))
