"""Dead letters: entries that failed too often, as they stand in their stream.

    dead.stream    the stream it was taken from
    dead.id        its ID there
    dead.group     the group that could not handle it
    dead.consumer  the consumer that gave up
    dead.attempts  how many attempts there were
    dead.reason    why the last one failed

Then the fields of the entry follow, as they were.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from braidstream.clients.shared import Conversation
from braidstream.consumers.spoken import ViewOf, command, in_one_step
from braidstream.errors import ReplyError
from braidstream.protocol.plan import Plan

_PREFIX: Final = b"dead."
_NAMES: Final = ("stream", "id", "group", "consumer", "attempts", "reason")
# A longer reason is cut.
_MOST_REASON: Final = 2000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What is known of an entry that failed too often. words: its fields and values in turn."""

    stream: str
    id: str
    group: str
    consumer: str
    attempts: int
    reason: str
    words: tuple[bytes, ...]

    def to_words(self) -> list[bytes]:
        """The fields and values of the dead letter, in turn."""
        found = list[bytes]()
        for name in _NAMES:
            text = str(getattr(self, name))[:_MOST_REASON]
            found += [_PREFIX + name.encode(), text.encode("utf-8", "backslashreplace")]
        return [*found, *self.words]


def parse(words: Sequence[bytes]) -> DeadLetter | None:
    """A dead letter, by the fields and values of its entry. None if the entry is none."""
    head = dict(zip(words[: 2 * len(_NAMES) : 2], words[1 : 2 * len(_NAMES) : 2], strict=True))
    found = [head.get(_PREFIX + name.encode()) for name in _NAMES]
    if any(each is None for each in found):
        return None
    stream, id, group, consumer, attempts, reason = (
        each.decode("utf-8", "replace") for each in found if each is not None
    )
    number = int(attempts) if attempts.isdecimal() and len(attempts) < 20 else 0
    return DeadLetter(stream, id, group, consumer, number, reason, tuple(words[2 * len(_NAMES) :]))


# A dead letter with its ID, among all entries of a stream; None for an entry that is none.
Found = tuple[bytes, DeadLetter | None]


def page(stream: str, low: str, high: str, most: int) -> Conversation[list[Found]]:
    """Dead letters between two IDs."""

    def plan(view_of: ViewOf) -> Plan[list[Found]]:
        rows = yield from command(view_of, "XRANGE", stream, low, high, "COUNT", most)
        return [(entry, parse(words)) for entry, words in rows]

    return plan


def last_id(stream: str) -> Conversation[str | None]:
    """The ID of the newest dead letter."""

    def plan(view_of: ViewOf) -> Plan[str | None]:
        rows = yield from command(view_of, "XREVRANGE", stream, "+", "-", "COUNT", 1)
        return rows[0][0].decode() if rows else None

    return plan


def retry(
    stream: str, letters: Iterable[tuple[bytes, DeadLetter]], to: str | None
) -> Conversation[list[str]]:
    """Append entries to their streams again, or to another one, and delete their dead letters, in one step.
    Returns the new IDs."""
    commands = list[list[bytes]]()
    for entry, letter in letters:
        commands.append([b"XADD", (to or letter.stream).encode(), b"*", *letter.words])
        commands.append([b"XDEL", stream.encode(), entry])

    def plan(view_of: ViewOf) -> Plan[list[str]]:
        replies = yield from in_one_step(view_of, commands)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        return [entry.decode() for entry in replies[::2]]

    return plan


def drop(stream: str, entries: Sequence[bytes]) -> Conversation[int]:
    """Delete dead letters. Returns how many there were."""
    return lambda view_of: command(view_of, "XDEL", stream, *entries)
