"""Scripts: commands as data, and what follows from a command's words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

MAX: Final = 2**64 - 1
LAST_ID: Final = b"18446744073709551615-18446744073709551615"

EXPIRES: Final = (b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT")
GROUPS: Final = (
    *(b"XGROUP", b"XREADGROUP", b"XACK", b"XPENDING", b"XCLAIM", b"XAUTOCLAIM"),
    *(b"XACKDEL", b"XDELEX", b"XNACK"),
)
MOVES: Final = (b"RENAME", b"RENAMENX", b"COPY")
FLUSHES: Final = (b"FLUSHDB", b"FLUSHALL")
NOT_IN_MULTI: Final = (
    *(*MOVES, *FLUSHES, b"DUMP", b"SCAN", b"KEYS", b"XSETID", b"XGROUP", b"XAUTOCLAIM"),
    *(b"XDELEX", b"XACKDEL", b"XNACK"),
)
LIMITS: Final = {b"COUNT", b"MAXCOUNT", b"MAXSIZE", b"CLAIM"}
PLAIN_WRITES: Final = (b"SET", b"HSET", b"RPUSH")
CAPS: Final = (b"MAXLEN", b"MINID")
POLICIES: Final = (b"KEEPREF", b"DELREF", b"ACKED")
MESSAGES: Final = {b"IDMP": 2, b"IDMPAUTO": 1}  # and how many words follow


@dataclass(frozen=True, slots=True)
class Ref:
    """An ID that each side spells its own way: `at` counts back from the newest of the stream.

    exact   the ID itself
    ms      its milliseconds, then `tail` (the ID itself where another one has the same milliseconds)
    next    an ID above all of the stream: counted on from equal IDs, or far beyond generated ones
    """

    name: bytes
    kind: Literal["exact", "ms", "next"] = "exact"
    at: int = 0
    head: bytes = b""
    tail: bytes = b""
    more: int = 0


Word = bytes | Ref
Call = tuple[Word, ...]
Argv = list[bytes]
Mode = Literal["single", "pipeline", "multi"]
IdMode = Literal["liberal", "strict"]
W = TypeVar("W", bound=Word)


@dataclass(frozen=True, slots=True)
class Step:
    """One command, or several in a pipeline. `who`: which of our two clients, each with its own memory."""

    calls: tuple[Call, ...]
    mode: Mode = "single"
    who: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Script:
    """A whole run, from empty servers."""

    protocol: int
    node_entries: int
    steps: tuple[Step, ...]
    id_mode: IdMode = "liberal"

    def __repr__(self) -> str:
        return f"Script({len(self.steps)} steps)"  # a failure lists them, shrunk


def command_of(call: Sequence[Word]) -> bytes:
    return upper(call[0])


def upper(word: Word) -> bytes:
    return word.upper() if isinstance(word, bytes) else b""


def has_cap(call: Sequence[Word]) -> bool:
    """Whether an XADD trims."""
    return any(upper(word) in CAPS for word in call[2 : id_word_at(call)])


def generates(call: Call) -> bool:
    """Whether it may add an entry under a generated ID."""
    return command_of(call) == b"XADD" and b"*" in call


def reads_twice(call: Sequence[Word]) -> bool:
    """Whether it is an XREAD or XREADGROUP that names a stream more than once."""
    names = names_read(call)
    return len(set(names)) < len(names)


def names_read(call: Sequence[W]) -> Sequence[W]:
    """The streams of an XREAD or XREADGROUP."""
    words = list(map(upper, call))
    if words[0] not in (b"XREAD", b"XREADGROUP") or b"STREAMS" not in words:
        return ()
    rest = call[words.index(b"STREAMS") + 1 :]
    return rest[: len(rest) // 2]


def sees_groups(call: Sequence[Word]) -> bool:
    """Whether its reply may depend on groups."""
    return command_of(call) in (*GROUPS, b"XINFO", b"DUMP")


def unfit_for_multi(call: Call) -> bool:
    """Whether we may refuse it inside MULTI."""
    command = command_of(call)
    if command in (b"XADD", b"XTRIM") and any(upper(word) in POLICIES for word in call):
        return True
    if command == b"XADD":
        return any((word if isinstance(word, bytes) else word.tail).endswith(b"-*") for word in call)
    if command == b"XTRIM":
        return any(upper(word) == b"MAXLEN" for word in call)
    if command == b"XINFO":
        return len(call) > 3 or any(upper(word) in (b"GROUPS", b"CONSUMERS") for word in call)
    if command == b"XREADGROUP" and (len(names_read(call)) > 1 or LIMITS & set(map(upper, call))):
        return True
    return command in NOT_IN_MULTI or reads_twice(call)


def unmakes(call: Call) -> bool:
    """Whether IDs known before it may mean other entries after it."""
    return command_of(call) in (b"DEL", b"UNLINK", *FLUSHES, *MOVES, *EXPIRES)


def forget(call: Call) -> Call:
    """The same without references."""
    return tuple(word if isinstance(word, bytes) else word.head + b"3-1" for word in call)


def with_exact_cap(call: Call) -> Call:
    """The same with `=` for `~`."""
    if command_of(call) not in (b"XADD", b"XTRIM") or b"~" not in call:
        return call
    words = list(call)
    at = words.index(b"~")
    words[at] = b"="
    if at + 3 < len(words) and words[at + 2] == b"LIMIT":
        del words[at + 2 : at + 4]
    return tuple(words)


def id_word_at(call: Sequence[Word]) -> int:
    """Where the ID of a valid XADD stands."""
    at = 2
    while at < len(call):
        option = upper(call[at])
        if option == b"NOMKSTREAM" or option in POLICIES:
            at += 1
        elif option == b"EXCEPT" and upper(call[at - 1]) == b"ACKED":
            at += 2 + _number(call, at + 1)
        elif option in MESSAGES:
            at += 1 + MESSAGES[option]
        elif option in CAPS:
            at += 3 if call[at + 1 : at + 2] in ([b"="], [b"~"], (b"=",), (b"~",)) else 2
        elif option == b"LIMIT":
            at += 2
        else:
            return at
    return at


def _number(call: Sequence[Word], at: int) -> int:
    word = b"".join(each for each in call[at : at + 1] if isinstance(each, bytes))
    return int(word) if word.isdigit() else 0
