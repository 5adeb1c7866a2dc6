"""Makes the bytes of a page (XRANGE) the bytes of calls that append its entries, without parsing them.

    read   *512  *2 $15 1794702853882-4 *4 $5 order $1 7 $7 payload $3 abc  *2 $15 ...
    sent         .. $15 1794702853882-4 .. $5 order $1 7 $7 payload $3 abc  .. $15 ...

Both are the same bulk strings, if all entries have the same number of fields: only the lines `*2` and `*4`
are left out. First the structure is proved (engine/reply_lines.py). A page that cannot be proved (line breaks
in values, different numbers of fields) is parsed, as is one that is too small or has large entries: there
this would cost more.
"""

import re
from functools import partial
from typing import Any, Final

import numpy as np

from braidstream.engine.collisions import collide
from braidstream.engine.reply_lines import Lines
from braidstream.model import ids
from braidstream.replication.link import batches

LEAST_ENTRIES: Final = 32
MOST_BYTES: Final = 4096  # of an entry, on average
_HEAD: Final = re.compile(rb"\*([1-9][0-9]{0,8})\r\n")
_ID: Final = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}\Z")
_ENTRY: Final = b"*2\r\n"


def splice(reply: bytearray) -> list[batches.Part] | None:
    """The entries of a page, in batches; None if it must be parsed."""
    head = _HEAD.match(reply)
    if head is None:
        return None
    count, begin = int(head[1]), head.end()
    if count < LEAST_ENTRIES or len(reply) > MOST_BYTES * count:
        return None
    lines = Lines.split(reply, count)
    if lines is None or lines.width > 4 + 2 * batches.WIDEST:
        return None
    width = (lines.width - 4) // 2
    fields = b"*%d\r\n" % width
    words = np.array([2, *range(5, lines.width, 2)])
    starts, stops = lines.after[:, words] + 1, lines.ends[:, words] - 1
    is_framed = lines.is_at(_ENTRY, 0) and lines.is_at(fields, 3)
    if not is_framed or not lines.are_measured(words, starts, stops):
        return None
    body = _without(lines, begin, {0: _ENTRY, 3: fields})
    ends = lines.ends[:, -1] + 1 - begin - np.arange(1, count + 1) * len(_ENTRY + fields)
    found = list[batches.Part]()
    most = max(1, min(batches.BATCH_ENTRIES, batches.BATCH_WORDS // width))
    for first, last in _batches(ends, most):
        native = bytes(reply[starts[last, 0] : stops[last, 0]])
        if not _ID.match(native):
            return None
        if collide((last + 1 - first) * width, partial(_word, reply, starts[first:, 1:], stops[first:, 1:])):
            return None
        part = body[ends[first - 1] if first else 0 : ends[last]]
        found.append(batches.Spliced(last + 1 - first, width, part, ids.native(native)))
    return found


def _word(reply: bytearray, starts: Any, stops: Any, at: int) -> bytes:
    """The field or value that is number `at` of these entries."""
    entry, word = divmod(at, starts.shape[1])
    return bytes(reply[starts[entry, word] : stops[entry, word]])


def _without(lines: Lines, begin: int, cut: dict[int, bytes]) -> bytes:
    """The reply from `begin` on, without these lines of every entry."""
    kept = np.ones(len(lines.reply), bool)
    kept[:begin] = False
    for place, line in cut.items():
        starts = lines.after[:, place] + 1
        for offset in range(len(line)):
            kept[starts + offset] = False
    return bytes(lines.data[kept])


def _batches(ends: Any, most: int) -> list[tuple[int, int]]:
    """The first and last entry of each batch of at most `most`. ends: of the entries, in bytes."""
    found, first, begin = list[tuple[int, int]](), 0, 0
    while first < len(ends):
        fit = int(np.searchsorted(ends, begin + batches.BATCH_BYTES, "right"))
        last = max(first, min(fit, first + most) - 1)
        found.append((first, last))
        first, begin = last + 1, int(ends[last])
    return found
