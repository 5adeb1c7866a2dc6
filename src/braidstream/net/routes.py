"""Which keys a command has: where a cluster client sends it. No I/O.

Plans use few commands, so a table is enough for theirs. Other commands come from users, in pipelines;
redis-py knows their keys from the engine's table (`native_keys`).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from redis.crc import key_slot

from braidstream.model.command import Command

# How the keys of a command are found: at one position, or by a rule of its own.
_AT_SECOND: Final = frozenset(("XINFO", "XGROUP", "OBJECT", "MEMORY"))
_ALL: Final = frozenset(("DEL", "UNLINK", "EXISTS", "TOUCH", "WATCH"))
_PAIR: Final = frozenset(("RENAME", "RENAMENX", "COPY"))
_NONE: Final = frozenset(
    word
    for line in (
        "ASKING CLIENT CLUSTER COMMAND DBSIZE EXEC FLUSHALL FLUSHDB FUNCTION INFO KEYS MULTI PING RANDOMKEY",
        "SCAN TIME UNWATCH",
    )
    for word in line.split()
)
# One key, after the command.
ONE_KEY: Final = frozenset(
    word
    for line in (
        "DUMP EXPIRE EXPIREAT EXPIRETIME GET HDEL HEXISTS HGET HGETALL HINCRBY HLEN HSET HSETNX INCR PERSIST",
        "PEXPIRE PEXPIREAT PEXPIRETIME PSETEX PTTL RESTORE SET SETEX TTL TYPE XACK XACKDEL XADD XAUTOCLAIM",
        "XCFGSET XCLAIM XDEL XDELEX XLEN XNACK XPENDING XRANGE XREVRANGE XSETID XTRIM",
    )
    for word in line.split()
)
FUNCTIONS: Final = frozenset(("FCALL", "FCALL_RO"))
READS: Final = frozenset(("XREAD", "XREADGROUP"))
# Functions that may run late: they create what is missing, and change nothing else.
_ENSURES: Final = ("bs_strand_ensure", "bs_log_ensure")

_ROUTED: Final = ONE_KEY | FUNCTIONS | READS | _AT_SECOND | _ALL | _PAIR | _NONE

NativeKeys = Callable[[Command], Sequence[Any] | None]


@lru_cache(maxsize=1024)
def word_of(word: Any) -> str:
    """The first word of a command, as the table has it."""
    return (word.decode("ascii", "replace") if isinstance(word, bytes) else str(word)).upper()


def is_routed(command: Command) -> bool:
    """Whether the table knows the keys of a command."""
    return command[0] in _ROUTED or word_of(command[0]) in _ROUTED


def keys_of(command: Command, native_keys: NativeKeys) -> Sequence[Any]:
    """The keys of a command; none if it may go to any node."""
    word = word_of(command[0])
    if word in ONE_KEY:
        return command[1:2]
    if word in FUNCTIONS:
        return _numbered(command)
    if word in READS:
        places = command[streams_at(command) :]
        return () if len(places) % 2 else places[: len(places) // 2]  # the engine refuses unbalanced ones
    if word in _AT_SECOND:
        return command[2:3]
    if word in _ALL:
        return command[1:]
    if word in _PAIR:
        return command[1:3]
    return () if word in _NONE else native_keys(command) or ()


def _numbered(command: Command) -> Sequence[Any]:
    """The keys of a call; none if their number cannot be read, which the engine refuses."""
    try:
        return command[3 : 3 + int(command[2])]
    except (IndexError, ValueError):
        return ()


def streams_at(command: Command) -> int:
    """Where the streams of a native XREAD or XREADGROUP begin. A group may be called `streams`."""
    first = 4 if word_of(command[0]) == "XREADGROUP" else 1
    for at in range(first, len(command)):
        if word_of(command[at]) == "STREAMS":
            return at + 1
    return len(command)


def slot_of(key: Any) -> int:
    """The slot of a key. Plans have bytes; a user's native command may have text or a number."""
    data = key if isinstance(key, bytes) else str(key).encode()
    return _slot(data) if len(data) <= _CACHED_BYTES else key_slot(data)


_slot = lru_cache(maxsize=10_000)(key_slot)
_CACHED_BYTES: Final = 1_000


def may_be_late(command: Command) -> bool:
    """Whether a command with several keys may run after those that follow it."""
    return word_of(command[0]) == "FCALL" and command[1] in _ENSURES


def split_read(command: Command) -> dict[int, Command]:
    """A native read over several slots, as one read for each slot."""
    at = streams_at(command)
    half = (len(command) - at) // 2
    places = dict[int, list[tuple[Any, Any]]]()
    for key, position in zip(command[at : at + half], command[at + half :], strict=True):
        places.setdefault(slot_of(key), []).append((key, position))
    return {
        slot: (*command[:at], *(key for key, _ in some), *(position for _, position in some))
        for slot, some in places.items()
    }
