"""XCLAIM, XAUTOCLAIM, XREADGROUP CLAIM, XNACK: pending entries get a new owner, or none."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from braidstream.commands.arguments import (
    Argv,
    fail,
    integer,
    interval,
    option,
    options,
    shown,
    strict_id,
    strict_ids,
)
from braidstream.commands.xack import FATAL, MOST_DELIVERIES, STAND_IN, Query, Row, no_group, places, rows_of
from braidstream.commands.xread import PEEK, Budget
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand
from braidstream.plan.lookup import look, ms_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# XREADGROUP CLAIM reads up to this many idle entries of each strand to find those idle longest.
SCANNED: Final = 1_000
# An entry returned by XNACK gets an idle time of fifty years: more than any min-idle, and in order of return.
GIVEN_BACK_MS: Final = 50 * 365 * 24 * 3600 * 1000
# About how many milliseconds it is since 1970: as many digits.
SINCE_1970_MS: Final = 10**12
# Options, and how many words follow each.
_CLAIM_OPTIONS: Final = {b"FORCE": 0, b"JUSTID": 0, b"IDLE": 1, b"TIME": 1, b"RETRYCOUNT": 1, b"LASTID": 1}
# The largest COUNT of XAUTOCLAIM: the engine allocates an ID for each.
_MOST_CLAIMED: Final = (2**63 - 1) // 16


def claim(view: View, argv: Argv) -> Plan[list[Any]]:
    """XCLAIM: native claims on the strands that may contain the IDs. Two round trips."""
    name, group, consumer = argv[1:4]
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    idle = max(integer(argv[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0)
    at = 5
    while at < len(argv) and ids.parse(argv[at]) is not None:
        at += 1
    options = _parse_claim(argv, at)
    wanted = strict_ids(argv[5:at])
    strands = registry.owned(group, view.region)
    if not strands:
        return []
    try:
        return (yield from _claim(view, strands, (group, consumer, idle), wanted, options))
    except ReplyError as error:
        if error.code != "NOGROUP":  # it was deleted in the same MULTI
            raise
        no_group(name, group)


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    words: Command = ()
    justid: bool = False
    last: Id | None = None


def _parse_claim(argv: Argv, at: int) -> ClaimOptions:
    words: Command = ()
    justid, last = False, None
    for word, value in options(argv, at, _CLAIM_OPTIONS, "ERR Unrecognized XCLAIM option '{}'"):
        if not _CLAIM_OPTIONS[word]:
            justid, words = justid or word == b"JUSTID", (*words, word)
        elif word == b"LASTID":
            last = strict_id(value)
        else:
            error = f"ERR Invalid {word.decode()} option argument for XCLAIM"
            words = (*words, word, integer(value, error))
    return ClaimOptions(words, justid, last)


def _claim(
    view: View,
    strands: tuple[Strand, ...],
    who: tuple[bytes, bytes, int],
    wanted: list[Id],
    options: ClaimOptions,
) -> Plan[list[Any]]:
    """Native claims on the strands that may contain the IDs; the answer in the order of the IDs."""
    targets = places(strands, wanted)
    held = [strand for strand, _ in targets]
    if options.last is not None or not targets:
        # LASTID moves the position in every strand, and a claim without hits still creates the consumer.
        idle = strands if options.last is not None else strands[:1]
        targets += [(strand, [b"0-0"]) for strand in idle if strand not in held]
    commands: list[Command] = []
    for strand, here in targets:
        last: Command = () if options.last is None else ("LASTID", ids.text(strand.floor(options.last)))
        commands.append(("XCLAIM", strand.key, *who, *here, *options.words, *last))
    replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
    queues = {strand: deque(reply) for (strand, _), reply in zip(targets, replies, strict=True)}
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
    count, justid = 100, False
    for word, value in options(argv, 6, {b"COUNT": 1, b"JUSTID": 0}):
        if word == b"JUSTID":
            justid = True
        else:
            count = integer(value, "ERR COUNT must be > 0")
            if not 0 < count <= _MOST_CLAIMED:
                fail("ERR COUNT must be > 0")
    registry = yield from look(view, name)
    if len(registry.strands) > 1:
        view.will_continue()
    if group not in registry.groups:
        no_group(name, group)
    strands = registry.owned(group, view.region)
    if not strands:
        return [b"0-0", [], []]
    if len(strands) == 1:
        return (yield from _claim_idle_natively(strands[0], (group, consumer, idle), start, (count, justid)))
    attempts = count * 10
    rows = yield from rows_of(view, strands, group, Query(start, ids.LAST, attempts + 1))
    holders = {row.strand for row in rows}
    if len(holders) <= 1:
        holder = next(iter(holders), strands[0])
        return (yield from _claim_idle_natively(holder, (group, consumer, idle), start, (count, justid)))
    young = [row for row in rows[:attempts] if row.idle < idle and not row.is_given_back]
    gone = yield from _deleted(young)
    taken, position = list[Row](), 0
    while position < len(rows) and attempts and len(taken) < count:
        attempts -= 1
        row = rows[position]
        if row.is_given_back or row.idle >= idle or row in gone:
            taken.append(row)
        position += 1
    following = ids.text(rows[position].id) if position < len(rows) else b"0-0"
    who, words = (group, consumer, idle), ("JUSTID",) if justid else ()
    by_strand = _by_strand(taken) or {strands[0]: [b"0-0"]}
    commands: list[Command] = [
        ("XCLAIM", strand.key, *who, *here, *words) for strand, here in by_strand.items()
    ]
    replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
    claimed = {
        (strand, strand.user(ids.native(each if justid else each[0]))): None if justid else each[1]
        for strand, reply in zip(by_strand, replies, strict=True)
        for each in reply
    }
    # A row that was not claimed is deleted, or another consumer was faster.
    gone |= yield from _deleted([row for row in taken if (row.strand, row.id) not in claimed])
    entries, deleted = list[Any](), list[bytes]()
    for row in taken:
        if row in gone:
            deleted.append(ids.text(row.id))
        elif (row.strand, row.id) in claimed:
            entries.append(ids.text(row.id) if justid else [ids.text(row.id), claimed[row.strand, row.id]])
    return [following, entries, deleted]


def _deleted(rows: list[Row]) -> Plan[set[Row]]:
    """Which pending rows have no entry any more."""
    replies = (yield Batch([_xrange(row) for row in rows], resend=True)) if rows else []
    return {row for row, reply in zip(rows, replies, strict=True) if not reply}


def _xrange(row: Row) -> Command:
    """The entry of a pending row, if it is still there."""
    native = ids.text(row.strand.exact(row.id) or ids.ZERO)
    return ("XRANGE", row.strand.key, native, native)


def _by_strand(rows: list[Row]) -> dict[Strand, list[bytes]]:
    found = dict[Strand, list[bytes]]()
    for row in rows:
        found.setdefault(row.strand, []).append(ids.text(row.strand.exact(row.id) or ids.ZERO))
    return found


def claim_idle_entries(
    view: View, strands: tuple[Strand, ...], who: tuple[bytes, bytes, int], count: int | None, budget: Budget
) -> Plan[list[Any]]:
    """XREADGROUP CLAIM: pending entries without an owner, then those idle longest, for this consumer.

    Each is [id, fields, idle, deliveries] from before the claim. A deleted entry is skipped.
    """
    query = Query(ids.ZERO, ids.LAST, SCANNED, who[2])
    rows = yield from rows_of(view, strands, who[0], query)
    # For entries that a native XNACK returned, the engine keeps no order.
    waiting = sorted(rows, key=lambda row: (not row.is_given_back, row.idle >= 0, -row.idle, row.id))
    found = list[Any]()
    while waiting and not budget.spent:
        room = budget.cap(None if count is None else count - len(found))
        if room == 0:
            break
        part = waiting[:room] if budget.size is None else waiting[: min(room or PEEK, PEEK)]
        chosen = yield from that_fit(part, budget, claimed=True)
        found += yield from _claim_rows(view, chosen, who)
        waiting = waiting[len(part) :]
    return found


def that_fit(rows: list[Row], budget: Budget, *, claimed: bool) -> Plan[list[Row]]:
    """Read the entries before claiming them; return as many rows as fit into the reply.

    claimed: leave deleted entries out; else they count as [id, nil].
    """
    pages = (yield Batch([_xrange(row) for row in rows], resend=True)) if rows else []
    chosen = list[Row]()
    for row, page in zip(rows, pages, strict=True):
        if not page and claimed:
            continue
        idle = SINCE_1970_MS if row.is_given_back else row.idle
        numbers = (idle, row.deliveries) if claimed else ()
        if not budget.fits(ids.text(row.id), page[0][1] if page else None, *numbers):
            break
        chosen.append(row)
    return chosen


def native_idle(idle: int, now: list[bytes]) -> int:
    """The idle time for the user; since 1970 if the entry was owned by the stand-in consumer."""
    has_stand_in = GIVEN_BACK_MS * 99 // 100 < idle < GIVEN_BACK_MS * 11 // 10
    return ms_of(now) if has_stand_in else idle


def _claim_rows(view: View, rows: list[Row], who: tuple[bytes, bytes, int]) -> Plan[list[Any]]:
    by_strand = _by_strand(rows)
    commands: list[Command] = [
        ("XCLAIM", strand.key, *who, *natives) for strand, natives in by_strand.items()
    ]
    if any(row.is_given_back for row in rows):
        commands.append(("TIME",))  # such an entry is idle since 1970, as in the engine
    replies = (yield Batch(commands, atomic=view.carriage.one_step(len(commands)))) if commands else []
    now_ms = ms_of(replies[-1]) if len(replies) > len(by_strand) else 0
    bodies = {
        (strand, strand.user(ids.native(native))): fields
        for strand, reply in zip(by_strand, replies, strict=False)
        for native, fields in reply
    }
    return [
        [
            ids.text(row.id),
            bodies[row.strand, row.id],
            now_ms if row.is_given_back else row.idle,
            row.deliveries,
        ]
        for row in rows
        if (row.strand, row.id) in bodies
    ]


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


# ----------------------------------------------------------------------------------------------------
#
# XNACK: consumers return pending entries to the group.
#
# A returned entry has no owner and can be claimed at once, in the order of return. With one strand the
# engine's own XNACK is used, if it has one. Else the entries are claimed for a stand-in consumer, with an
# idle time of about fifty years that keeps the order over all strands.


@dataclass(frozen=True, slots=True)
class Nack:
    """XNACK, parsed."""

    mode: bytes
    ids: list[Id]
    retry: int | None
    force: bool

    def deliveries(self, count: int, most: int) -> int:
        """The new delivery count; `most` is the largest."""
        if self.retry is not None:
            return min(self.retry, most)
        return {b"SILENT": max(count - 1, 0), b"FAIL": count}.get(self.mode, most)

    def native(self, strand: Strand, group: bytes, natives: list[bytes]) -> Command:
        retry: Command = () if self.retry is None else ("RETRYCOUNT", self.retry)
        force: Command = ("FORCE",) if self.force else ()
        return ("XNACK", strand.key, group, self.mode, "IDS", len(natives), *natives, *retry, *force)


def give_back(view: View, argv: Argv) -> Plan[int]:
    """XNACK: returns entries to the group. The reply is their number.

    SILENT decrements the delivery count, FATAL sets it to the maximum. Two or three round trips.
    """
    name, group = argv[1], argv[2]
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    nack = _parse(argv)
    if b"XNACK" in view.cache.commands and len(registry.strands) == 1:
        [strand] = registry.strands
        natives = [ids.text(native) for entry in nack.ids if (native := strand.exact(entry)) is not None]
        return sum((yield Batch([nack.native(strand, group, natives)]))) if natives else 0
    view.will_continue()
    places = [
        (strand, ids.text(native))
        for entry in nack.ids
        for strand in registry.strands
        if (native := strand.exact(entry)) is not None
    ]
    looks = list[Command]()
    for strand, text in places:
        looks += [("XPENDING", strand.key, group, text, text, 1), ("XRANGE", strand.key, text, text)]
    replies = (yield Batch(looks, resend=True)) if looks else []
    return (
        yield from _to_stand_in(
            view, group, nack, list(zip(places, replies[::2], replies[1::2], strict=True))
        )
    )


def _to_stand_in(
    view: View, group: bytes, nack: Nack, found: list[tuple[tuple[Strand, bytes], list[Any], list[Any]]]
) -> Plan[int]:
    """Claim entries for the stand-in consumer. `found`: place, pending row and entry of each ID.

    A claim of a deleted entry would remove it from the pending list, so it stays with its consumer, unless
    the engine has XNACK.
    """
    native = b"XNACK" in view.cache.commands
    most = MOST_DELIVERIES if native else FATAL  # an engine with XNACK does not count beyond that
    commands, counts, returned = list[Command](), dict[tuple[Strand, bytes], int](), 0
    for at, (place, rows, there) in enumerate(found):
        if not rows and not (nack.force and there):
            continue
        returned += 1
        strand, text = place
        if there:
            counts[place] = nack.deliveries(counts.get(place, rows[0][3] if rows else 0), most)
            since: Command = ("IDLE", GIVEN_BACK_MS - at, "RETRYCOUNT", counts[place])
            force = ("FORCE",) if nack.force else ()
            commands.append(("XCLAIM", strand.key, group, STAND_IN, 0, text, *since, *force, "JUSTID"))
        elif native:
            commands.append(nack.native(strand, group, [text]))
    if commands:
        yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
    return returned


def _parse(argv: Argv) -> Nack:
    mode = option(argv[3])
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        fail("ERR mode must be SILENT, FAIL, or FATAL")
    words, retry, force, at = None, None, False, 4
    while at < len(argv):
        word, more = option(argv[at]), at + 1 < len(argv)
        if word == b"IDS" and more:
            number = integer(argv[at + 1], "ERR numids must be a positive integer")
            if not 1 <= number < 2**31:
                fail("ERR numids must be a positive integer")
            words, at = argv[at + 2 : at + 2 + number], at + 1 + number
            if len(words) != number:
                fail("ERR number of IDs doesn't match numids")
        elif word == b"FORCE":
            force = True
        elif word == b"RETRYCOUNT" and more:
            retry, at = integer(argv[at + 1]), at + 1
            if retry < 0:
                fail("ERR Invalid RETRYCOUNT value, must be >= 0")
        else:
            fail(f"ERR Unrecognized XNACK option '{shown(argv[at])}'")
        at += 1
    if words is None:
        fail("ERR syntax error, expected IDS keyword")
    return Nack(mode, strict_ids(words), retry, force)
