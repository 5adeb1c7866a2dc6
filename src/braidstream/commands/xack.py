"""XACK and XPENDING, natively on each strand: what was delivered and is not yet acknowledged."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from braidstream.commands.arguments import Argv, fail, integer, interval, option, shown, strict_ids
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand
from braidstream.plan.lookup import find_registry, look, refuse_other_types, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# The owner of an entry returned by XNACK: a consumer that no client uses. Users see an empty name.
STAND_IN: Final = b"\0" + keys.PREFIX + b"nobody"
# XNACK FATAL: the largest delivery count. The engine stores a smaller one, which it can still increment.
MOST_DELIVERIES: Final = 2**63 - 1
FATAL: Final = 2**62
# Redelivered by TREAD with RETRY: `<expiry in ms> * 1024 + <deliveries>`; before version 27 the expiry alone.
_EXPIRING: Final = 10**9
_SHARED: Final = 2**50
_SHARE: Final = 1024


class Row(NamedTuple):
    """One row of XPENDING; it sorts by ID."""

    id: Id
    writer: int
    strand: Strand
    consumer: bytes
    idle: int
    deliveries: int

    @property
    def is_given_back(self) -> bool:
        """Whether XNACK returned it: to the stand-in, or natively (then it has no owner and no time)."""
        return self.consumer == STAND_IN or self.idle < 0


def deliveries(count: int, strand: Strand) -> int:
    """A delivery count as users see it. That of an entry of a log may contain a time (lua/log_group.lua)."""
    if FATAL // 2 <= count < FATAL + FATAL // 2:
        return MOST_DELIVERIES
    if strand.is_of_log and count > _EXPIRING:
        return count % _SHARE if count >= _SHARED else 2
    return count


def no_group(name: bytes, group: bytes) -> NoReturn:
    fail(f"NOGROUP No such key '{shown(name)}' or consumer group '{shown(group)}'")


def acknowledge(view: View, argv: Argv) -> Plan[int]:
    """XACK: acknowledges in the strands that may contain each ID. One round trip if they are cached."""
    name, group = argv[1], argv[2]
    try:
        wanted = strict_ids(argv[3:])
    except ReplyError:
        registry = yield from look(view, name)
        if group in registry.groups:
            raise
        return 0
    replies = yield from send_to_holders(
        view, name, wanted, lambda strand, here: [("XACK", strand.key, group, *here)]
    )
    return sum(replies)


def send_to_holders(
    view: View, name: bytes, wanted: list[Id], make: Callable[[Strand, list[bytes]], list[Command]]
) -> Plan[list[Any]]:
    """Send commands to every strand that may contain some of the IDs; returns the replies. One round trip if
    the strands are cached, and another for strands created since."""
    found, done = list[Any](), set[Strand]()
    strands = (yield from find_registry(view, name)).strands
    if not strands:
        yield from refuse_other_types(name)
    while strands:
        commands = [command for strand, here in places(strands, wanted) for command in make(strand, here)]
        replies = yield Batch([*commands, registry_of(name)], atomic=view.carriage.one_step(len(commands)))
        found += replies[:-1]
        done.update(strands)
        registry = view.learn(name, replies[-1])
        strands = tuple(strand for strand in registry.strands if strand not in done)
        if not registry.exists:
            yield from refuse_other_types(name)
    return found


def places(strands: Iterable[Strand], wanted: list[Id]) -> list[tuple[Strand, list[bytes]]]:
    """The strands that may contain some of the IDs, each with those as native IDs."""
    found = [(strand, strand.native_texts(wanted)) for strand in strands]
    return [(strand, here) for strand, here in found if here]


def pending(view: View, argv: Argv) -> Plan[list[Any]]:
    """XPENDING key group [[IDLE min-idle] start end count [consumer]]. Two round trips."""
    if len(argv) != 3 and not 6 <= len(argv) <= 9:
        fail("ERR syntax error")
    name, group = argv[1], argv[2]
    query = _parse_pending(argv) if len(argv) > 3 else None
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    strands = registry.owned(group, view.region)
    try:
        if query is None:
            return (yield from _summary(view, strands, group))
        rows = yield from rows_of(view, strands, group, query)
    except ReplyError as error:
        if error.code != "NOGROUP":  # it was deleted in the same MULTI
            raise
        no_group(name, group)
    return [
        [ids.text(row.id), b"", -1, row.deliveries]
        if row.is_given_back
        else [ids.text(row.id), row.consumer, row.idle, row.deliveries]
        for row in rows[: query.count]
    ]


@dataclass(frozen=True, slots=True)
class Query:
    """The extended form of XPENDING."""

    start: Id
    end: Id
    count: int
    idle: int = 0
    consumer: bytes | None = None


def _parse_pending(argv: Argv) -> Query:
    at, idle = 3, 0
    if option(argv[3]) == b"IDLE":
        idle = integer(argv[4])
        if len(argv) < 8:
            fail("ERR syntax error")
        at = 5
    count = max(integer(argv[at + 2]), 0)
    start, end = interval(argv[at], argv[at + 1])
    return Query(start, end, count, idle, argv[at + 3] if len(argv) > at + 3 else None)


def rows_of(view: View, strands: tuple[Strand, ...], group: bytes, query: Query) -> Plan[list[Row]]:
    """Pending entries of every strand, in ID order."""
    if not strands:
        return []
    idle: Command = ("IDLE", query.idle) if query.idle else ()
    who: Command = () if query.consumer is None else (query.consumer,)
    commands: list[Command] = []
    for strand in strands:
        low, high = ids.text(strand.ceil(query.start)), ids.text(strand.floor(query.end))
        commands.append(("XPENDING", strand.key, group, *idle, low, high, query.count, *who))
    replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)), resend=True)
    rows = [
        Row(strand.user(ids.native(entry)), strand.writer, strand, consumer, since, deliveries(count, strand))
        for strand, reply in zip(strands, replies, strict=True)
        for entry, consumer, since, count in reply
    ]
    return sorted(rows, key=lambda row: row[:2])


def _summary(view: View, strands: tuple[Strand, ...], group: bytes) -> Plan[list[Any]]:
    if not strands:
        return [0, None, None, None]
    commands: list[Command] = [("XPENDING", strand.key, group) for strand in strands]
    replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)), resend=True)
    total, consumers = 0, dict[bytes, int]()
    first, last = list[Id](), list[Id]()
    for strand, (count, low, high, each) in zip(strands, replies, strict=True):
        if count:
            total += count
            first.append(strand.user(ids.native(low)))
            last.append(strand.user(ids.native(high)))
            for consumer, number in each:
                consumers[consumer] = consumers.get(consumer, 0) + int(number)
    if not total:
        return [0, None, None, None]
    consumers.pop(STAND_IN, None)
    counts = [[consumer, b"%d" % number] for consumer, number in sorted(consumers.items())]
    return [total, ids.text(min(first)), ids.text(max(last)), counts]
