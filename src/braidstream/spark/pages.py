"""Pages of entries as the engine sent them, made columns without making Python objects.

A page is the reply to XRANGE: an array of [id, [field, value, ...]]. Where all entries have the same
fields and no line break in them, every line of the reply has its place:

    *2  $15  1794702853882-4  *4  $5  order  $1  7  $6  amount ...      4 + 4n lines an entry
                                  `-- every length is checked against the line that follows it

The check is the proof: lengths that all agree are read by any RESP parser in the same way. A page that
fails it anywhere is parsed by hiredis from the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import hiredis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from braidstream.errors import ReplyError
from braidstream.ids import Id

Ints = np.ndarray[Any, np.dtype[np.int64]]
_DIGITS = 10
_MOST_SEQ, _MOST_MS = 2**53, 2**53  # beyond, a column of 64 bits may not hold what is made of it
_MOST_FIELDS = 400  # an entry with more is not worth a column for each


@dataclass(frozen=True, slots=True)
class Regular:
    """Entries that all have the same fields, as columns."""

    ms: Ints
    seq: Ints
    names: tuple[bytes, ...]
    values: tuple[pa.BinaryArray, ...]

    def __len__(self) -> int:
        return len(self.ms)

    def id(self, at: int) -> Id:
        return int(self.ms[at]), int(self.seq[at])

    @property
    def sizes(self) -> Ints:
        """The bytes of each entry's fields and values."""
        sizes = np.full(len(self), sum(map(len, self.names)), np.int64)
        for column in self.values:
            sizes += pc.binary_length(column).to_numpy(zero_copy_only=False)
        return sizes


@dataclass(frozen=True, slots=True)
class Irregular:
    """Entries of any shape: (ms, seq, {field: value}). Of a field given twice the last value counts."""

    entries: list[tuple[int, int, dict[bytes, bytes]]]

    def __len__(self) -> int:
        return len(self.entries)

    def id(self, at: int) -> Id:
        return self.entries[at][:2]

    @property
    def sizes(self) -> Ints:
        """The bytes of each entry's fields and values."""
        sizes = [sum(map(len, fields)) + sum(map(len, fields.values())) for *_, fields in self.entries]
        return np.array(sizes, np.int64)


Page = Regular | Irregular


def parse(reply: bytearray) -> Page:
    """A reply to XRANGE. A server's refusal is raised."""
    if reply.startswith(b"-"):
        raise ReplyError(bytes(reply[1:]).split(b"\r\n", 1)[0].decode("utf-8", "replace"))
    page = _regular(reply)
    return _irregular(reply) if page is None else page


def take_first(replies: bytearray) -> bool:
    """Cut the first of several replies off. Whether it was an array with something in it."""
    if replies.startswith(b"-"):
        raise ReplyError(bytes(replies[1:]).split(b"\r\n", 1)[0].decode("utf-8", "replace"))
    filled = not replies.startswith(b"*0")
    del replies[: _skip(replies, 0)]
    return filled


def _skip(replies: bytearray, at: int) -> int:
    """Where the reply that starts here ends."""
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
    ms, _, seq = text.partition(b"-")
    return (int(ms), int(seq)) if seq else None


def _irregular(reply: bytearray) -> Irregular:
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    found = reader.gets()
    entries = list[tuple[int, int, dict[bytes, bytes]]]()
    for native, flat in found:
        ms, _, seq = native.partition(b"-")
        entries.append((int(ms), int(seq), dict(zip(flat[::2], flat[1::2], strict=True))))
    return Irregular(entries)


def _regular(reply: bytearray) -> Regular | None:
    head = reply.find(b"\r\n")
    count = int(reply[1:head])
    if count == 0:
        return Regular(_EMPTY, _EMPTY, (), ())
    data = np.frombuffer(reply, np.uint8)
    ends = np.flatnonzero(data == 10)
    width, rest = divmod(len(ends) - 1, count)
    if rest or width < 8 or width % 4 or width > 4 + 4 * _MOST_FIELDS:
        return None
    # starts[i], stops[i]: line i without its CRLF.
    starts = (ends[:-1] + 1).reshape(count, width)
    stops = (ends[1:] - 1).reshape(count, width)
    if not _is_proven(data, starts, stops, width):
        return None
    names = _names(reply, data, starts, stops, width)
    if names is None:
        return None
    id_starts, id_stops = starts[:, 2], stops[:, 2]
    dash = reply.find(b"-", int(id_starts[0])) - int(id_starts[0])
    if dash > 18 or not (data[id_starts + dash] == 45).all() or int((id_stops - id_starts).max()) > dash + 19:
        return None
    ms = _numbers(data, id_starts, id_starts + dash)
    seq = _numbers(data, id_starts + dash + 1, id_stops)
    if int(ms.min()) < 0 or int(seq.min()) < 0 or int(seq.max()) >= _MOST_SEQ or int(ms.max()) >= _MOST_MS:
        return None
    buffer = pa.py_buffer(reply)
    values = tuple(_column(buffer, starts[:, 7 + 4 * at], stops[:, 7 + 4 * at]) for at in range(len(names)))
    return Regular(ms, seq, names, values)


_EMPTY: Ints = np.zeros(0, np.int64)


def _is_proven(data: Any, starts: Any, stops: Any, width: int) -> bool:
    """Whether each header line is what its place demands, and each length that of the line after it."""
    if not (
        (data[stops] == 13).all() and (data[starts[:, 0]] == 42).all() and (data[starts[:, 3]] == 42).all()
    ):
        return False
    pairs = (width - 4) // 2
    if (_numbers(data, starts[:, 0] + 1, stops[:, 0]) != 2).any():
        return False
    if (_numbers(data, starts[:, 3] + 1, stops[:, 3]) != pairs).any():
        return False
    places = np.array([1, *range(4, width, 2)])
    headers, header_stops = starts[:, places].ravel(), stops[:, places].ravel()
    if not (data[headers] == 36).all():
        return False
    lengths = (stops[:, places + 1] - starts[:, places + 1]).ravel()
    return bool((_numbers(data, headers + 1, header_stops) == lengths).all())


def _numbers(data: Any, starts: Any, stops: Any) -> Ints:
    """The decimal numbers at these places; -1 where there is none."""
    widths = stops - starts
    widest, narrowest = int(widths.max()), int(widths.min())
    if narrowest < 1 or widest > 19:
        return np.full(len(starts), -1, np.int64)
    total = np.zeros(len(starts), np.int64)
    bad = np.zeros(len(starts), bool)
    for at in range(narrowest):
        digit = data[starts + at] - 48  # unsigned: what is below "0" wraps around
        bad |= digit > 9
        total *= _DIGITS
        total += digit
    for at in range(narrowest, widest):
        inside = at < widths
        digit = data[np.minimum(starts + at, len(data) - 1)] - 48
        bad |= (digit > 9) & inside
        total = np.where(inside, total * _DIGITS + digit, total)
    total[bad] = -1
    return total


def _names(reply: bytearray, data: Any, starts: Any, stops: Any, width: int) -> tuple[bytes, ...] | None:
    """The fields' names, if every entry has the same in the same order, each once."""
    names = list[bytes]()
    for place in range(5, width, 4):
        first, stop = int(starts[0, place]), int(stops[0, place])
        name = bytes(reply[first:stop])
        if ((stops[:, place] - starts[:, place]) != len(name)).any():
            return None
        for at, byte in enumerate(name):
            if (data[starts[:, place] + at] != byte).any():
                return None
        names.append(name)
    return tuple(names) if len(set(names)) == len(names) else None


def _column(buffer: pa.Buffer, starts: Any, stops: Any) -> pa.BinaryArray:
    """Values that lie apart in a buffer, as one column."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[::2], offsets[1::2] = starts, stops
    spread = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(starts) - 1, [None, pa.py_buffer(offsets), buffer]
    )
    return spread.take(pa.array(np.arange(0, 2 * len(starts) - 1, 2, dtype=np.int32)))
