"""Entries in transit: pages of a good size, and batches for one call of the engine function."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from braidstream.engine.collisions import collide
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Command, CopyTarget, Strand, pack_one
from braidstream.plan.append import native_command
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.link.stream_state import read_state

Page = list[tuple[bytes, list[bytes]]]

BATCH_ENTRIES: Final = 512
BATCH_BYTES: Final = 256 * 1024
# A peer's Lua takes longer for more of them, and no other client gets an answer meanwhile.
BATCH_WORDS: Final = 2_048
PAGE_BYTES: Final = 1024 * 1024
MOST: Final = 2_000
FEW: Final = 16
MANY: Final = 64
# A bundle (link.py) has entries of up to about this size.
SMALL: Final = 4 * 1024
# How many entries one XRANGE returns: those after a thousand small ones may be large. A peer's reply has a
# limit (endpoint.py).
UNMEASURED: Final = 128
UNMEASURED_NEAR: Final = 512
# If the last entry of the strand is large, so may be those after the small ones that were read.
UNMEASURED_LARGE: Final = 32
LARGE: Final = 16 * 1024
# The function unpacks an entry's words onto Lua's stack; wider entries are appended natively.
WIDEST: Final = 7_800


def page_command(strand: Strand, after: Id, count: int) -> Command:
    return ("XRANGE", strand.key, b"(" + ids.text(after), b"+", "COUNT", count)


def page_of_bytes(strand: Strand, after: Id, count: int) -> Command:
    """The same, but no more than PAGE_BYTES: [whether more follow, entries]. Slower for the engine than a few
    XRANGEs, and one round trip."""
    return ("FCALL_RO", "bs_entry_page", 1, strand.key, ids.text(after), count, PAGE_BYTES)


def sizes_of(page: Page) -> list[int]:
    """About how many bytes each entry takes on the wire."""
    return [sum(map(len, fields)) + 8 * len(fields) + 32 for _, fields in page]


@dataclass(slots=True)
class Appetite:
    """How many entries to read, so that a page has about PAGE_BYTES.

    expected: how many there will be, judged by the last page.
    """

    count: int = FEW
    expected: int = 0
    may_be_large: bool = False  # the entries, whatever their size was so far

    @property
    def many(self) -> bool:
        """Enough entries are expected to make splicing the page worthwhile."""
        return self.expected >= MANY

    @property
    def is_modest(self) -> bool:
        """Few small entries are expected, so the stream may be in a bundle. `count` tells their size."""
        return self.expected < FEW and self.count * SMALL >= PAGE_BYTES and not self.may_be_large

    @staticmethod
    def guess(width: int, behind: int = 0) -> "Appetite":
        """From the size of the last entry (the others may be larger) and how many are to be read."""
        count = max(1, min(MOST, PAGE_BYTES // (2 * width + 100)))
        return Appetite(count, behind, may_be_large=width > LARGE)

    def had(self, entries: int, size: int) -> None:
        """Note how many entries and bytes the last page had."""
        self.expected = entries
        if entries:
            self.count = max(1, min(MOST, self.count * 8, PAGE_BYTES * entries // size))


def batches(page: Page, sizes: list[int]) -> Iterator[tuple[Page, int]]:
    """A page in parts for one call each, with their sizes. A wide entry is a part of its own."""
    start = total = words = 0
    for at, size in enumerate(sizes):
        width = len(page[at][1])
        is_full = total + size > BATCH_BYTES or words + width > BATCH_WORDS or at - start == BATCH_ENTRIES
        if at > start and is_full:
            yield page[start:at], total
            start, total, words = at, 0, 0
        total, words = total + size, words + width
        if width > BATCH_WORDS:
            yield page[at : at + 1], total
            start, total, words = at + 1, 0, 0
    if start < len(page):
        yield page[start:], total


@dataclass(frozen=True, slots=True)
class Parsed:
    """Entries for one call. size: about their bytes on the wire."""

    page: Page
    size: int

    def __len__(self) -> int:
        return len(self.page)

    @property
    def last(self) -> Id:
        return ids.native(self.page[-1][0])

    @property
    def is_wide(self) -> bool:
        return len(self.page) == 1 and len(self.page[0][1]) > WIDEST

    @property
    def is_hostile(self) -> bool:
        """Whether its words would keep the target's Lua busy."""
        words = [word for _, fields in self.page for word in fields]
        return collide(len(words), words.__getitem__)

    def command(self, strand: Strand, after: Id, there: CopyTarget) -> Command:
        return strand.apply(after, self.page, ids.ZERO, there)

    def append(self, strand: Strand, after: Id, there: CopyTarget) -> Batch:
        return Batch([self.command(strand, after, there)])


@dataclass(frozen=True, slots=True)
class Spliced:
    """The same as bytes: (id, field, value, ...) of each entry, bulk strings as the engine sent them.

    width: the fields and values of an entry, the same for all. See splice.py.
    """

    count: int
    width: int
    body: bytes
    last: Id

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        return len(self.body)

    def append(self, strand: Strand, after: Id, there: CopyTarget) -> Batch:
        head = strand.apply_even(after, (self.count, self.width), there)
        words = pack_one(head).partition(b"\r\n")[2]
        count = len(head) + self.count * (self.width + 1)
        return Batch([head], packed=b"*%d\r\n%b%b" % (count, words, self.body))


Part = Parsed | Spliced


def parse_array(reply: bytes | bytearray) -> list[Any]:
    """Parse a reply that was taken unparsed."""
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    found = reader.gets()
    if not isinstance(found, list) or reader.has_data():
        raise ReplyError("ERR the reply is not one array")
    return found


def parts_of(page: Page) -> list[Part]:
    return [Parsed(*part) for part in batches(page, sizes_of(page))]


def append(strand: Strand, after: Id, part: Part, there: CopyTarget) -> Plan[int]:
    """Append a batch to the copy of a strand, one round trip."""
    refuse_hostile(strand, part)
    [applied] = yield part.append(strand, after, there)
    return int(applied)


def refuse_hostile(strand: Strand, part: Part) -> None:
    """Raises ReplyError. Spliced parts are checked by splice.py."""
    if isinstance(part, Parsed) and part.is_hostile:
        name = strand.name.decode("utf-8", "backslashreplace")[:100]
        first, last = part.page[0][0].decode(), ids.text(part.last).decode()
        raise ReplyError(
            f"HOSTILE entries {first} to {last} of stream '{name}' have hundreds of words with the same hash "
            "in Lua, which would keep the peer's server busy. The stream is not sent. Delete these entries"
        )


def raise_last(strand: Strand, after: Id, upto: Id, there: CopyTarget) -> Plan[int]:
    """Raise the last ID of the copy: what was up to there is deleted."""
    [applied] = yield Batch([strand.apply(after, [], upto, there)])
    return int(applied)


def append_wide(strand: Strand, after: Id, part: Parsed, there: CopyTarget) -> Plan[int]:
    """Append one entry that is too wide for Lua. No other entry of the strand may be in flight.

    A native XADD has no guard against gaps, so the guard comes first: the copy must end where the entry
    follows.
    """
    refuse_hostile(strand, part)
    [(native, fields)] = part.page
    yield Batch([strand.apply(after, [], ids.ZERO, there)])
    [exists] = yield Batch([("EXISTS", strand.key)])
    if not exists:  # its first entry: create the copy with the last ID just before it
        before = ids.before(ids.native(native))
        assert before is not None
        yield Batch([strand.apply(after, [], before, there)])
    [reply] = yield Batch([native_command(strand.key, (native, *fields))], attempt=True)
    if isinstance(reply, ReplyError):
        state = yield from read_state(strand.name, [strand], [])
        if (state.end(strand) or ids.ZERO) < ids.native(native):
            raise reply
        return 0  # another link was faster
    yield Batch([strand.apply(ids.native(native), [], ids.ZERO, there)])  # raises the home strand
    return int(reply is not None)
