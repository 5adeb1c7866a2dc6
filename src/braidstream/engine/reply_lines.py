"""The lines of a page of entries, found and checked with numpy, without a parser.

A page is the reply to XRANGE: an array of [id, [field, value, ...]]. If all its entries have the same number
of fields and no word contains a line break, every line has a fixed place:

    *2  $15  1794702853882-4  *4  $5  order  $1  7  $7  payload  $3  abc      4 + 4n lines an entry

A word is *measured* if the line before it is `$<its length>`. If the frame (`*2`, `*4`) is as it must be and
every word is measured, then any RESP parser reads the page in this way.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

_SHORT = 10_000  # lengths whose header has at most 8 bytes


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a reply but its first, a row for each entry.

    Line i is from after[:, i] + 1 to ends[:, i] - 1, and CRLF should follow.
    """

    reply: bytearray
    data: Any
    after: Any
    ends: Any

    @staticmethod
    def split(reply: bytearray, count: int) -> "Lines | None":
        """None if this is not a page of `count` entries with equally many fields. More is not checked."""
        data = np.frombuffer(reply, np.uint8)
        ends = np.flatnonzero(data == 10)
        width, rest = divmod(len(ends) - 1, count)
        if rest or width < 8 or width % 4 or int(ends[-1]) != len(reply) - 1:
            return None
        return Lines(reply, data, ends[:-1].reshape(count, width), ends[1:].reshape(count, width))

    @property
    def width(self) -> int:
        """The lines of an entry."""
        return int(self.ends.shape[1])

    def is_at(self, wanted: bytes, place: int) -> bool:
        """Whether these bytes begin at that line of every entry."""
        starts, size = self.after[:, place] + 1, len(wanted)
        if int(starts[-1]) + size > len(self.reply):
            return False
        windows = np.ndarray(len(self.reply) - size + 1, f"V{size}", self.reply, strides=(1,))
        found = windows[starts].view(np.uint8).reshape(-1, size)
        return bool((found == np.frombuffer(wanted, np.uint8)).all())

    def are_measured(self, places: Ints, starts: Ints, stops: Ints) -> bool:
        """Whether the words at these lines are measured and end with CRLF. starts, stops: of the words."""
        lengths = stops - starts
        if int(lengths.min()) < 0 or not (self.data[stops] == 13).all():
            return False
        headers = self.after[:, places - 1] + 1
        if int(lengths.max()) < _SHORT:
            texts, masks = _headers()
            # A header of 8 bytes may reach beyond the end, if the last word is empty.
            windows = np.ndarray(len(self.reply), np.uint64, bytes(self.reply) + bytes(7), strides=(1,))
            return bool(((windows[headers] & masks[lengths]) == texts[lengths]).all())
        return self._are_long(headers.ravel(), (starts - 2).ravel(), lengths.ravel())

    def _are_long(self, headers: Ints, stops: Ints, lengths: Ints) -> bool:
        if not ((self.data[headers] == 36).all() and (self.data[stops] == 13).all()):
            return False
        is_usual = (self.data[headers + 1] != 48) | (stops == headers + 2)  # no leading zeros
        return bool((is_usual & (numbers(self.data, headers + 1, stops) == lengths)).all())


@cache
def _headers() -> tuple[Any, Any]:
    """For each length its header `$<length>` CRLF as 8 bytes, and which of them count."""
    texts = [b"$%d\r\n" % length for length in range(_SHORT)]
    masks = [b"\xff" * len(text) for text in texts]
    text_bytes, mask_bytes = (b"".join(each.ljust(8, b"\0") for each in part) for part in (texts, masks))
    return np.frombuffer(text_bytes, np.uint64), np.frombuffer(mask_bytes, np.uint64)


def numbers(data: Any, starts: Any, stops: Any) -> Ints:
    """The decimal numbers at these places; -1 if there is none."""
    widths = stops - starts
    widest, narrowest = int(widths.max()), int(widths.min())
    if narrowest < 1 or widest > 19:
        return np.full(len(starts), -1, np.int64)
    total = np.zeros(len(starts), np.int64)
    bad = np.zeros(len(starts), bool)
    for at in range(narrowest):
        digit = data[starts + at] - 48  # unsigned: what is below "0" wraps around
        bad |= digit > 9
        total *= 10
        total += digit
    for at in range(narrowest, widest):
        inside = at < widths
        digit = data[np.minimum(starts + at, len(data) - 1)] - 48
        bad |= (digit > 9) & inside
        total = np.where(inside, total * 10 + digit, total)
    total[bad] = -1
    return total
