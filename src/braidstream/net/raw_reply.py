"""Takes whole replies out of a connection's incoming bytes, unparsed. No I/O.

The command is sent between two PINGs with a random mark, so its reply is what stands between the marks:

    ...reply  mark  *512 *2 $15 1794702853882-4 ...  mark  reply...
    --------------  ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~  --------------
    to the parser   raw                              to the parser

If PING is refused, there are no marks, and the parser gets everything.
"""

import secrets
from collections import deque
from collections.abc import Iterator

from braidstream.model.command import bulk


def new_mark() -> bytes:
    """Random, so no entry contains it."""
    return secrets.token_hex(16).encode()


class RawReplies:
    """Splits the incoming bytes. One object for each connection."""

    def __init__(self) -> None:
        self._marks = deque[bytes]()  # of raw replies that are due
        self._seen = b""  # the end of what went to the parser: the first mark may have begun
        self._raw: bytearray | None = None  # the reply, after its first mark

    def __bool__(self) -> bool:
        return bool(self._marks)

    @property
    def mark(self) -> bytes:
        """Of the reply that is due next."""
        return self._marks[0]

    def expect(self, mark: bytes) -> None:
        """A command between two marks was sent."""
        self._marks.append(mark)

    def forget(self, mark: bytes) -> None:
        """Its replies have come, with or without marks."""
        if mark in self._marks:
            self._marks.remove(mark)
            self._seen = b""

    def split(self, data: bytes) -> Iterator[bytes | bytearray]:
        """The parts in order: bytes for the parser, which include the marks; a raw reply as bytearray."""
        while self._marks and data:
            mark = bulk(self._marks[0])
            if self._raw is None:
                seen = self._seen + data
                at = seen.find(mark)
                if at < 0:
                    self._seen = seen[1 - len(mark) :]
                    break
                end = at + len(mark) - len(self._seen)
                self._seen, self._raw = b"", bytearray()
                yield data[:end]
                data = data[end:]
            else:
                raw = self._raw
                start = max(0, len(raw) - len(mark) + 1)
                raw += data
                at = raw.find(mark, start)
                if at < 0:
                    return
                data = bytes(raw[at:])
                del raw[at:]
                self._raw = None
                yield raw
                self._marks.popleft()
        if data:
            yield data
