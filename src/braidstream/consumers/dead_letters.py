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
from braidstream.consumers.spoken import ViewOf, command, in_multi, prepare_appends
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.command import Command
from braidstream.model.meta import Registry
from braidstream.protocol.lookup import read_registry
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.retries import TRIES

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
) -> Conversation[list[str | None]]:
    """Append entries to their streams again, or to another one, and delete their dead letters, in one step.
    Returns the new IDs; None for a dead letter that is gone, because others have just retried it, say."""
    wanted = list(letters)

    def commands(chosen: list[tuple[bytes, DeadLetter]]) -> list[list[bytes]]:
        found = list[list[bytes]]()
        for entry, letter in chosen:
            found.append([b"XADD", (to or letter.stream).encode(), b"*", *letter.words])
            found.append([b"XDEL", stream.encode(), entry])
        return found

    def plan(view_of: ViewOf) -> Plan[list[str | None]]:
        yield from prepare_appends(view_of, commands(wanted))
        replies, chosen, left = None, wanted, TRIES
        while replies is None:
            left -= 1
            watching = left > 0  # not in the last try: new dead letters may arrive all the time
            try:
                there = yield from _found(view_of, stream.encode(), wanted, watching=watching)
                chosen = [each for each in wanted if each[0] in there]
                replies = yield from in_multi(view_of, commands(chosen), watching=watching)
            except ReplyError:
                yield Batch([("UNWATCH",)])
                raise
        if not chosen:
            yield Batch([("UNWATCH",)])
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        made = {entry: reply.decode() for (entry, _), reply in zip(chosen, replies[::2], strict=True)}
        return [made.get(entry) for entry, _ in wanted]

    return plan


def _found(
    view_of: ViewOf, stream: bytes, letters: list[tuple[bytes, DeadLetter]], *, watching: bool
) -> Plan[set[bytes]]:
    """Which of these dead letters are there. watching: WATCH the stream as well."""
    registry = yield from read_registry(view_of(None), stream)
    places = [(entry, *place) for entry, _ in letters for place in _places(registry, stream, entry)]
    if watching and places:
        yield Batch([("WATCH", *sorted({key for _, key, _ in places}))])
    reads: list[Command] = [("XRANGE", key, native, native) for _, key, native in places]
    pages = (yield Batch(reads, resend=not watching)) if reads else []
    return {entry for (entry, _, _), page in zip(places, pages, strict=True) if page}


def _places(registry: Registry, stream: bytes, entry: bytes) -> list[tuple[bytes, bytes]]:
    """The keys that may have an entry, with its ID there. A native stream has its own name."""
    if not registry.exists:
        return [(stream, entry)]
    user = ids.native(entry)
    found = ((strand.key, strand.exact(user)) for strand in registry.strands)
    return [(key, ids.text(native)) for key, native in found if native is not None]


def drop(stream: str, entries: Sequence[bytes]) -> Conversation[int]:
    """Delete dead letters. Returns how many there were."""
    return lambda view_of: command(view_of, "XDEL", stream, *entries)
