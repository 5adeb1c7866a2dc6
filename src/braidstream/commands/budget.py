"""MAXCOUNT and MAXSIZE: caps on a whole reply, over all its streams.

The engine counts the bytes of the reply as it writes them, and stops before the next entry once MAXSIZE is
reached. Here they are counted as RESP2 writes them.
"""

from itertools import takewhile
from typing import Any, Final

from braidstream.model import ids
from braidstream.model.strand import Entry

# A delivery cannot be undone, so MAXSIZE is checked before it, on this many entries at once.
PEEK: Final = 100
_HEAD: Final = len(b"*2\r\n")
_NIL: Final = len(b"*-1\r\n")


class Budget:
    """How much may still be added to a reply. The first entry always fits.

    used: entries in the reply. size: MAXSIZE, or None.
    """

    def __init__(self, count: int | None, size: int | None) -> None:
        self.count, self.size = count, size
        self.used = self._bytes = self._before = 0

    @property
    def spent(self) -> bool:
        """Whether the reply takes no further entry and no further stream."""
        if self.count is not None and self.used >= self.count:
            return True
        return self.size is not None and self.used > 0 and self._bytes >= self.size

    def cap(self, count: int | None) -> int | None:
        """How many entries may still come, if at most `count` are wanted."""
        left = None if self.count is None else max(self.count - self.used, 0)
        return min((each for each in (count, left) if each is not None), default=None)

    def begin(self, name: bytes) -> None:
        """The next stream."""
        self._before = self._bytes
        self._bytes += _HEAD + _bulk(name)

    def end(self, entries: int | None) -> None:
        """A stream is finished, with so many entries. None: the reply leaves the stream out."""
        self._bytes = self._before if entries is None else self._bytes + _array(entries)

    def fits(self, entry: bytes, fields: list[bytes] | None, *numbers: int) -> bool:
        """Take one more entry, if it fits. `numbers`: what CLAIM adds to it."""
        if self.spent:
            return False
        self.used += 1
        if self.size is not None:
            body = _NIL if fields is None else _array(len(fields)) + sum(map(_bulk, fields))
            self._bytes += _HEAD + _bulk(entry) + body + sum(len(b":%d\r\n" % number) for number in numbers)
        return True

    def page(self, name: bytes, rows: list[Any]) -> list[Any]:
        """A stream of the reply, with as many of these entries as fit: [[name, entries]], or nothing."""
        if not rows or self.spent:
            return []
        self.begin(name)
        taken = list(takewhile(lambda row: self.fits(*row), rows)) if self._is_limited else rows
        self.end(len(taken))
        return [[name, taken]]

    @property
    def _is_limited(self) -> bool:
        return self.count is not None or self.size is not None

    def take(self, merged: list[Entry], *numbers: int) -> list[Entry]:
        """As many of these entries as fit."""
        if not self._is_limited:
            return merged
        return list(takewhile(lambda entry: self.fits(ids.text(entry[:2]), entry[3], *numbers), merged))


def _bulk(word: bytes) -> int:
    return len(word) + len(b"$%d\r\n\r\n" % len(word))


def _array(length: int) -> int:
    return len(b"*%d\r\n" % length)
