"""MAXCOUNT and MAXSIZE: caps on a whole reply, over all its streams."""

from itertools import takewhile
from typing import Final

from braidstream.strand import Entry

# Where what was taken cannot be given back, MAXSIZE is kept by looking first: at so many entries at once.
PEEK: Final = 100


class Budget:
    """What may still be put into a reply. The first entry always fits; the first that does not ends it."""

    def __init__(self, count: int | None, size: int | None) -> None:
        self.count, self.size = count, size
        self.used, self.spent = 0, False

    def cap(self, count: int | None) -> int | None:
        """How many entries may still come, if at most `count` are wanted."""
        left = None if self.count is None else max(self.count - self.used, 0)
        return min((each for each in (count, left) if each is not None), default=None)

    def fits(self, fields: list[bytes] | None) -> bool:
        """Take one more entry, if it fits. Its size is that of its fields and values."""
        size = sum(map(len, fields or []))
        full = self.count is not None and self.used >= self.count
        if self.used and (full or (self.size is not None and self.size < size)):
            self.spent = True
        if self.spent:
            return False
        self.used += 1
        self.size = None if self.size is None else self.size - size
        return True

    def take(self, woven: list[Entry]) -> list[Entry]:
        """As many of these entries as fit."""
        if self.count is None and self.size is None:
            return woven
        return list(takewhile(lambda entry: self.fits(entry[3]), woven))
