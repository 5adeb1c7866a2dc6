"""The words of a command line: parsed in the engine's order, refused in the engine's words."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from braidstream.errors import RefusedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id

Argv = list[bytes]

# Lua cannot pass more than about 8,000 arguments on to a command.
FUNCTION_ARGUMENTS: Final = 7_000

SYNTAX: Final = "ERR syntax error"
NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
_NUMBER_OF_IDS: Final = "ERR Number of IDs must be a positive integer"
INVALID_ID: Final = "ERR Invalid stream ID specified as stream command argument"
REF_POLICIES: Final = (b"KEEPREF", b"DELREF", b"ACKED")

# As many digits as can fit; Python itself refuses to read thousands of them.
_INTEGER = re.compile(rb"(?:0|-?[1-9][0-9]{0,18})\Z")
_INT64 = 2**63


def option(word: bytes) -> bytes:
    """A word as the engine compares it: to its first NUL, in any case."""
    return word.split(b"\0", 1)[0].upper()


def is_storage(name: bytes) -> bool:
    """Whether a name is a key of our own, which a user's command would damage."""
    return name.startswith(keys.PREFIX) and keys.is_ours(name)


def storage_error(command: bytes, name: bytes) -> RefusedError:
    why = f"{shown(name)} is a key of braidstream's own storage"
    return RefusedError(command.decode("ascii", "replace").upper(), why, "Use another name")


def refuse_long_name(command: bytes, name: bytes) -> None:
    """RefusedError for the name of a new stream that daemons would not replicate."""
    if len(name) > keys.NAME_BYTES:
        why = f"the name has {len(name):,} bytes, and that of a stream at most {keys.NAME_BYTES:,}"
        raise RefusedError(command.decode("ascii", "replace").upper(), why, "Use a shorter name")


def shown(word: bytes) -> str:
    """A user's word in an error line: cut as the engine cuts it, and never a line break."""
    return word.split(b"\0", 1)[0][:128].replace(b"\r", b" ").replace(b"\n", b" ").decode("utf-8", "replace")


def fail(text: str) -> NoReturn:
    raise ReplyError(text)


def wrong_arity(command: str) -> ReplyError:
    return ReplyError(f"ERR wrong number of arguments for '{command.lower()}' command")


def options(
    argv: Argv, at: int, known: Mapping[bytes, int], unknown: str = SYNTAX
) -> Iterator[tuple[bytes, bytes]]:
    """The options from `at` on, each with its value. known: how many words follow each, none or one.

    unknown: the error for another word, which it may show ({}).
    """
    while at < len(argv):
        word = option(argv[at])
        if at + known.get(word, len(argv)) >= len(argv):
            fail(unknown.format(shown(argv[at])))
        yield word, argv[at + 1] if known[word] else b""
        at += 1 + known[word]


def integer(word: bytes, otherwise: str = NOT_AN_INTEGER) -> int:
    if not _INTEGER.match(word) or not -_INT64 <= int(word) < _INT64:
        fail(otherwise)
    return int(word)


def strict_id(word: bytes, missing_seq: int = 0) -> Id:
    """A full or partial ID; `-` and `+` are none."""
    found = ids.parse(word, missing_seq)
    return fail(INVALID_ID) if found is None else found


def strict_ids(words: Argv) -> list[Id]:
    return ids.parse_plain(words) or [strict_id(word) for word in words]


@dataclass(frozen=True, slots=True)
class Trim:
    """How a stream is capped: MAXLEN or MINID."""

    maxlen: int | None = None
    minid: Id | None = None
    approx: bool = False
    limit: int | None = None
    policy: bytes = b"KEEPREF"
    left_out: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """Producer and ID of a message. The ID is None if it follows from the content (IDMPAUTO)."""

    producer: bytes
    iid: bytes | None


@dataclass(frozen=True, slots=True)
class Add:
    """XADD, parsed. `id` is None for `*`; `seq` is False where the sequence was left out (`ms`)."""

    id: Id | None
    seq: bool
    auto_seq: bool
    nomkstream: bool
    trim: Trim | None
    fields: list[bytes]
    message: Message | None = None


class _Options:
    """Options of XADD and XTRIM, as far as they are parsed."""

    def __init__(self) -> None:
        self.strategy: bytes | None = None
        self.maxlen: int | None = None
        self.minid: Id | None = None
        self.approx = self.has_limit = self.nomkstream = False
        self.limit = 0
        self.policy: bytes | None = None
        self.left_out = tuple[bytes, ...]()

    def take(self, argv: Argv, at: int) -> int | None:
        """Parse the option at `at`. Returns the index of its last word, or None if it is not an option."""
        word, more = option(argv[at]), len(argv) - 1 - at
        if word in (b"MAXLEN", b"MINID") and more:
            return self._threshold(argv, at, word)
        if word == b"LIMIT" and more:
            self.limit, self.has_limit = integer(argv[at + 1]), True
            if self.limit < 0:
                fail("ERR The LIMIT argument must be >= 0.")
            return at + 1
        if word not in REF_POLICIES or self.policy is not None:
            return None
        self.policy = word
        return self._left_out(argv, at) if word == b"ACKED" else at

    def _left_out(self, argv: Argv, at: int) -> int:
        """ACKED EXCEPT numgroups group ...: groups to ignore. An extension of braidstream."""
        if at + 2 >= len(argv) or option(argv[at + 1]) != b"EXCEPT":
            return at
        number = integer(argv[at + 2])
        self.left_out = tuple(argv[at + 3 : at + 3 + number])
        if number < 1 or len(self.left_out) != number:
            fail("ERR syntax error, EXCEPT needs the number of groups and their names")
        return at + 2 + number

    def _threshold(self, argv: Argv, at: int, strategy: bytes) -> int:
        if self.strategy is not None:
            fail("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
        self.approx = False
        if len(argv) - 1 - at >= 2 and argv[at + 1] in (b"~", b"="):
            self.approx = argv[at + 1] == b"~"
            at += 1
        if strategy == b"MAXLEN":
            self.maxlen = integer(argv[at + 1])
            if self.maxlen < 0:
                fail("ERR The MAXLEN argument must be >= 0.")
        else:
            self.minid = strict_id(argv[at + 1])
        self.strategy = strategy
        return at + 1

    def done(self, *, required: bool) -> Trim | None:
        if self.limit and self.strategy is None:
            fail("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
        if required and self.strategy is None:
            fail("ERR syntax error, XTRIM must be called with a trimming strategy")
        if self.has_limit and not self.approx:
            fail("ERR syntax error, LIMIT cannot be used without the special ~ option")
        if self.strategy is None:
            return None
        limit = self.limit if self.has_limit else None
        policy = self.policy or b"KEEPREF"
        return Trim(self.maxlen, self.minid, self.approx, limit, policy, self.left_out)


def parse_add(argv: Argv) -> Add:
    """XADD key [NOMKSTREAM] [KEEPREF|DELREF|ACKED] [IDMPAUTO pid|IDMP pid iid]
    [MAXLEN|MINID [=|~] t [LIMIT n]] <*|id> field value ...
    """
    options, at, entry, message = _Options(), 2, None, None
    seq, auto_seq = True, False
    while at < len(argv) and (word := option(argv[at])) != b"*":
        if word == b"NOMKSTREAM":
            options.nomkstream = True
        elif word in (b"IDMP", b"IDMPAUTO") and len(argv) - 1 - at >= len(_MESSAGE[word]):
            if message is not None:
                fail("ERR syntax error, IDMP/IDMPAUTO specified multiple times")
            message = parse_message(argv, at, word)
            at += len(_MESSAGE[word])
        elif (taken := options.take(argv, at)) is not None:
            at = taken
        else:
            entry, seq, auto_seq = _entry_id(argv[at])
            if message is not None:
                fail("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
            break
        at += 1
    trim = options.done(required=False)
    fields = argv[at + 1 :]
    if len(fields) < 2 or len(fields) % 2:
        raise wrong_arity("xadd")
    if entry == ids.ZERO and not auto_seq:
        fail("ERR The ID specified in XADD must be greater than 0-0")
    return Add(entry, seq, auto_seq, options.nomkstream, trim, fields, message)


_MESSAGE: Final = {b"IDMP": ("producer ID", "idempotent ID"), b"IDMPAUTO": ("producer ID",)}


def parse_message(argv: Argv, at: int, word: bytes) -> Message:
    """The words after IDMP or IDMPAUTO."""
    for value, what in zip(argv[at + 1 :], _MESSAGE[word], strict=False):
        if not value:
            fail(f"ERR syntax error, {word.decode()} requires a non-empty {what}")
    return Message(argv[at + 1], argv[at + 2] if word == b"IDMP" else None)


def _entry_id(word: bytes) -> tuple[Id, bool, bool]:
    ms_text, dash, seq_text = word.partition(b"-")
    if dash and seq_text == b"*":
        return strict_id(ms_text), False, True
    return strict_id(word), bool(dash), False


def parse_trim(argv: Argv) -> Trim:
    """XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT n] [KEEPREF|DELREF|ACKED]"""
    options, at = _Options(), 2
    while at < len(argv):
        taken = options.take(argv, at)
        at = fail(SYNTAX) if taken is None else taken + 1
    trim = options.done(required=True)
    assert trim is not None
    return trim


def parse_interval(argv: Argv, *, reverse: bool) -> tuple[Id, Id, int | None]:
    """XRANGE key start end [COUNT n], XREVRANGE key end start [COUNT n] -> (start, end, count)."""
    first, last = (argv[3], argv[2]) if reverse else (argv[2], argv[3])
    start, end = interval(first, last)
    count = None
    for _, value in options(argv, 4, {b"COUNT": 1}):
        count = max(integer(value), 0)
    return start, end, count


def interval(first: bytes, last: bytes) -> tuple[Id, Id]:
    """The ends of a range, both inclusive: `-`, `+`, `(id`, partial IDs."""
    start = _interval_end(first, 0)
    if first.startswith(b"(") and len(first) > 1:
        start = ids.after(start) or fail("ERR invalid start ID for the interval")
    end = _interval_end(last, ids.MAX)
    if last.startswith(b"(") and len(last) > 1:
        end = ids.before(end) or fail("ERR invalid end ID for the interval")
    return start, end


def _interval_end(word: bytes, missing_seq: int) -> Id:
    if word.startswith(b"(") and len(word) > 1:
        return strict_id(word[1:], missing_seq)
    special = word.split(b"\0", 1)[0] if len(word) <= 127 else b""
    if special == b"-":
        return ids.ZERO
    return ids.LAST if special == b"+" else strict_id(word, missing_seq)


@dataclass(frozen=True, slots=True)
class SetId:
    """XSETID, parsed."""

    id: Id
    entries_added: int | None
    max_deleted: Id | None


def parse_setid(argv: Argv) -> SetId:
    """XSETID key id [ENTRIESADDED n] [MAXDELETEDID id]"""
    last, added, deleted = strict_id(argv[2]), None, None
    for word, value in options(argv, 3, {b"ENTRIESADDED": 1, b"MAXDELETEDID": 1}):
        if word == b"ENTRIESADDED":
            added = integer(value)
            if added < 0:
                fail("ERR entries_added must be positive")
        else:
            deleted = strict_id(value)
            if last < deleted:
                fail("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
    return SetId(last, added, None if deleted == ids.ZERO else deleted)


@dataclass(frozen=True, slots=True)
class Read:
    """XREAD, parsed. Positions stay words: `$` and `+` depend on the stream."""

    names: list[bytes]
    positions: list[bytes]
    count: int | None
    block_ms: int | None
    max_count: int | None
    max_size: int | None


# Options of XREAD and XREADGROUP, and how many words follow each.
_READ_OPTIONS: Final = {
    **dict.fromkeys((b"COUNT", b"MAXCOUNT", b"MAXSIZE", b"BLOCK", b"CLAIM"), 1),
    b"GROUP": 2,
    b"NOACK": 0,
}


def read_names(argv: Argv) -> Argv:
    """The streams that XREAD or XREADGROUP names. A group may be called `streams`."""
    at = 1
    while at < len(argv):
        word = option(argv[at])
        if word == b"STREAMS":
            return argv[at + 1 : at + 1 + (len(argv) - at - 1) // 2]
        if word not in _READ_OPTIONS:
            break
        at += 1 + _READ_OPTIONS[word]
    return []


class UnbalancedError(Exception):
    """Streams and IDs differ in number. Engines word this error differently, so the engine answers."""


def parse_read(argv: Argv) -> Read:
    """XREAD [COUNT n] [MAXCOUNT n] [MAXSIZE bytes] [BLOCK ms] STREAMS key ... id ..."""
    count = block_ms = max_count = max_size = None
    at = 1
    while at < len(argv):
        word, more = option(argv[at]), len(argv) - 1 - at
        if word == b"BLOCK" and more:
            block_ms = integer(argv[at + 1], "ERR timeout is not an integer or out of range")
            if block_ms < 0:
                fail("ERR timeout is negative")
        elif word == b"COUNT" and more:
            count = max(integer(argv[at + 1]), 0) or None
        elif word == b"MAXCOUNT" and more:
            max_count = positive(argv[at + 1], "MAXCOUNT")
        elif word == b"MAXSIZE" and more:
            max_size = positive(argv[at + 1], "MAXSIZE")
        elif word == b"STREAMS" and more:
            rest = argv[at + 1 :]
            if len(rest) % 2:
                raise UnbalancedError
            if max_count is not None and count is not None and max_count < count:
                fail("ERR MAXCOUNT must be greater than or equal to COUNT")
            half = len(rest) // 2
            return Read(rest[:half], rest[half:], count, block_ms, max_count, max_size)
        elif (word == b"GROUP" and more >= 2) or (word == b"CLAIM" and more) or word == b"NOACK":
            fail(f"ERR The {word.decode()} option is only supported by XREADGROUP. You called XREAD instead.")
        else:
            fail(SYNTAX)
        at += 2
    return fail(SYNTAX)


def positive(word: bytes, name: str) -> int:
    """The value of an option that must be one or more."""
    value = integer(word)
    return value if value > 0 else fail(f"ERR {name} must be a positive integer")


def parse_ids(argv: Argv, at: int) -> tuple[bytes, list[bytes]]:
    """... [KEEPREF|DELREF|ACKED] IDS numids id ... -> the policy, and the IDs unparsed. In any order."""
    policy, words = None, None
    while at < len(argv):
        word = option(argv[at])
        if word in REF_POLICIES and policy is None:
            policy, at = word, at + 1
        elif word == b"IDS" and at + 1 < len(argv):
            number = integer(argv[at + 1], _NUMBER_OF_IDS)
            if number < 1:
                fail(_NUMBER_OF_IDS)
            words = argv[at + 2 : at + 2 + number]
            if len(words) != number:
                fail("ERR The `numids` parameter must match the number of arguments")
            at += 2 + number
        else:
            fail(SYNTAX)
    if words is None:
        fail("ERR IDS option is required")
    return policy or b"KEEPREF", words
