"""The words of the log commands, parsed. Options are case-blind, in any order after the positional words."""

from dataclasses import dataclass
from typing import Final

from braidstream.commands.arguments import (
    SYNTAX,
    Argv,
    Message,
    fail,
    integer,
    option,
    parse_message,
    shown,
    wrong_arity,
)
from braidstream.model.offset_log import LAST_OFFSET, MOST_PENDING

# How many entries one TWRITE takes.
MOST_ENTRIES: Final = 10_000
_LONG_FORM: Final = (b"ENTRIES", b"BACKLOG", b"MAXAGE", b"IDMP")


def _number(word: bytes, what: str, least: int = 0, most: int = LAST_OFFSET) -> int:
    refusal = f"ERR {what} is not an integer or out of range"
    value = integer(word, refusal)
    return value if least <= value <= most else fail(refusal)


@dataclass(frozen=True, slots=True)
class Write:
    """TWRITE. backlog: how many entries stay at least; None: as the log is set.

    max_age_ms: older entries are evicted; None: as the log is set.
    many: the long form, which answers a list of offsets.
    message: written once, however often it is sent.
    """

    entries: list[tuple[bytes, bytes]]
    backlog: int | None = None
    max_age_ms: int | None = None
    many: bool = False
    message: Message | None = None


def parse_write(argv: Argv) -> Write:
    """TWRITE key [IDMP producer iid] tag entry
    TWRITE key [IDMP producer iid] [BACKLOG count] [MAXAGE ms] ENTRIES tag entry [tag entry ...]

    Four words, or seven with IDMP, are the short form, even if the tag is `ENTRIES`.
    """
    at, limits, message = 2, dict[bytes, int](), None
    if len(argv) == 4:
        return Write([(argv[2], argv[3])])
    if option(argv[2]) not in _LONG_FORM:
        raise wrong_arity("twrite")
    if len(argv) == 7 and option(argv[2]) == b"IDMP":
        return Write([(argv[5], argv[6])], message=parse_message(argv, 2, b"IDMP"))
    while at < len(argv) and (word := option(argv[at])) != b"ENTRIES":
        if word == b"IDMP" and at + 2 < len(argv):
            if message is not None:
                fail("ERR syntax error, IDMP specified multiple times")
            message, at = parse_message(argv, at, word), at + 3
            continue
        if word not in (b"BACKLOG", b"MAXAGE") or at + 1 == len(argv):
            fail(SYNTAX)
        limits[word], at = _number(argv[at + 1], word.decode().lower()), at + 2
    words = argv[at + 1 :]
    if not words or len(words) % 2:
        raise wrong_arity("twrite")
    if len(words) > 2 * MOST_ENTRIES:
        fail(f"ERR too many entries (at most {MOST_ENTRIES})")
    entries = list(zip(words[::2], words[1::2], strict=True))
    return Write(entries, limits.get(b"BACKLOG"), limits.get(b"MAXAGE"), many=True, message=message)


@dataclass(frozen=True, slots=True)
class Read:
    """TREAD. skip: leave out missing entries and go on to the next ones.

    group: read what the group has not delivered yet; from_last: a new group starts after the last entry.
    retry_ms, expire_ms: entries must be acknowledged; 0 without RETRY.
    """

    offset: int
    count: int
    block_ms: int | None = None
    with_info: bool = False
    skip: bool = False
    group: bytes | None = None
    from_last: bool = False
    retry_ms: int = 0
    expire_ms: int = 0

    @property
    def policy(self) -> bytes:
        """The name of the native consumer."""
        return b"%d:%d" % (self.retry_ms, self.expire_ms)


def parse_read(argv: Argv) -> Read:
    """TREAD key offset count
    [BLOCK ms] [GROUP name [FIRST|LAST]] [RETRY retry-ms expire-ms] [WITHINFO] [SKIP]
    """
    offset, count = max(_number(argv[2], "offset"), 1), _number(argv[3], "count")
    block_ms, flags, at = None, set[bytes](), 4
    group, from_last, times = None, False, (0, 0)
    while at < len(argv):
        word = option(argv[at])
        if word == b"BLOCK" and at + 1 < len(argv):
            block_ms = integer(argv[at + 1], "ERR timeout is not an integer or out of range")
            if block_ms < 0:
                fail("ERR timeout is negative")
            at += 1
        elif word == b"GROUP" and at + 1 < len(argv):
            group, at = argv[at + 1], at + 1
            if at + 1 < len(argv) and option(argv[at + 1]) in (b"FIRST", b"LAST"):
                from_last, at = option(argv[at + 1]) == b"LAST", at + 1
        elif word == b"RETRY" and at + 2 < len(argv):
            times, at = (_time(argv[at + 1]), _time(argv[at + 2])), at + 2
        elif word in (b"WITHINFO", b"SKIP"):
            flags.add(word)
        else:
            fail(SYNTAX)
        at += 1
    if times != (0, 0) and group is None:
        fail("ERR RETRY needs GROUP")
    return Read(
        offset, count, block_ms, b"WITHINFO" in flags, b"SKIP" in flags, group, from_last, times[0], times[1]
    )


def _time(word: bytes) -> int:
    refusal = "ERR retry-ms and expire-ms must be positive"
    value = integer(word, refusal)
    return value if 0 < value <= LAST_OFFSET else fail(refusal)


def parse_ack(argv: Argv) -> tuple[list[int], list[tuple[int, int]]]:
    """TACK key group offset|from-to [...]: the offsets, and the ranges."""
    offsets, ranges = list[int](), list[tuple[int, int]]()
    for word in argv[3:]:
        first, dash, last = word.partition(b"-")
        if not dash:
            offsets.append(_number(word, "offset"))
            continue
        low, high = _number(first, "offset"), _number(last, "offset")
        if low > high:
            fail(f"ERR invalid range '{shown(word)}'")
        ranges.append((low, high))
    return offsets, ranges


@dataclass(frozen=True, slots=True)
class Evict:
    """TEVICT: everything up to an offset, or all but the last entries, or what is so old."""

    upto: int | None = None
    keep: int | None = None
    older_ms: int | None = None


def parse_evict(argv: Argv) -> Evict:
    """TEVICT key offset | -count | OLDER ms"""
    if len(argv) == 4:
        if option(argv[2]) != b"OLDER":
            fail(SYNTAX)
        return Evict(older_ms=_number(argv[3], "age"))
    if option(argv[2]) == b"OLDER":
        fail(SYNTAX)
    if argv[2].startswith(b"-"):
        return Evict(keep=_number(argv[2][1:], "count"))
    return Evict(upto=_number(argv[2], "offset"))


@dataclass(frozen=True, slots=True)
class Configure:
    """TCFGSET. None: as it is."""

    pending: int | None = None
    backlog: int | None = None
    max_age_ms: int | None = None


def parse_configure(argv: Argv) -> Configure:
    """TCFGSET key [PENDING count] [BACKLOG count] [MAXAGE ms]"""
    pending = backlog = max_age_ms = None
    if len(argv) % 2:
        raise wrong_arity("tcfgset")
    for word, value in zip(argv[2::2], argv[3::2], strict=True):
        if option(word) == b"PENDING":
            pending = _number(value, "pending", 1, MOST_PENDING)
        elif option(word) == b"BACKLOG":
            backlog = _number(value, "backlog")
        elif option(word) == b"MAXAGE":
            max_age_ms = _number(value, "maxage")
        else:
            fail(SYNTAX)
    return Configure(pending, backlog, max_age_ms)
