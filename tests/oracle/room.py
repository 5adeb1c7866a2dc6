"""MAXCOUNT and MAXSIZE: how much of a reply a newer engine would give."""

from collections.abc import Iterable
from typing import Any


class Room:
    """What may still be put into the whole reply, by the bytes that RESP2 writes. The first entry always."""

    def __init__(self, count: int | None, size: int | None) -> None:
        self.count, self.size, self.used, self.written = count, size, 0, 0

    def full(self) -> bool:
        if self.count is not None and self.used >= self.count:
            return True
        return self.size is not None and self.used > 0 and self.written >= self.size

    def write(self, value: Any) -> None:
        self.written += len(_resp2(value))

    def head(self, name: bytes) -> None:
        self.written += 4 + len(_resp2(name))

    def tail(self, entries: list[Any]) -> None:
        self.written += len(b"*%d\r\n" % len(entries))

    def take(self, row: list[Any]) -> bool:
        if self.full():
            return False
        self.used += 1
        self.write(row)
        return True

    def cut(self, pages: Iterable[Any]) -> list[Any]:
        """As much of a reply of streams, each a name and its entries, as there is room for."""
        kept = list[Any]()
        for name, page in pages:
            if not self.full():
                self.head(name)
                kept.append([name, [entry for entry in page if self.take(entry)]])
                self.tail(kept[-1][1])
        return kept


def _resp2(value: Any) -> bytes:
    if value is None:
        return b"*-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"*%d\r\n" % len(value) + b"".join(map(_resp2, value))
