"""`raise Later(60)` in a handler: only this group gets the entry again, then.

    orders ---> handler raises Later ---> {orders}.later, acknowledged in the same step
                                               | when it is due, a daemon moves it
    handler <--- the consumer reads both <--- {orders}.billing.again

Keeping it pending instead would hold up retention for as long, and run it early after a crash. The group of
the second stream has scope ONCE: a region gets again what it has put off itself.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from braidstream.consumers.handler import Message, Place
from braidstream.model.later import AGAIN, DELAY, GROUP, again_name, later_name, stream_of

# The ID that an entry had when it was handled first: the first field of an entry that is delivered again.
_FIRST: Final = b"again.id"
_LONGEST_S: Final = 10**12


class Later(Exception):
    """Raise this in a handler to get the entry again after that many seconds. That is not an attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        self.delay_s = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not math.isfinite(self.delay_s) or not 0 <= self.delay_s <= _LONGEST_S:
            raise ValueError(f"Later: {delay!r} is not a number of seconds from 0 to 10^12")
        super().__init__(f"later, in {self.delay_s} s")


class AgainMessage(Message):
    """A message that was put off: its stream is that of the entry that was handled first."""

    __slots__ = ("_first_id",)

    def __init__(self, stream: str, id: str, words: Sequence[bytes]) -> None:
        is_marked = len(words) > 2 and words[0] == _FIRST
        super().__init__(stream, id, words[2:] if is_marked else words)
        self._first_id = words[1].decode("utf-8", "backslashreplace") if is_marked else id

    @property
    def first_id(self) -> str:
        return self._first_id


def is_again(stream: bytes) -> bool:
    """Whether the entries of a stream were put off."""
    return stream.endswith(AGAIN) and stream_of(stream) is not None


def message_kind(stream: bytes) -> tuple[type[Message], str]:
    """What its entries are for a handler, and the stream that they show."""
    if is_again(stream):
        return AgainMessage, (stream_of(stream) or b"").decode()
    return Message, stream.decode()


def again_names(streams: Iterable[str], group: str) -> list[str]:
    """The streams in which a group gets entries again; some streams can have none."""
    found = list[str]()
    for stream in streams:
        with suppress(ValueError):
            found.append(again_name(stream.encode(), group.encode()).decode())
    return found


def ack_words(stream: bytes, group: str, entries: Sequence[bytes]) -> tuple[str | bytes | int, ...]:
    """Acknowledge entries, and delete those that were put off: only this group reads them."""
    if is_again(stream):
        return ("XACKDEL", stream, group, "IDS", len(entries), *entries)
    return ("XACK", stream, group, *entries)


@dataclass(frozen=True, slots=True)
class PutOff:
    """An entry on its way to `{orders}.later`. place: where it is pending now."""

    place: Place
    group: str
    delay_s: float
    message: Message

    @property
    def where(self) -> str:
        """ValueError if entries of its stream cannot wait."""
        again_name(self.message.stream.encode(), self.group.encode())
        return later_name(self.message.stream.encode()).decode()

    def to_words(self) -> list[bytes]:
        delay = b"%d" % math.ceil(1000 * self.delay_s)
        first = self.message.first_id.encode()
        return [DELAY, delay, GROUP, self.group.encode(), _FIRST, first, *self.message.words]
