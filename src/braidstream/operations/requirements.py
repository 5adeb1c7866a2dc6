"""What a server must be set up for: faults of engine versions, and the rights of a daemon's user.

    ACL DRYRUN link XADD bs:1:s:{doctor} * f v   -->   OK, or why not   -->   ACL SETUSER link +xadd

A test compares these lists with the guide, and with what a daemon really sends.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import Command, facts
from braidstream.plan.lookup import info_facts
from braidstream.plan.plan import Batch, Plan

# ----------------------------------------------------------------------------------------------------
#
# Faults of servers that lose a region's data: which versions have them, and in which setup.
#
# A server runs what its append-only file says as the user `default`. Older versions check the rights of
# that user for each transaction, and drop it without a word if one is missing: redis/redis#14541, valkey-
# io/valkey#3983. What functions write is a transaction, so a region loses most of its entries.

# The first versions without the fault: of Redis, and of each line of Valkey.
_REDIS_FIXED: Final = (8, 6)
_VALKEY_FIXED: Final[dict[tuple[int, ...], int]] = {(8, 0): 11, (8, 1): 10, (9, 0): 6, (9, 1): 2}
CURE: Final = (
    "ACL SETUSER default on resetpass >LONG-PASSWORD ~* &* +@all, and ACL SAVE or the same line in the "
    "server's file, before the next restart. Or upgrade the server to Redis 8.6, Valkey 8.0.11, 8.1.10, "
    "9.0.6 or 9.1.2"
)


def engine_of(info: Mapping[bytes, bytes]) -> str:
    """The server and its version, like `redis 8.6.3`."""
    if b"valkey_version" in info:
        return f"valkey {info[b'valkey_version'].decode()}"
    return f"redis {info.get(b'redis_version', b'?').decode()}"


def read_default_user() -> Plan[bool | None]:
    """Whether the user `default` may run everything on all keys. None if that cannot be checked."""
    [reply] = yield Batch([("ACL", "GETUSER", "default")], resend=True, attempt=True)
    if reply is None or isinstance(reply, ReplyError):
        return None
    rules = facts(reply)
    return rules.get(b"commands") == b"+@all" and rules.get(b"keys") == b"~*"


def drops_transactions(info: Mapping[bytes, bytes], default_is_whole: bool | None) -> str:
    """Why the server loses transactions at its next restart; empty if it does not, or cannot be checked."""
    if default_is_whole is not False or info.get(b"aof_enabled") != b"1" or not _has_fault(engine_of(info)):
        return ""
    return (
        f"this server ({engine_of(info)}) loads its append-only file with the rights of the user default. "
        "That user may not do everything, so at the next restart the server loses what transactions and "
        "functions wrote."
    )


def refuse_dropped_transactions() -> Plan[None]:
    """Refuse a server that would lose most of a region at its next restart."""
    [info] = yield Batch([("INFO",)], resend=True)
    if why := drops_transactions(info_facts(info), (yield from read_default_user())):
        raise BraidError(f"{why} Nothing was changed. Type first: {CURE}.")


def _has_fault(engine: str) -> bool:
    name, _, text = engine.partition(" ")
    numbers = tuple(int(part) for part in text.split(".") if part.isdigit())
    if name == "redis":
        return numbers < _REDIS_FIXED
    return numbers[:2] < min(_VALKEY_FIXED) or numbers[2:] < (_VALKEY_FIXED.get(numbers[:2], 0),)


# ----------------------------------------------------------------------------------------------------
# Setup

KEYS: Final = "~bs:*"
# The length of any key, for `braid_stray_entries`: strays have plain names.
COUNT_STRAYS: Final = "(%R~* +xlen)"
# What a daemon needs on its own server, and on the server of a peer.
OWN: Final = (
    *(
        "client|tracking",
        "exec",
        "exists",
        "expire",
        "fcall",
        "fcall_ro",
        "hdel",
        "hexists",
        "hget",
        "hgetall",
    ),
    *(
        "function|list",
        "hincrby",
        "hset",
        "info",
        "multi",
        "ping",
        "scan",
        "time",
        "unwatch",
        "watch",
        "xinfo|consumers",
    ),
    *("xinfo|groups", "xinfo|stream", "xpending", "xrange", "xrevrange", "xsetid", "xtrim"),
)
PEER: Final = (
    *("exists", "expire", "fcall", "fcall_ro", "get", "hdel", "hget", "hgetall", "hincrby", "hset", "hsetnx"),
    *("info", "set", "time", "unlink", "xack", "xadd", "xdel", "xgroup|create", "xgroup|destroy"),
    *("xgroup|setid", "xinfo|groups", "xinfo|stream", "xpending", "xrange", "xrevrange", "xsetid", "xtrim"),
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
