"""An entry as a handler gets it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from braidstream.model import ids

# Fields that carry a trace, as W3C Trace Context defines them. See tracing.py.
TRACE_FIELDS: Final = frozenset(("traceparent", "tracestate"))


class Message(Mapping[str, str]):
    """One entry of a stream, on its way through a handler. It is a mapping of its fields, as text.

    stream: the stream it was appended to.
    id: its ID. Handling may be repeated after a crash: the ID is the same then. It is another one if a
    producer sent the message to two regions.
    attempt: 1 when it is handled for the first time, as far as the group knows.
    words: fields and values in turn, as they were appended.
    """

    __slots__ = ("_fields", "attempt", "id", "stream", "words")

    def __init__(self, stream: str, id: str, words: Sequence[bytes], attempt: int = 1) -> None:
        self.stream, self.id, self.words, self.attempt = stream, id, words, attempt
        self._fields: dict[str, str] | None = None

    @property
    def fields(self) -> dict[str, str]:
        """Fields and values as text. Raises UnicodeDecodeError if they are not UTF-8: use `raw` then."""
        if self._fields is None:
            text = [word.decode() for word in self.words]
            self._fields = dict(zip(text[::2], text[1::2], strict=True))
        return self._fields

    @property
    def raw(self) -> dict[bytes, bytes]:
        """Fields and values as bytes."""
        return dict(zip(self.words[::2], self.words[1::2], strict=True))

    @property
    def timestamp(self) -> float:
        """When it was appended, in seconds since 1970, by the clock of the region that it was appended in."""
        parsed = ids.parse(self.id.encode())
        assert parsed is not None, "the engine made this ID"
        return parsed[0] / 1000

    def __getitem__(self, field: str) -> str:
        return self.fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    # Two messages with the same fields are two.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Message({self.stream!r}, {self.id!r}, attempt={self.attempt})"
