"""`client.reader("orders")`: reads a stream by a frontier, so that entries which arrive late are not skipped.

XREAD has one ID as its position. A reader has one for each strand, and gives it as a text that a program can
store and give back, also in another region.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from redis.typing import KeyT

from braidstream.clients.shared import Conversation, decode
from braidstream.commands.xread import Row, read_after
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_of_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.plan.view import Carriage

# An entry as XREAD returns it: its ID, its fields.
ReadEntry = tuple[Any, dict[Any, Any]]
# As XREAD takes it: text, bytes or a number.
Start = str | bytes | int
Ask = Conversation[tuple[Frontier, list[Row]]]


class _Cursor:
    """What both readers share: where they are, and the entries that were read but not given yet."""

    def __init__(self, client: Any, name: KeyT, start: Start, count: int, block: int | None) -> None:
        if count < 1:
            raise ValueError("count: pass at least 1")
        self._client, self._count, self._block = client, count, block
        self._encoder = client.get_encoder()
        self._name = bytes(self._encoder.encode(name))
        self._start = bytes(self._encoder.encode(start)).decode(errors="replace")
        self._from = _parsed(self._name, self._start)
        self._at: dict[Strand, Id] | None = None
        self._waiting = deque[Row]()

    @property
    def position(self) -> str:
        """The entries that were given so far, as a text: pass it as `start` to go on after them.

        Store it after you have handled an entry. It does not depend on the region.
        """
        if self._at is None:
            return self._start
        read = Frontier({strand: native for strand, native in self._at.items() if native != ids.ZERO})
        return json.dumps(read.positions, separators=(",", ":"))

    def _asks(self) -> Iterator[Ask]:
        """What to ask until there are entries. First without waiting: `$` is found once, so that a connection
        that is lost while the reader waits skips nothing."""
        if self._at is None:
            yield self._ask(self._from, None)
            if self._block is None:
                return
        if not self._waiting:
            yield self._ask(Frontier(self._at or {}), self._block)

    def _ask(self, start: Frontier | bytes, block: int | None) -> Ask:
        return lambda view_of: read_after(view_of(Carriage.ALONE), self._name, start, self._count, block)

    def _keep(self, found: tuple[Frontier, list[Row]]) -> None:
        self._at = dict(found[0].at)
        self._waiting.extend(found[1])

    def _give(self) -> ReadEntry:
        assert self._at is not None
        (ms, seq, _, words), strand = self._waiting.popleft()
        self._at[strand] = strand.native((ms, seq))
        entry: list[Any] = [ids.text((ms, seq)), words]
        if self._encoder.decode_responses:
            entry = decode(self._encoder.encoding, self._encoder.encoding_errors, entry)
        return entry[0], dict(zip(entry[1][::2], entry[1][1::2], strict=True))

    def _give_all(self) -> list[ReadEntry]:
        return [self._give() for _ in range(len(self._waiting))]


def _parsed(name: bytes, start: str) -> Frontier | bytes:
    """Where a reader starts."""
    if start == "$" or ids.parse(start.encode()) is not None:
        return start.encode()
    try:
        positions = json.loads(start)
        frontier = Frontier.parse(positions)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"start: {start!r} is not '0', '$', an ID, or the position of a reader") from None
    if any(name_of_text(other) != name for other in positions):
        raise ValueError(
            f"start: this is a position in {', '.join(positions)}, not in {name.decode(errors='replace')}"
        )
    return frontier


class Reader(_Cursor):
    """Reads a stream entry by entry. Not for several threads at once: give each a reader of its own."""

    def read(self) -> list[ReadEntry]:
        """The next entries, at most `count`: a list of (id, fields), empty if none came in time."""
        for ask in self._asks():
            self._keep(self._client.converse(ask))
        return self._give_all()

    def __iter__(self) -> Iterator[ReadEntry]:
        return self

    def __next__(self) -> ReadEntry:
        for ask in self._asks():
            self._keep(self._client.converse(ask))
        if not self._waiting:
            raise StopIteration
        return self._give()


class AsyncReader(_Cursor):
    """The same in an event loop: `async for`, `await reader.read()`. For one task at a time."""

    async def read(self) -> list[ReadEntry]:
        """The next entries, at most `count`: a list of (id, fields), empty if none came in time."""
        for ask in self._asks():
            self._keep(await self._client.converse(ask))
        return self._give_all()

    def __aiter__(self) -> AsyncIterator[ReadEntry]:
        return self

    async def __anext__(self) -> ReadEntry:
        for ask in self._asks():
            self._keep(await self._client.converse(ask))
        if not self._waiting:
            raise StopAsyncIteration
        return self._give()


class Reading:
    """The method of the clients."""

    def reader(self, name: KeyT, start: Start = "0", *, count: int = 100, block: int | None = None) -> Reader:
        """Read a stream and skip nothing that arrives late, unlike XREAD with the last ID.

        start: "0" (first entry), "$" (after the last one), an ID (after it), or the `position` of a reader.
        count: how many entries are read at once. block: milliseconds to wait for the next entry, 0 for ever;
        without it the reader ends after the last entry.
        """
        return Reader(self, name, start, count, block)


class AsyncReading:
    """The method of the asyncio clients."""

    def reader(
        self, name: KeyT, start: Start = "0", *, count: int = 100, block: int | None = None
    ) -> AsyncReader:
        return AsyncReader(self, name, start, count, block)

    reader.__doc__ = Reading.reader.__doc__
