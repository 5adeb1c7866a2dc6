"""Which keys a command has, and their slots: where a cluster client sends it. No I/O.

Plans use few commands, so a table is enough for theirs. Other commands come from users, in pipelines;
redis-py knows their keys from the engine's table (`native_keys`).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from redis.crc import key_slot

from braidstream.engine.resp import Words
from braidstream.errors import ReplyError
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Replies

# ----------------------------------------------------------------------------------------------------
#
# The keys of any command, by the engine's own table: COMMAND. For commands that no plan sends.
#
# GET key             first 1, last 1, step 1
# MSET k v k v        first 1, last -1, step 2
# EVAL script 1 key   movable: the number of keys is in the command
# SORT key STORE to   movable in another way: the engine says which (COMMAND GETKEYS)

# Where the number of keys is. The keys follow.
_NUMBER_AT: Final = dict.fromkeys(
    (b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO", b"FCALL", b"FCALL_RO", b"BLMPOP", b"BZMPOP"), 2
) | dict.fromkeys((b"LMPOP", b"ZMPOP", b"SINTERCARD", b"ZINTERCARD", b"ZINTER", b"ZUNION", b"ZDIFF"), 1)

Send = Callable[[Batch], Awaitable[Replies]]


@dataclass(frozen=True, slots=True)
class Row:
    """One command of the table. movable: the positions do not say all its keys."""

    first: int
    last: int
    step: int
    movable: bool
    reads: bool


class CommandKeys:
    """The table of one engine."""

    def __init__(self, reply: Sequence[Any]) -> None:
        self._rows = dict[bytes, Row]()
        for row in reply:
            self._add(row)

    def _add(self, row: Any) -> None:
        name, flags = bytes(row[0]).upper(), {bytes(flag) for flag in row[2]}
        found = Row(int(row[3]), int(row[4]), int(row[5]), b"movablekeys" in flags, b"readonly" in flags)
        self._rows[name] = found
        for each in row[9] if len(row) > 9 else ():
            self._add(each)

    def row_of(self, words: Words) -> Row | None:
        """The row of a command, or of its subcommand. None if the engine does not know it."""
        name = words[0].upper()
        sub = self._rows.get(name + b"|" + words[1].upper()) if len(words) > 1 else None
        return sub or self._rows.get(name)

    def only_reads(self, words: Words) -> bool:
        row = self.row_of(words)
        return row is not None and row.reads

    async def keys_of(self, words: Words, send: Send) -> Sequence[bytes]:
        """The keys of a command; none if it may go to any node. A malformed one has none: the engine that
        gets it answers with its error."""
        row = self.row_of(words)
        if row is None:
            return ()
        if (at := _NUMBER_AT.get(words[0].upper())) is not None:
            return numbered(words, at)
        if row.movable:
            command: Command = ("COMMAND", "GETKEYS", *words)
            [reply] = await send(Batch([command], resend=True, attempt=True))
            return () if isinstance(reply, ReplyError) else reply
        if not row.first:
            return ()
        end = row.last if row.last >= 0 else len(words) + row.last
        return words[row.first : end + 1 : row.step]


def numbered(words: Sequence[bytes], at: int) -> Sequence[bytes]:
    """Keys after their number; none if that is not a number or is too large."""
    try:
        count = int(words[at])
    except (IndexError, ValueError):
        return ()
    return words[at + 1 : at + 1 + count] if 0 < count < len(words) - at else ()


# ----------------------------------------------------------------------------------------------------
# Route

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
