"""The rights of ACL users: those of daemons, which `braid doctor` checks, and those of programs.

    ACL DRYRUN link XADD bs:1:s:{doctor} * f v   -->   OK, or why not   -->   ACL SETUSER link +xadd

Tests compare these lists with the guides, and with what daemons and clients really send.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model.strand import Command
from braidstream.model.topic import STREAM as TOPICS
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
# What a worker of a topic needs besides, to share its partitions with others.
TEAM: Final = _words("hmget pexpire zadd zcard zrange zrem zscore")
FACTS: Final = "%R~bs:config"
# With it a client of several regions (MultiRegion) sees when it may go back.
STATUS: Final = "%R~bs:status"
# Who looks at a region with `braid` or the console, and changes groups, dead letters, retention and ID mode.
OPERATOR: Final = _words(
    "exec exists fcall fcall_ro hexists hget hgetall hincrby hset hsetnx info memory|usage multi scan time "
    "type unlink watch xadd xdel xgroup|create xgroup|destroy xinfo|consumers xinfo|groups xinfo|stream xlen "
    "xpending xrange xread xrevrange xtrim zrange"
)


def operator_rights() -> list[str]:
    """They are for all keys, also those of native streams."""
    return ["~*", *(f"+{each}" for each in OPERATOR)]


def program_rights(
    kind: str,
    streams: Sequence[str],
    *,
    topics: Sequence[str] = (),
    idempotent: bool = False,
    later: bool = False,
) -> list[str]:
    """Of a reader, writer, consumer or worker of streams, each a name or a prefix like `orders*`.

    topics: also of these topics (model/topic.py).
    later: also of the entries that wait for the streams (model/later.py).
    """
    commands = {
        "reader": READER,
        "writer": [*WRITER, *(IDEMPOTENT if idempotent else ())],
        "consumer": CONSUMER,
        "worker": [*CONSUMER, *WORKER, *(("xdel",) if later else ())],
    }[kind]
    dead = [f"{name}.dead" for name in (*streams, *topics) if kind == "worker" and not name.endswith("*")]
    access = "%R" if kind == "reader" else ""
    patterns = [access + pattern for name in (*streams, *dead) for pattern in _patterns(name)]
    patterns += [access + pattern for name in streams if later for pattern in _companions(name)]
    patterns += [access + pattern for name in topics for pattern in _partitions(name)]
    patterns += [f"%R{pattern}" for pattern in _patterns(TOPICS.decode()) if topics]
    if kind == "worker" and topics:
        patterns += [_patterns(name)[1] for name in topics]
        commands = [*commands, *TEAM]
    more = [STATUS] if idempotent else []
    return [*patterns, FACTS, *more, *(f"+{each}" for each in commands)]


def _patterns(name: str) -> tuple[str, str]:
    """The keys of a stream, or of all streams with a prefix."""
    prefix, star = _prefix(name)
    if star:
        return f"~{prefix}*", f"~bs:*:{{{prefix}*"
    return f"~{prefix}", f"~bs:*:{{{prefix}}}*"


def _companions(name: str) -> tuple[str, str]:
    """The keys of the streams in which their entries wait."""
    prefix, star = _prefix(name)
    companion = f"{{{prefix}*" if star else f"{{{prefix}}}.*"
    return f"~{companion}", f"~bs:*:+{companion}"


def _partitions(name: str) -> tuple[str, str]:
    """The keys of the partitions of a topic, or of all topics with a prefix."""
    prefix, star = _prefix(name)
    pattern = f"{prefix}{'*' if star else ''}/*"
    return f"~{pattern}", f"~bs:*:+{pattern}"


def _prefix(name: str) -> tuple[str, bool]:
    """A name without its star, for a pattern; and whether it has one."""
    prefix = name.removesuffix("*")
    if not prefix or "*" in prefix or any(char in "{} " or not char.isprintable() for char in prefix):
        raise BraidError(
            f"{name!r}: give names, or prefixes that end in a star, without spaces and braces. For others "
            "write the patterns by hand: docs/rights.md"
        )
    return re.sub(r"([?\[\\])", r"\\\1", prefix), name.endswith("*")


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

# Words after the key that make each command complete: ACL DRYRUN refuses one with too few. None: no key.
_WORDS: Final[dict[str, tuple[str, ...] | None]] = {
    "exec": None,
    "expire": ("1",),
    "function|list": None,
    "hdel": ("f",),
    "hexists": ("f",),
    "hget": ("f",),
    "hincrby": ("f", "1"),
    "hmget": ("f",),
    "hset": ("f", "v"),
    "hsetnx": ("f", "v"),
    "info": None,
    "lindex": ("0",),
    "lrange": ("0", "1"),
    "lrem": ("0", "v"),
    "multi": None,
    "pexpireat": ("1",),
    "ping": None,
    "rpush": ("v",),
    "set": ("v",),
    "time": None,
    "unwatch": None,
    "xack": ("g", "1-1"),
    "xadd": ("*", "f", "v"),
    "xautoclaim": ("g", "c", "0", "0"),
    "xclaim": ("g", "c", "0", "1-1"),
    "xdel": ("1-1",),
    "xgroup|create": ("g", "0"),
    "xgroup|createconsumer": ("g", "c"),
    "xgroup|delconsumer": ("g", "c"),
    "xgroup|destroy": ("g",),
    "xgroup|setid": ("g", "0"),
    "xinfo|consumers": ("g",),
    "xpending": ("g",),
    "xrange": ("-", "+"),
    "xrevrange": ("+", "-"),
    "xsetid": ("1-1",),
    "xtrim": ("MAXLEN", "0"),
    "zrange": ("0", "1"),
}
# Those with another form.
_WHOLE: Final[dict[str, Command]] = {
    "+client|tracking": ("CLIENT", "TRACKING", "ON"),
    "+scan": ("SCAN", "0"),
    COUNT_STRAYS: ("XLEN", "doctor"),
}
# Any of them shows that a user may write, or read, a key.
_WRITE: Final = ("hset", "xadd", "xack")
_READ: Final = ("hgetall", "exists", "xlen", "xrange")
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
    key = next((_key(each) for each in wanted if "~bs:" in each and each not in (FACTS, STATUS)), "doctor")
    tried = [(right, words) for right in wanted for words in _commands(right, key)]
    asked: list[Command] = [("ACL", "DRYRUN", user, *words) for _, words in tried]
    replies = yield Batch(asked, resend=True, attempt=True)
    held = set[str]()
    for (right, _), reply in zip(tried, replies, strict=True):
        if isinstance(reply, ReplyError):
            if "not found" in reply.text:
                return None
            raise reply
        text = bytes(reply).decode("utf-8", "replace")
        # A command that is refused because of its key is allowed on others.
        if text == "OK" or (right.startswith("+") and not missing_right(text)):
            held.add(right)
    return [right for right in wanted if right not in held]


def _key(pattern: str) -> str:
    """A key that a pattern matches."""
    return re.sub(r"\\(.)", r"\1", pattern.partition("~")[2].replace("*", "1"))


def _commands(right: str, key: str) -> list[Command]:
    """Commands, each of which shows that a user has the right."""
    if right in _WHOLE:
        return [_WHOLE[right]]
    if right.startswith("+"):
        return [_command(right[1:], key)]
    return [_command(name, _key(right)) for name in (_READ if right.startswith("%R") else _WRITE)]


def _command(name: str, key: str) -> Command:
    words = _WORDS.get(name, ())
    if name in ("xread", "xreadgroup"):
        group, end = (("GROUP", "g", "c"), ">") if name == "xreadgroup" else ((), "0")
        return (name, *group, "STREAMS", key, end)
    if name.startswith("fcall"):
        return (name, "f", "1", key)
    return (*name.split("|"), *(() if words is None else (key, *words)))
