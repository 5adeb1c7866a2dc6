"""XCLAIM, XAUTOCLAIM, XNACK, and the claims of XREADGROUP: pending entries that change hands."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from braidstream import ids
from braidstream.braid import View, look
from braidstream.commands.arguments import Argv, fail, integer, interval, option, shown, strict_id
from braidstream.commands.pending import NOBODY, Query, Row, no_group, places, rows_of
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Strand

# XREADGROUP CLAIM looks at so many idle entries of each strand to find those idle longest.
SCANNED: Final = 1_000


def claim(view: View, argv: Argv) -> Plan[list[Any]]:
    """XCLAIM: native claims on the strands that may hold the IDs. Two round trips."""
    name, group, consumer = argv[1:4]
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    idle = max(integer(argv[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0)
    at = 5
    while at < len(argv) and ids.parse(argv[at]) is not None:
        at += 1
    options = _parse_claim(argv, at)
    wanted = [strict_id(word) for word in argv[5:at]]
    return (yield from _claim(view, registry.strands, (group, consumer, idle), wanted, options))


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    words: Command = ()
    justid: bool = False
    last: Id | None = None


def _parse_claim(argv: Argv, at: int) -> ClaimOptions:
    words: Command = ()
    justid, last = False, None
    while at < len(argv):
        word, more = option(argv[at]), at + 1 < len(argv)
        if word == b"FORCE":
            words += (word,)
        elif word == b"JUSTID":
            justid, words = True, (*words, word)
        elif word in (b"IDLE", b"TIME", b"RETRYCOUNT") and more:
            value = integer(argv[at + 1], f"ERR Invalid {word.decode()} option argument for XCLAIM")
            words, at = (*words, word, value), at + 1
        elif word == b"LASTID" and more:
            last, at = strict_id(argv[at + 1]), at + 1
        else:
            fail(f"ERR Unrecognized XCLAIM option '{shown(argv[at])}'")
        at += 1
    return ClaimOptions(words, justid, last)


def _claim(
    view: View,
    strands: tuple[Strand, ...],
    who: tuple[bytes, bytes, int],
    wanted: list[Id],
    options: ClaimOptions,
) -> Plan[list[Any]]:
    """Native claims on the strands that may hold the IDs; the answer in the order they were asked for."""
    asked = places(strands, wanted)
    held = [strand for strand, _ in asked]
    if options.last is not None or not asked:
        # The position moves, and the consumer is made, also where none of the IDs can stand.
        idle = strands if options.last is not None else strands[:1]
        asked += [(strand, [b"0-0"]) for strand in idle if strand not in held]
    commands: list[Command] = []
    for strand, here in asked:
        last: Command = () if options.last is None else ("LASTID", ids.text(strand.floor(options.last)))
        commands.append(("XCLAIM", strand.key, *who, *here, *options.words, *last))
    replies = yield Batch(commands, atomic=view.one_step(len(commands)))
    queues = {strand: deque(reply) for (strand, _), reply in zip(asked, replies, strict=True)}
    found = list[Any]()
    for entry in wanted:
        for strand in held:
            native, queue = strand.exact(entry), queues[strand]
            if (
                native is not None
                and queue
                and (queue[0] if options.justid else queue[0][0]) == ids.text(native)
            ):
                taken = queue.popleft()
                found.append(ids.text(entry) if options.justid else [ids.text(entry), taken[1]])
    return found


def claim_idle(view: View, argv: Argv) -> Plan[list[Any]]:
    """XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]: [next, entries, deleted].

    The pending lists of all strands are walked in ID order, as the engine walks one. Three round trips.
    """
    name, group, consumer = argv[1:4]
    idle = max(integer(argv[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    start, _ = interval(argv[5], b"+")
    count, justid, at = 100, False, 6
    while at < len(argv):
        if option(argv[at]) == b"COUNT" and at + 1 < len(argv):
            count, at = integer(argv[at + 1], "ERR COUNT must be > 0"), at + 1
            if count < 1:
                fail("ERR COUNT must be > 0")
        elif option(argv[at]) == b"JUSTID":
            justid = True
        else:
            fail("ERR syntax error")
        at += 1
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    if len(registry.strands) == 1:
        return (
            yield from _claim_idle_natively(
                registry.strands[0], (group, consumer, idle), start, (count, justid)
            )
        )
    attempts = count * 10
    rows = yield from rows_of(view, registry.strands, group, Query(start, ids.LAST, attempts + 1))
    holders = {row.strand for row in rows}
    if len(holders) <= 1:
        holder = next(iter(holders), registry.strands[0])
        return (yield from _claim_idle_natively(holder, (group, consumer, idle), start, (count, justid)))
    gone = yield from _deleted(view, [row for row in rows[:attempts] if row.idle < idle])
    taken, position = list[Row](), 0
    while position < len(rows) and attempts and len(taken) < count:
        attempts -= 1
        if rows[position].idle >= idle or rows[position] in gone:
            taken.append(rows[position])
        position += 1
    following = ids.text(rows[position].id) if position < len(rows) else b"0-0"
    who, words = (group, consumer, idle), ("JUSTID",) if justid else ()
    by_strand = _by_strand(taken) or {registry.strands[0]: [b"0-0"]}
    commands: list[Command] = [
        ("XCLAIM", strand.key, *who, *here, *words) for strand, here in by_strand.items()
    ]
    replies = yield Batch(commands, atomic=view.one_step(len(commands)))
    claimed = {
        (strand, strand.user(ids.native(each if justid else each[0]))): None if justid else each[1]
        for strand, reply in zip(by_strand, replies, strict=True)
        for each in reply
    }
    # What was not claimed is deleted, or another consumer was faster.
    gone |= yield from _deleted(view, [row for row in taken if (row.strand, row.id) not in claimed])
    entries, deleted = list[Any](), list[bytes]()
    for row in taken:
        if row in gone:
            deleted.append(ids.text(row.id))
        elif (row.strand, row.id) in claimed:
            entries.append(ids.text(row.id) if justid else [ids.text(row.id), claimed[row.strand, row.id]])
    return [following, entries, deleted]


def _deleted(view: View, rows: list[Row]) -> Plan[set[Row]]:
    """Which pending rows have no entry any more."""
    commands: list[Command] = []
    for row in rows:
        native = ids.text(row.strand.exact(row.id) or ids.ZERO)
        commands.append(("XRANGE", row.strand.key, native, native))
    replies = (yield Batch(commands, resend=True)) if commands else []
    return {row for row, reply in zip(rows, replies, strict=True) if not reply}


def _by_strand(rows: list[Row]) -> dict[Strand, list[bytes]]:
    found = dict[Strand, list[bytes]]()
    for row in rows:
        found.setdefault(row.strand, []).append(ids.text(row.strand.exact(row.id) or ids.ZERO))
    return found


def claim_idle_entries(
    view: View, strands: tuple[Strand, ...], who: tuple[bytes, bytes, int], count: int | None
) -> Plan[list[Any]]:
    """XREADGROUP CLAIM: pending entries that nobody owns, then those idle longest, for this consumer.

    Each is [id, fields, idle, deliveries], as it was before.
    """
    query = Query(ids.ZERO, ids.LAST, SCANNED, who[2])
    rows = yield from rows_of(view, strands, who[0], query)
    chosen = sorted(rows, key=lambda row: (row.consumer != NOBODY, -row.idle, row.id))[:count]
    by_strand = _by_strand(chosen)
    commands: list[Command] = [
        ("XCLAIM", strand.key, *who, *natives) for strand, natives in by_strand.items()
    ]
    replies = (yield Batch(commands, atomic=view.one_step(len(commands)))) if commands else []
    bodies = {
        (strand, strand.user(ids.native(native))): fields
        for strand, reply in zip(by_strand, replies, strict=True)
        for native, fields in reply
    }
    return [
        [
            ids.text(row.id),
            bodies[row.strand, row.id],
            -1 if row.consumer == NOBODY else row.idle,
            row.deliveries,
        ]
        for row in chosen
        if (row.strand, row.id) in bodies
    ]


def give_back(view: View, argv: Argv) -> Plan[int]:
    """XNACK key group SILENT|FAIL|FATAL IDS numids id ... [RETRYCOUNT n] [FORCE]: how many were given back.

    An entry that is given back belongs to nobody and may be claimed at once. SILENT takes back the
    delivery from its count, FATAL makes the count the largest there is.
    """
    name, group = argv[1], argv[2]
    mode, words, retry, force = _parse_nack(argv)
    wanted = [strict_id(word) for word in words]
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    given = 0
    for strand, here in places(registry.strands, wanted):
        commands: list[Command] = [("XPENDING", strand.key, group, native, native, 1) for native in here]
        replies = yield Batch(commands, resend=True)
        claims: list[Command] = []
        for native, rows in zip(here, replies, strict=True):
            if rows or force:
                count = rows[0][3] if rows else 0
                after = {b"SILENT": max(count - 1, 0), b"FAIL": count}.get(mode, 2**63 - 1)
                number = after if retry is None else retry
                options = ("TIME", 0, "RETRYCOUNT", number, *(("FORCE",) if force else ()), "JUSTID")
                claims.append(("XCLAIM", strand.key, group, NOBODY, 0, native, *options))
        if claims:
            given += sum(map(len, (yield Batch(claims, atomic=view.one_step(len(claims))))))
    return given


def _parse_nack(argv: Argv) -> tuple[bytes, list[bytes], int | None, bool]:
    mode = option(argv[3])
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        fail("ERR mode must be SILENT, FAIL, or FATAL")
    if option(argv[4]) != b"IDS":
        fail("ERR syntax error, expected IDS keyword")
    number = integer(argv[5], "ERR numids must be a positive integer")
    if number < 1:
        fail("ERR numids must be a positive integer")
    words, at = argv[6 : 6 + number], 6 + number
    if len(words) != number:
        fail("ERR number of IDs doesn't match numids")
    retry, force = None, False
    while at < len(argv):
        if option(argv[at]) == b"RETRYCOUNT" and at + 1 < len(argv):
            retry, at = integer(argv[at + 1], "ERR Invalid RETRYCOUNT value, must be >= 0"), at + 1
            if retry < 0:
                fail("ERR Invalid RETRYCOUNT value, must be >= 0")
        elif option(argv[at]) == b"FORCE":
            force = True
        else:
            fail(f"ERR Unrecognized XNACK option '{shown(argv[at])}'")
        at += 1
    return mode, words, retry, force


def _claim_idle_natively(
    strand: Strand, who: tuple[bytes, bytes, int], start: Id, how: tuple[int, bool]
) -> Plan[list[Any]]:
    justid: Command = ("JUSTID",) if how[1] else ()
    native = ids.text(strand.ceil(start))
    [reply] = yield Batch([("XAUTOCLAIM", strand.key, *who, native, "COUNT", how[0], *justid)])
    following, entries, deleted = reply

    def user(text: bytes) -> bytes:
        return ids.text(strand.user(ids.native(text)))

    shown_entries = [user(each) if how[1] else [user(each[0]), each[1]] for each in entries]
    return [
        b"0-0" if following == b"0-0" else user(following),
        shown_entries,
        [user(each) for each in deleted],
    ]


def shares(view: View, argv: Argv) -> bool:
    """Whether XAUTOCLAIM is done in its first batch, once the strands are known."""
    return len(view.recall(argv[1]).strands) <= 1
