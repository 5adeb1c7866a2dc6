"""Dead letters: entries that failed too often, as they stand in their stream.

    dead.stream    the stream it was taken from
    dead.id        its ID there
    dead.group     the group that could not handle it
    dead.consumer  the consumer that gave up
    dead.attempts  how many attempts there were
    dead.reason    why the last one failed
    dead.traceback where it failed, if the handler raised an error

Then the fields of the entry follow, as they were.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidstream.clients.commands import ViewOf, command, in_multi, in_one_step, prepare_appends
from braidstream.clients.shared import Conversation
from braidstream.clusters.command_keys import slot_of
from braidstream.consumers.handler import Place
from braidstream.consumers.later import PutOff, ack_words, is_again
from braidstream.errors import ReplyError
from braidstream.model import ids, keys, topic
from braidstream.model.registry import Registry
from braidstream.model.strand import Command
from braidstream.plan.lookup import read_registry
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import TRIES
from braidstream.plan.view import Carriage

_PREFIX: Final = b"dead."
_NAMES: Final = ("stream", "id", "group", "consumer", "attempts", "reason")
# A longer reason is cut.
_MOST_REASON: Final = 2000
_TRACEBACK: Final = b"dead.traceback"
# How many streams a refusal names.
_MOST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What is known of an entry that failed too often. words: its fields and values in turn. taken_from: not
    the place that it names, but one to which it was put off (later.py). That is not stored."""

    stream: str
    id: str
    group: str
    consumer: str
    attempts: int
    reason: str
    words: tuple[bytes, ...]
    traceback: str = ""
    taken_from: Place | None = None

    @property
    def place(self) -> Place:
        """Where the entry is pending."""
        return self.taken_from or (self.stream.encode(), self.id.encode())

    def to_words(self) -> list[bytes]:
        """The fields and values of the dead letter, in turn."""
        found = list[bytes]()
        for name in _NAMES:
            text = str(getattr(self, name))[:_MOST_REASON]
            found += [_PREFIX + name.encode(), text.encode("utf-8", "backslashreplace")]
        if self.traceback or self.words[:1] == (_TRACEBACK,):  # a field of the entry may have that name
            found += [_TRACEBACK, self.traceback.encode("utf-8", "backslashreplace")]
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
    rest, trace = tuple(words[2 * len(_NAMES) :]), ""
    if rest[:1] == (_TRACEBACK,):
        trace, rest = rest[1].decode("utf-8", "replace"), rest[2:]
    return DeadLetter(stream, id, group, consumer, number, reason, rest, trace)


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


@dataclass(frozen=True, slots=True)
class NotBuried:
    """A dead letter was refused, and its entry is not acknowledged."""

    error: ReplyError


# What goes to another stream when it is acknowledged.
Letter = DeadLetter | PutOff


def bury(view_of: ViewOf, letters: Sequence[tuple[str, Letter]]) -> Plan[list[Any]]:
    """Append dead letters, or what is put off, each to its stream, and acknowledge their entries, in one
    step. Returns the replies to the appends: an error if it failed inside the step, NotBuried if nothing was
    done.

    If one of them is refused, and on a cluster, one by one; and in two steps if the two streams are in
    different slots of a cluster."""
    is_cluster = view_of(Carriage.ALONE).region.is_cluster
    if not is_cluster:
        try:
            return (yield from _bury_at_once(view_of, letters))
        except ReplyError as error:
            if len(letters) == 1:
                return [NotBuried(error)]
    found = list[Any]()
    for where, letter in letters:
        is_near = not is_cluster or _slot(where) == slot_of(keys.meta(letter.place[0]))
        steps = _bury_at_once if is_near else _bury_in_two_steps
        try:
            found += yield from steps(view_of, [(where, letter)])
        except ReplyError as error:  # the others are buried
            found.append(NotBuried(error))
    return found


def _bury_at_once(view_of: ViewOf, letters: Sequence[tuple[str, Letter]]) -> Plan[list[Any]]:
    commands = list[list[bytes]]()
    for where, letter in letters:
        stream, entry = letter.place
        commands.append([b"XADD", where.encode(), b"*", *letter.to_words()])
        commands.append([b"XACK", stream, letter.group.encode(), entry])
        commands += [[b"XDEL", stream, entry]] if is_again(stream) else []
    replies = yield from in_one_step(view_of, commands)
    return [reply for words, reply in zip(commands, replies, strict=True) if words[0] == b"XADD"]


def _bury_in_two_steps(view_of: ViewOf, letters: Sequence[tuple[str, Letter]]) -> Plan[list[Any]]:
    """Append, then acknowledge. The append is a message with the ID of the entry: a consumer that takes the
    entry over, because this one ended between the two, does not append it again."""
    made = list[Any]()
    for where, letter in letters:
        iid = b"%b %b" % letter.place
        message = (b"IDMP", b"braid consumer " + letter.group.encode(), iid)
        made.append((yield from command(view_of, "XADD", where, *message, "*", *letter.to_words())))
        stream, entry = letter.place
        yield from command(view_of, *ack_words(stream, letter.group, [entry]))
    return made


def belongs(stream: str, letter: DeadLetter) -> bool:
    """Whether the name of the stream of dead letters implies the stream of a letter: `orders.dead` and
    `{orders}.dead` imply `orders`, and each partition of a topic `orders`. A user who may append one chooses
    `dead.stream`."""
    parsed = topic.parse_stream(letter.stream.encode())
    names = (letter.stream, *([] if parsed is None else [parsed[0].decode()]))
    return any(stream in (f"{name}.dead", f"{{{name}}}.dead") for name in names)


def refusal(stream: str, targets: Iterable[str]) -> str:
    """Why dead letters that do not belong to the stream are not retried, and what to type."""
    shown = ", ".join(repr(each) for each in sorted(set(targets))[:_MOST_SHOWN])
    return (
        f"the name {stream!r} does not imply the stream in dead.stream ({shown}), and every writer of "
        f"{stream!r} chooses that field. To append them there: "
        f"braid dead retry {stream} --all --from STREAM --to STREAM"
    )


def retry(
    stream: str, letters: Iterable[tuple[bytes, DeadLetter]], to: str | None
) -> Conversation[list[str | None]]:
    """Append entries to their stream again, or to another one, and delete their dead letters, in one step.
    Returns the new IDs; None for a dead letter that is gone, for example because others have just retried it.

    On a cluster one by one, and in two steps if the two streams are in different slots. Without `to`, every
    letter must belong to the stream (ReplyError)."""
    wanted = list(letters)
    strange = [letter.stream for _, letter in wanted if to is None and not belongs(stream, letter)]
    if strange:
        raise ReplyError(f"ERR {refusal(stream, strange)}")

    def plan(view_of: ViewOf) -> Plan[list[str | None]]:
        if not view_of(Carriage.ALONE).region.is_cluster:
            return (yield from _retry_at_once(view_of, stream, wanted, to))
        found = list[str | None]()
        for each in wanted:
            target = to or each[1].stream
            if _slot(target) == _slot(stream):
                found += yield from _retry_at_once(view_of, stream, [each], to)
            else:
                found.append((yield from _retry_in_two_steps(view_of, stream, each, target)))
        return found

    return plan


def _slot(stream: str) -> int:
    return slot_of(keys.meta(stream.encode()))


def _retry_in_two_steps(
    view_of: ViewOf, stream: str, found: tuple[bytes, DeadLetter], target: str
) -> Plan[str | None]:
    """Append, then delete. The append is a message with the ID of the dead letter: if another retry of it
    was interrupted between the two, or runs at the same time, the entry is still appended once."""
    entry, letter = found
    if not (yield from _found(view_of, stream.encode(), [found], watching=False)):
        return None
    message = (b"IDMP", b"braid dead retry " + stream.encode(), entry)
    made = yield from command(view_of, "XADD", target, *message, "*", *letter.words)
    yield from command(view_of, "XDEL", stream, entry)
    return bytes(made).decode()


def _retry_at_once(
    view_of: ViewOf, stream: str, wanted: list[tuple[bytes, DeadLetter]], to: str | None
) -> Plan[list[str | None]]:
    def commands(chosen: list[tuple[bytes, DeadLetter]]) -> list[list[bytes]]:
        found = list[list[bytes]]()
        for entry, letter in chosen:
            found.append([b"XADD", (to or letter.stream).encode(), b"*", *letter.words])
            found.append([b"XDEL", stream.encode(), entry])
        return found

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


def _found(
    view_of: ViewOf, stream: bytes, letters: list[tuple[bytes, DeadLetter]], *, watching: bool
) -> Plan[set[bytes]]:
    """Which of these dead letters are there. watching: WATCH the stream as well."""
    registry = yield from read_registry(view_of(Carriage.ALONE), stream)
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
