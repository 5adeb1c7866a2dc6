"""Entry IDs: their text, their order, and how a writer's number is carried in them.

A strand stores native IDs; the user sees IDs that no two writers can both mint:

    native  1589929244828-5             what the engine minted on the strand of writer 2
    user    1589929244828-5122          5 * 1024 + 2
                          `- sequence: n << 10 | writer

It is a bijection between the natives of one writer and the user IDs whose low ten bits are that
writer. IDs that users choose themselves stand in another strand, as they are.

Positions do not have to be entries: a range, a cursor or a cut may lie anywhere. So besides `mint`
there are `floor_of` and `ceil_of`: the last native at or before, the first native at or after, a user
ID. Native sequences of 2**54 or more have no image, so no strand gets near them: from 2**53 on a
millisecond counts as *full*, and the engine mints in the next one (see `rest_of`).

An ID is a plain tuple (ms, seq): it compares as the engine compares, and costs little.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

WRITER_BITS: Final = 10
WRITERS: Final = 1 << WRITER_BITS
LAST_WRITER: Final = WRITERS - 1
MAX: Final = 2**64 - 1
LIMIT: Final = 2**54
FULL: Final = 2**53

# An entry may be so far ahead of an engine's clock that the engine follows it (lua/clock.lua).
CLOCK_BOUND_MS: Final = 60_000

Id = tuple[int, int]

ZERO: Final[Id] = (0, 0)
LAST: Final[Id] = (MAX, MAX)

# The engine reads a number as C's strtoull does: blanks and a sign may lead, and a minus wraps around.
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)\Z")
_PLAIN = re.compile(rb"(?:0|[1-9][0-9]{0,18})\Z")


def _number(text: bytes) -> int | None:
    if _PLAIN.match(text):
        return int(text)
    if re.match(rb"-(?:[1-9][0-9]{0,18})\Z", text) and int(text) >= -(2**63):
        return None  # a well-formed negative number is refused before strtoull is asked
    found = _NUMBER.match(text)
    if found is None or int(found[2]) > MAX:
        return None
    return int(found[2]) if found[1] != b"-" else -int(found[2]) & MAX


def parse(text: bytes, missing_seq: int = 0) -> Id | None:
    """`ms-seq` or `ms` as the engine reads it; None if it is no ID."""
    if len(text) > 127:
        return None
    text = text.split(b"\0", 1)[0]
    ms_text, dash, seq_text = text.partition(b"-")
    ms = _number(ms_text)
    seq = _number(seq_text) if dash else missing_seq
    return None if ms is None or seq is None else (ms, seq)


def native(text: bytes) -> Id:
    """An ID as the engine writes it in replies."""
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


TEXT: Final = b"%d-%d"


def text(entry: Id) -> bytes:
    return TEXT % entry


def after(entry: Id) -> Id | None:
    """The next ID of all possible ones; None after the last."""
    ms, seq = entry
    if seq < MAX:
        return ms, seq + 1
    return (ms + 1, 0) if ms < MAX else None


def before(entry: Id) -> Id | None:
    """The previous ID of all possible ones; None before 0-0."""
    ms, seq = entry
    if seq > 0:
        return ms, seq - 1
    return (ms - 1, MAX) if ms > 0 else None


def user_seq(n: Any, writer: int) -> Any:
    """The sequence that users see instead of a native one; of a numpy column at once too."""
    return n << WRITER_BITS | writer


def native_of(entry: Id) -> Id:
    """The native ID of a minted one, whoever its writer is."""
    return entry[0], entry[1] >> WRITER_BITS


def generated_entries(reply: Iterable[Any], writer: int) -> list[tuple[int, int, int, list[bytes]]]:
    """Entries as the engine sends them, with the IDs that users see: (ms, seq, writer, fields)."""
    return [
        (int(ms), int(n) << WRITER_BITS | writer, writer, fields)
        for native, fields in reply
        for ms, _, n in (native.partition(b"-"),)
    ]


def chosen_entries(reply: Iterable[Any], writer: int) -> list[tuple[int, int, int, list[bytes]]]:
    """The same of IDs that users chose."""
    return [
        (int(ms), int(seq), writer, fields)
        for native, fields in reply
        for ms, _, seq in (native.partition(b"-"),)
    ]


def user_of(entry: Id, writer: int) -> Id:
    """The user ID of a native one. A full millisecond reads as the end of what fits into one."""
    ms, n = entry
    if n >= LIMIT:
        return ms, user_seq(FULL, writer)
    if entry == ZERO:
        return ZERO  # the last ID of a strand that never had an entry
    return ms, user_seq(n, writer)


def user_text(native_text: bytes, writer: int) -> bytes:
    """The user ID of a native one, text to text. On the path of every append."""
    dash = native_text.index(b"-") + 1
    n = int(native_text[dash:])
    if n >= LIMIT:
        return text(user_of(native(native_text), writer))
    return b"%b%d" % (native_text[:dash], user_seq(n, writer))


def writer_of(entry: Id) -> int:
    """Whose ID this is, if it was minted; 0 is nobody."""
    return entry[1] & LAST_WRITER


def floor_of(entry: Id, writer: int) -> Id:
    """The last native position whose image is at or before a user ID.

    Where the millisecond has none (its sequence is below the writer's number), the end of the one before.
    """
    ms, seq = entry
    if seq < writer:
        return (ms - 1, MAX) if ms > 0 else ZERO
    return ms, (seq - writer) >> WRITER_BITS


def rest_of(entry: Id, writer: int) -> Id:
    """The last ID to give a strand so that it mints after a user ID: the floor, or a full millisecond.

    A full one is `ms-(2**64-1)`: the engine mints in the next millisecond.
    """
    ms, n = floor_of(entry, writer)
    return (ms, n) if n < FULL else (ms, MAX)


def ceil_of(entry: Id, writer: int) -> Id:
    """The first native ID whose image is at or after a user ID."""
    ms, seq = entry
    if seq <= writer:
        return ms, 0
    return ms, (seq - writer + WRITERS - 1) >> WRITER_BITS
