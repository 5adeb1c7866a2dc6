"""Converts pages of entries, as the engine sent them, to columns without creating Python objects.

A page is the reply to XRANGE: an array of [id, [field, value, ...]]. If all entries have the same fields and
no line breaks, every line of the reply has a fixed place (engine/reply_lines.py):

    *2  $15  1794702853882-4  *4  $5  order  $1  7  $7  payload  $3  abc      4 + 4n lines an entry
    ====-    ---------------  =============  -   -  ==========  --   ---
    =  is the same in every entry: compared with what it must be
    -  is a length, checked against the line that follows it, or that line: an ID or a value

The check is complete: any RESP parser reads a page that passes it in the same way. hiredis parses a page that
fails it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import hiredis
import numpy as np
import pyarrow as pa

from braidstream.engine.reply_lines import Ints, Lines, numbers
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id

_MOST_SEQ = 2**53  # above, the user's sequence may not fit into 64 bits
_MOST_DIGITS = 15  # of milliseconds
_MOST_BYTES = 2**31 - 1  # the range of 32-bit offsets
_POWERS = 10.0 ** np.arange(_MOST_DIGITS - 1, -1, -1)
_MOST_FIELDS = 400  # an entry with more is not worth a column for each


@dataclass(frozen=True, slots=True)
class Regular:
    """Entries that all have the same fields: the places of their IDs and values in the reply.

    starts, stops: for each entry the place of its ID, then of each value.
    """

    ms: Ints
    seq: Ints
    names: tuple[bytes, ...]
    starts: Ints
    stops: Ints
    reply: pa.Buffer

    def __len__(self) -> int:
        return len(self.ms)

    def id(self, at: int) -> Id:
        return int(self.ms[at]), int(self.seq[at])

    def ids(self) -> pa.BinaryArray:
        """The native IDs."""
        return _column(self.reply, self.starts[:, 0], self.stops[:, 0])

    def moments(self) -> pa.BinaryArray:
        """The IDs' milliseconds, in digits."""
        starts = self.starts[:, 0]
        return _column(self.reply, starts, starts + len(str(self.ms[0])))

    def column(self, name: bytes) -> pa.BinaryArray:
        """The values of one field."""
        at = 1 + self.names.index(name)
        return _column(self.reply, self.starts[:, at], self.stops[:, at])

    def values(self) -> pa.BinaryArray:
        """All values, entry by entry."""
        return _column(self.reply, self.starts[:, 1:].ravel(), self.stops[:, 1:].ravel())

    @property
    def sizes(self) -> Ints:
        """The bytes of each entry's fields and values."""
        lengths: Ints = (self.stops[:, 1:] - self.starts[:, 1:]).sum(axis=1)
        return lengths + sum(map(len, self.names))


@dataclass(frozen=True, slots=True)
class Irregular:
    """Entries of any shape: (ms, seq, {field: value}). Of a repeated field the last value counts.

    repeated: for entries with repeated fields all words, by the entry's place in the list.
    """

    entries: list[tuple[int, int, dict[bytes, bytes]]]
    repeated: Mapping[int, list[bytes]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    def id(self, at: int) -> Id:
        return self.entries[at][:2]

    def pairs(self, at: int) -> list[tuple[bytes, bytes]]:
        """The fields of an entry as they are, also repeated ones."""
        words = self.repeated.get(at)
        if words is None:
            return list(self.entries[at][2].items())
        return list(zip(words[::2], words[1::2], strict=True))

    @property
    def sizes(self) -> Ints:
        """The bytes of each entry's fields and values."""
        sizes = [sum(map(len, fields)) + sum(map(len, fields.values())) for *_, fields in self.entries]
        return np.array(sizes, np.int64)


Page = Regular | Irregular


def parse(reply: bytearray) -> Page:
    """Parse a reply to XRANGE. Raises an error reply."""
    if reply.startswith(b"-"):
        raise ReplyError(bytes(reply[1:]).split(b"\r\n", 1)[0].decode("utf-8", "replace"))
    page = _regular(reply)
    return _irregular(reply) if page is None else page


def take_first(replies: bytearray) -> bool:
    """Remove the first of several replies. Returns whether it was a non-empty array."""
    if replies.startswith(b"-"):
        raise ReplyError(bytes(replies[1:]).split(b"\r\n", 1)[0].decode("utf-8", "replace"))
    filled = not replies.startswith(b"*0")
    del replies[: _skip(replies, 0)]
    return filled


def _skip(replies: bytearray, at: int) -> int:
    """The end of the reply that starts at `at`."""
    left = 1
    while left:
        stop = replies.index(b"\r\n", at)
        kind, length = replies[at], replies[at + 1 : stop]
        at, left = stop + 2, left - 1
        if kind == 42:
            left += max(0, int(length))
        elif kind == 36 and int(length) >= 0:
            at += int(length) + 2
    return at


def last_id(reply: bytearray) -> Id | None:
    """A guess at the ID of the last entry, without parsing the page: the line before its `*<n>`.

    A value may look like an entry, so the guess is compared with the page once that is parsed.
    """
    star = reply.rfind(b"\r\n*")
    if star < 0:
        return None
    tail = hiredis.Reader()
    tail.feed(bytes(reply[star + 2 :]))
    fields = tail.gets()
    start = reply.rfind(b"\r\n", 0, star)
    text = bytes(reply[start + 2 : star])
    if not isinstance(fields, list) or tail.has_data() or not text.replace(b"-", b"0", 1).isdigit():
        return None
    return ids.native(text) if b"-" in text[:-1] else None


def extent(reply: bytearray) -> tuple[int, Id] | None:
    """How many entries a page has, and its last ID, without parsing it. None if that is not certain, or if
    there are none: each entry has two arrays, so with more `*` than those a value has one too."""
    count = int(reply[1 : reply.find(b"\r\n")]) if reply.startswith(b"*") else 0
    last = last_id(reply) if count > 0 and reply.count(b"*") == 2 * count + 1 else None
    return None if last is None else (count, last)


def _irregular(reply: bytearray) -> Irregular:
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    found = reader.gets()
    entries, repeated = list[tuple[int, int, dict[bytes, bytes]]](), dict[int, list[bytes]]()
    for native, flat in found:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if 2 * len(fields) < len(flat):
            repeated[len(entries)] = flat
        entries.append((*ids.native(native), fields))
    return Irregular(entries, repeated)


def _regular(reply: bytearray) -> Regular | None:
    head = reply.find(b"\r\n")
    count = int(reply[1:head])
    if count == 0:
        nothing = np.zeros((0, 1), np.int64)
        return Regular(nothing[:, 0], nothing[:, 0], (), nothing, nothing, pa.py_buffer(b""))
    lines = Lines.split(reply, count)
    if lines is None or lines.width > 4 + 4 * _MOST_FIELDS or len(reply) > _MOST_BYTES:
        return None
    names = _names(lines)
    if len(set(names)) < len(names) or not _are_framed(lines, names):
        return None
    places = np.array([2, *range(7, lines.width, 4)])
    starts, stops = lines.after[:, places] + 1, lines.ends[:, places] - 1
    if not lines.are_measured(places, starts, stops):
        return None
    found = _ids(reply, lines.data, starts[:, 0], stops[:, 0])
    return None if found is None else Regular(*found, names, starts, stops, pa.py_buffer(reply))


def _names(lines: Lines) -> tuple[bytes, ...]:
    """The fields of the first entry."""
    places = range(5, lines.width, 4)
    return tuple(bytes(lines.reply[lines.after[0, at] + 1 : lines.ends[0, at] - 1]) for at in places)


def _are_framed(lines: Lines, names: tuple[bytes, ...]) -> bool:
    """Whether the bytes between IDs, lengths and values are as expected, in every entry."""
    frames = [b"$%d\r\n%s\r\n$" % (len(name), name) for name in names]
    frames[0] = b"*%d\r\n" % (2 * len(names)) + frames[0]
    places = [3, *range(8, lines.width, 4)]
    return lines.is_at(b"*2\r\n$", 0) and all(map(lines.is_at, frames, places))


def _ids(reply: bytearray, data: Any, starts: Any, stops: Any) -> tuple[Ints, Ints] | None:
    """Milliseconds and sequences, if every ID has as many digits before its dash as the first."""
    dash = reply.find(b"-", int(starts[0]), int(stops[0])) - int(starts[0])
    if not 0 < dash <= _MOST_DIGITS or int((stops - starts).min()) < dash + 2:
        return None
    if not (data[starts + dash] == 45).all():
        return None
    windows = np.ndarray(len(reply) - dash + 1, f"V{dash}", reply, strides=(1,))
    digits = windows[starts].view(np.uint8).reshape(-1, dash) - 48
    seq = numbers(data, starts + dash + 1, stops)
    if (digits > 9).any() or not digits[:, 0].all() or int(seq.min()) < 0 or int(seq.max()) >= _MOST_SEQ:
        return None
    return (digits @ _POWERS[-dash:]).astype(np.int64), seq  # so few digits are exact


def _column(buffer: pa.Buffer, starts: Any, stops: Any) -> pa.BinaryArray:
    """Scattered values of a buffer as one column."""
    if not len(starts):
        return pa.array([], pa.binary())
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[::2], offsets[1::2] = starts, stops
    spread = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(starts) - 1, [None, pa.py_buffer(offsets), buffer]
    )
    return spread.take(pa.array(np.arange(0, 2 * len(starts) - 1, 2, dtype=np.int32)))
