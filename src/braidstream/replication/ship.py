"""Entries on their way: pages as large as is good, batches that the engine function takes in one call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from braidstream import ids
from braidstream.errors import ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.replication.state import read_state
from braidstream.strand import Strand

Page = list[tuple[bytes, list[bytes]]]

BATCH_ENTRIES: Final = 500
BATCH_BYTES: Final = 256 * 1024
PAGE_BYTES: Final = 1024 * 1024
MOST: Final = 2_000
FEW: Final = 16
# The function unpacks an entry's words onto Lua's stack; wider entries are appended natively.
WIDEST: Final = 7_800


def page_command(strand: Strand, after: Id, count: int) -> Command:
    return ("XRANGE", strand.key, b"(" + ids.text(after), b"+", "COUNT", count)


def size_of(fields: Sequence[bytes]) -> int:
    return sum(map(len, fields)) + 16 * len(fields)


@dataclass(slots=True)
class Appetite:
    """How many entries to ask for, so that a page has about PAGE_BYTES whatever their size."""

    count: int = FEW

    def had(self, page: Page) -> None:
        if page:
            size = sum(size_of(fields) for _, fields in page)
            self.count = max(1, min(MOST, self.count * 8, PAGE_BYTES * len(page) // size))


def batches(page: Page) -> Iterator[tuple[Page, int]]:
    """A page in parts for one call each, with their sizes. An entry that is too wide stands alone."""
    part, size = list[tuple[bytes, list[bytes]]](), 0
    for entry in page:
        bytes_ = size_of(entry[1])
        wide = len(entry[1]) > WIDEST
        if part and (wide or size + bytes_ > BATCH_BYTES or len(part) == BATCH_ENTRIES):
            yield part, size
            part, size = [], 0
        part.append(entry)
        size += bytes_
        if wide:
            yield part, size
            part, size = [], 0
    if part:
        yield part, size


def is_wide(part: Page) -> bool:
    return len(part) == 1 and len(part[0][1]) > WIDEST


def append(strand: Strand, after: Id, part: Page, upto: Id) -> Plan[int]:
    """Append a batch to the copy of a strand, one round trip."""
    [applied] = yield Batch([strand.apply(after, part, upto)])
    return int(applied)


def append_wide(strand: Strand, after: Id, part: Page) -> Plan[int]:
    """One entry that Lua cannot take. Nothing else of the strand is on its way meanwhile.

    It is native, so the guard against a gap comes first: the copy must stand where the entry follows.
    """
    [(native, fields)] = part
    yield Batch([strand.apply(after, [], ids.ZERO)])
    [exists] = yield Batch([("EXISTS", strand.key)])
    if not exists:  # its first entry: make the copy with the last ID just before it
        before = ids.before(ids.native(native))
        assert before is not None
        yield Batch([strand.apply(after, [], before)])
    [reply] = yield Batch([("XADD", strand.key, "NOMKSTREAM", native, *fields)], attempt=True)
    if isinstance(reply, ReplyError):
        state = yield from read_state(strand.name, [strand], [])
        if (state.end(strand) or ids.ZERO) < ids.native(native):
            raise reply
        return 0  # another link was faster
    return int(reply is not None)
