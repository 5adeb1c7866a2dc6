"""What one XREADGROUP returns without waiting: new entries, or a consumer's own pending ones again.

New entries (`>`). The group has a position in each strand, so late entries are not skipped.

    one strand                    native XREADGROUP, one round trip
    no COUNT                      native, over all strands
    COUNT, several strands        1. how many come next, from which strand?
                                  2. a native read of each strand with its number, in one MULTI

Step 2 reads numbers of entries, not IDs, so concurrent consumers never make it return more than COUNT: it
returns the entries after those that another consumer got. Each read also names the stream's bell: if a
strand was created since step 1, or a group was moved, the engine refuses the whole read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import isqrt
from typing import Any, Final, TypeVar

from braidstream.commands.arguments import Argv, fail, integer, option, positive, shown, strict_id
from braidstream.commands.claims import claim_idle_entries, native_idle, that_fit
from braidstream.commands.xack import Query, Row, deliveries, rows_of
from braidstream.commands.xgroup import join_command
from braidstream.commands.xread import PEEK, Budget
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model import registry as model_registry
from braidstream.model.ids import Id
from braidstream.model.strand import (
    Command,
    Entry,
    Strand,
    facts,
    merge_certain,
    merge_pages,
    reply_entries,
    strand_of,
)
from braidstream.plan.cache import Reading
from braidstream.plan.lookup import is_stale, refuse_other_types
from braidstream.plan.plan import Batch, Plan, altered
from braidstream.plan.retries import TRIES
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
# The arguments of XREADGROUP, parsed in the engine's order, refused with its error texts.

# Command lines up to this many bytes are cached.
SHORT: Final = 500
NOT_IDLE: Final = "ERR min-idle-time is not an integer or out of range"


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """XREADGROUP, parsed."""

    group: bytes
    consumer: bytes
    names: list[bytes]
    positions: list[bytes]
    count: int | None
    block_ms: int | None
    noack: bool
    claim_ms: int | None = None
    max_count: int | None = None
    max_size: int | None = None
    # Of a partition of a topic: the engine refuses the read if another member has deleted this key.
    hold: tuple[bytes, ...] = ()

    @property
    def limited(self) -> bool:
        """Whether the reply has a cap over all streams, or claims: then native reads are not enough."""
        return self.claim_ms is not None or self.max_count is not None or self.max_size is not None


def parse(argv: Argv) -> ReadGroup | None:
    """The parsed command. A consumer repeats the same words, so short ones are parsed once."""
    return _parsed_before(tuple(argv)) if sum(map(len, argv)) < SHORT else _parse(argv)


@lru_cache(maxsize=1_000)
def _parsed_before(argv: tuple[bytes, ...]) -> ReadGroup | None:
    return _parse(list(argv))


def _parse(argv: Argv) -> ReadGroup | None:
    """XREADGROUP GROUP group consumer [COUNT n] [MAXCOUNT n] [MAXSIZE bytes] [BLOCK ms] [CLAIM min-idle]
    [NOACK] STREAMS key ... id ...

    None if streams and IDs differ in number: engines word that error differently, so the engine answers.
    """
    group = consumer = count = block_ms = claim_ms = max_count = max_size = None
    noack, at = False, 1
    while at < len(argv):
        word, more = option(argv[at]), len(argv) - 1 - at
        if word == b"BLOCK" and more:
            block_ms, at = integer(argv[at + 1], "ERR timeout is not an integer or out of range"), at + 1
            if block_ms < 0:
                fail("ERR timeout is negative")
        elif word == b"COUNT" and more:
            count, at = max(integer(argv[at + 1]), 0) or None, at + 1
        elif word == b"MAXCOUNT" and more:
            max_count, at = positive(argv[at + 1], "MAXCOUNT"), at + 1
        elif word == b"MAXSIZE" and more:
            max_size, at = positive(argv[at + 1], "MAXSIZE"), at + 1
        elif word == b"CLAIM" and more:
            claim_ms, at = integer(argv[at + 1], NOT_IDLE), at + 1
            if claim_ms < 0:
                fail("ERR min-idle-time must be a positive integer")
        elif word == b"GROUP" and more >= 2:
            group, consumer, at = argv[at + 1], argv[at + 2], at + 2
        elif word == b"NOACK":
            noack = True
        elif word == b"STREAMS" and more:
            rest = argv[at + 1 :]
            if len(rest) % 2:
                return None
            if group is None or consumer is None:
                fail("ERR Missing GROUP option for XREADGROUP")
            if max_count is not None and count is not None and max_count < count:
                fail("ERR MAXCOUNT must be greater than or equal to COUNT")
            half = len(rest) // 2
            # The engine's own form of `>` is the largest ID.
            positions = [b">" if ids.parse(word) == ids.LAST else word for word in rest[half:]]
            caps = (claim_ms, max_count, max_size)
            return ReadGroup(group, consumer, rest[:half], positions, count, block_ms, noack, *caps)
        else:
            fail("ERR syntax error")
        at += 1
    return fail("ERR syntax error")


# ----------------------------------------------------------------------------------------------------
#
# The next entries of a group: how many entries of which strands are the next COUNT in ID order.
#
# Finding out takes XINFO GROUPS for the group's positions and XREAD for the entries after them (heads). To
# save that, the client caches both (`Reading` in plan/cache.py) and checks only what may be stale:
#
#     one strand had entries      Do the others still have none? XREAD over them, from the cached positions.
#                                 Positions only move forward, so if there is nothing after an old position,
#                                 there is nothing after the new one: read COUNT of the one strand.
#     several had                 XINFO GROUPS of all, and their heads from the cached positions. If the
#                                 positions are still the same the heads are right, else XREAD again.
#     several had, COUNT 1        Heads only grow. Of the strands whose heads are cached, check the one with
#                                 the smallest head; of the others, check whether they have entries now.
#
# Nothing is delivered here. The read that follows also names the stream's bell: if a strand
# was created since, or a group was moved, the engine refuses. docs/decisions/0008-group-reads-look-first.md
# has figures.

Pages = dict[Strand, list[Entry]]
# COUNT 1 reads the next two entries of a strand: the second is the head for the next call.
AHEAD: Final = 2


def only_busy(view: View, name: bytes, group: bytes) -> tuple[Strand, dict[Strand, Id]] | None:
    """If only one strand had entries last time: that strand, and the group's positions in the others."""
    reading = view.reading(name, group)
    if reading is None or len(reading.busy) != 1:
        return None
    return reading.busy[0], {strand: at for strand, at in reading.at.items() if strand not in reading.busy}


def split_count(view: View, name: bytes, group: bytes, count: int) -> Plan[dict[Strand, int]]:
    """How many entries of each strand are the next COUNT. One round trip, or more.

    If there are none, one strand gets the whole COUNT: a read that finds nothing creates the consumer.
    """
    pages = yield from _heads(view, name, group, count)
    if len(pages) < 2:
        return dict.fromkeys(pages or view.delivered(name, group)[:1], count)
    taken = {id(entry) for entry in merge_certain(pages.values(), ())[:count]}
    numbers = {strand: sum(id(entry) in taken for entry in page) for strand, page in pages.items()}
    return {strand: number for strand, number in numbers.items() if number}


def next_one(view: View, name: bytes, group: bytes) -> Plan[Strand | None]:
    """COUNT 1: the strand of the next entry, if the cache knows it and is current. No round trip, or one."""
    reading = view.reading(name, group)
    known = {} if reading is None else {strand: some[0] for strand, some in reading.ahead.items() if some}
    if reading is None or not known:
        return None
    first = min(known, key=lambda strand: (strand.user(known[strand]), strand.writer))
    checked = {strand: at for strand, at in reading.at.items() if strand == first or strand not in known}
    commands: list[Command] = [_xinfo_groups(first), xread(checked, AHEAD)]
    rows, found = yield Batch(commands, resend=True, attempt=True)
    if isinstance(rows, ReplyError) or isinstance(found, ReplyError):
        return None
    pages = dict(by_strand(found))
    head = tuple(ids.native(entry) for entry, _ in pages.get(first, []))
    if len(pages) != 1 or head[:1] != (known[first],) or _position(rows, group) != reading.at[first]:
        return None
    ahead = {**reading.ahead, first: head}
    view.cache.remember_reading(
        name, group, Reading(reading.bell, reading.at, reading.busy, reading.alone, ahead)
    )
    return first


def note_delivered(view: View, name: bytes, group: bytes, pages: Mapping[Strand, list[Any]]) -> None:
    """Update the cached positions after native reads."""
    known = view.reading(name, group)
    if known is None or not pages:
        return
    at = {**known.at, **{strand: ids.native(page[-1][0]) for strand, page in pages.items()}}
    ahead = {
        strand: rest
        for strand, some in known.ahead.items()
        if (rest := tuple(native for native in some if native > at[strand]))
    }
    busy = tuple(ahead) if len(ahead) == 1 else known.busy
    view.cache.remember_reading(name, group, Reading(known.bell, at, busy, known.alone, ahead))


def positions(view: View, name: bytes, group: bytes) -> Plan[dict[Strand, Id]]:
    """The group's position in each strand, cached if possible. No round trip, or one."""
    reading = view.reading(name, group)
    if reading is not None:
        return reading.at
    at = yield from now(view, name, group)
    view.cache.remember_reading(name, group, Reading(view.recall(name).bell, at, view.delivered(name, group)))
    return at


def now(view: View, name: bytes, group: bytes) -> Plan[dict[Strand, Id]]:
    """The group's current position in each strand. One round trip."""
    at, _ = yield from _look(view, name, group, None)
    return at


def xread(at: Mapping[Strand, Id], count: int, *block: str | int) -> Command:
    """A native XREAD from a position in every strand. It delivers nothing."""
    where = (*(strand.key for strand in at), *(ids.text(native) for native in at.values()))
    return ("XREAD", "COUNT", count, *block, "STREAMS", *where)


def by_strand(reply: list[Any] | None) -> Iterator[tuple[Strand, list[Any]]]:
    """The pages of a native read over strands, without empty ones.

    Redis 7.0 wakes a reader for an entry that is deleted in the same step, and then sends an empty page.
    """
    for key, page in reply or []:
        if page:
            yield strand_of(key), page


def _heads(view: View, name: bytes, group: bytes, count: int) -> Plan[Pages]:
    """At least the next COUNT undelivered entries, or all there are."""
    reading = view.reading(name, group)
    expected = len(reading.busy) if reading is not None else len(view.delivered(name, group))
    even = count // max(expected, 1)
    page = min(even + isqrt(even) + 1, count) if count > 1 else AHEAD
    guess = reading.at if reading is not None and reading.alone else None
    at, found = yield from _look(view, name, group, None if guess is None else xread(guess, page))
    heads = dict(by_strand(found))
    right = guess is not None and all(at[strand] == guess[strand] for strand in heads)
    if not right:
        [found] = yield Batch([xread(at, page)], resend=True)
        heads = dict(by_strand(found))
    pages = {strand: strand.entries(head) for strand, head in heads.items()}
    yield from _read_on(pages, heads, page, count)
    alone = right or reading is None or (guess is None and reading.at == at)
    busy = tuple(pages) or view.delivered(name, group)[:1]
    ahead = {strand: tuple(ids.native(entry) for entry, _ in head) for strand, head in heads.items()}
    memory = Reading(view.recall(name).bell, at, busy, alone, ahead if count == 1 else {})
    view.cache.remember_reading(name, group, memory)
    return pages


def _read_on(pages: Pages, heads: dict[Strand, list[Any]], page: int, count: int) -> Plan[None]:
    """Read further in strands whose page was full: more of their entries may be among the next COUNT."""
    while True:
        full = {strand: head for strand, head in heads.items() if len(head) == page}
        if not full or len(merge_certain(pages.values(), [pages[strand] for strand in full])) >= count:
            return
        ends = {strand: ids.native(head[-1][0]) for strand, head in full.items()}
        [reply] = yield Batch([xread(ends, page)], resend=True)
        heads = dict(by_strand(reply))
        for strand, head in heads.items():
            pages[strand] += strand.entries(head)


def _look(
    view: View, name: bytes, group: bytes, along: Command | None
) -> Plan[tuple[dict[Strand, Id], list[Any] | None]]:
    """The group's position in every strand, and the reply to one more command of the same batch."""
    strands = view.delivered(name, group)
    commands = [_xinfo_groups(strand) for strand in strands]
    more = [] if along is None else [along]
    replies = yield Batch([*commands, *more], resend=True, attempt=True)
    for reply in replies:
        if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
            raise reply
    return _placed(strands, group, replies), replies[-1] if more else None


def _placed(strands: tuple[Strand, ...], group: bytes, replies: list[Any]) -> dict[Strand, Id]:
    at = dict[Strand, Id]()
    for strand, rows in zip(strands, replies, strict=False):
        position = None if isinstance(rows, ReplyError) else _position(rows, group)
        if position is not None:
            at[strand] = position
    if len(at) != len(strands):
        raise ReplyError("NOGROUP the group was destroyed meanwhile")
    return at


def _xinfo_groups(strand: Strand) -> Command:
    return ("XINFO", "GROUPS", strand.key)


def _position(rows: list[Any], group: bytes) -> Id | None:
    """A group's position, from XINFO GROUPS."""
    for row in map(facts, rows):
        if row[b"name"] == group:
            return ids.native(row[b"last-delivered-id"])
    return None


# ----------------------------------------------------------------------------------------------------
#
# Reads of strands in which other regions have acknowledged entries that are still ahead of the group here.
#
# A native group has one position in a strand and cannot leave an entry out. So the engine function
# bs_group_read (lua/ranges.lua) reads the next entries, acknowledges those that another region has
# acknowledged, and returns the others. Once the group is past them, reads are native again. A pipeline
# reads natively, and gets them again.

# The most entries of a strand that the function reads in one call.
PAGE: Final = 1_000

Native = Callable[[Strand, int | None], Command]


def is_passing(view: View, name: bytes, group: bytes) -> bool:
    """Whether the group may have to pass entries over, by the cache."""
    passed = view.recall(name).passes.get(group)
    if not passed or view.carriage.has_looked:
        return False
    return any(strand.registration in passed for strand in view.delivered(name, group))


def read(view: View, spec: ReadGroup, name: bytes, native: Native) -> Plan[dict[Strand, list[Any]]]:
    """New entries of one stream, at most COUNT; none only if there are none. native: reads other strands."""
    found = dict[Strand, list[Any]]()
    while True:
        shares = yield from _shares(view, spec, name)
        passed = view.recall(name).passes.get(spec.group, frozenset[bytes]())
        commands = [
            _function(view, spec, strand, share or PAGE)
            if strand.registration in passed
            else native(strand, share)
            for strand, share in shares.items()
        ]
        try:
            replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
        except ReplyError:
            if found:
                return found  # already delivered, so return it
            raise
        moved, is_full = 0, False
        for strand, reply in zip(shares, replies, strict=True):
            if strand.registration not in passed:
                page = dict(by_strand(reply)).get(strand, [])
                moved += len(page)
            else:
                number, is_ahead, page = reply
                moved, is_full = moved + number, is_full or number == PAGE
                if not is_ahead:
                    view.expect_passed(strand, spec.group)
            if page:
                found.setdefault(strand, []).extend(page)
        if not moved or (found and (spec.count is not None or not is_full)):
            return found
        if spec.max_size is not None:
            spec = replace(spec, count=1)  # what fits was measured by entries that were passed over


def _shares(view: View, spec: ReadGroup, name: bytes) -> Plan[dict[Strand, int | None]]:
    strands = view.delivered(name, spec.group)
    if spec.count is None or len(strands) == 1:
        return dict.fromkeys(strands, spec.count)
    view.cache.forget_reading(name, spec.group)  # the group moves further than by what it returns
    return {**(yield from split_count(view, name, spec.group, spec.count))}


def _function(view: View, spec: ReadGroup, strand: Strand, count: int) -> Command:
    where = (keys.meta(strand.name), strand.key, *spec.hold)
    noack = b"NOACK" if spec.noack else b""
    words = (spec.group, spec.consumer, min(count, PAGE), noack, strand.registration)
    return ("FCALL", "bs_group_read", len(where), *where, *words, view.recall(strand.name).bell)


# ----------------------------------------------------------------------------------------------------
# Delivery

T = TypeVar("T")


def _may_wait(error: ReplyError) -> bool:
    """Whether an error does not count once other entries were delivered: something was deleted since we
    looked, or the server of a stream cannot answer now."""
    return error.code == "NOGROUP" or error.is_away


def look(view: View, spec: ReadGroup, *, turn: bool = False) -> Plan[None]:
    """Read the registries, create the bells (and the turn), and raise the errors that the engine would.

    A pipeline has just read the registries, and uses no bells.
    """
    names = [] if view.carriage.has_looked else list(dict.fromkeys(spec.names))
    for _ in range(TRIES):
        if not names:
            break
        before = [view.recall(name).bell for name in names]
        replies = yield Batch([_wait_command(view, spec, name, turn) for name in names], resend=True)
        found = [view.learn(name, reply) for name, reply in zip(names, replies, strict=True)]
        # The function creates a bell only if our stamp is current: repeat with the new stamp.
        names = [
            name
            for name, stamp, registry in zip(names, before, found, strict=True)
            if spec.group in registry.groups and registry.bell != stamp
        ]
    yield from _check(view, spec)


def _wait_command(view: View, spec: ReadGroup, name: bytes, turn: bool) -> Command:
    stamp = view.recall(name).bell
    turns = [keys.turn(name, spec.group)] if turn else []
    where = [keys.meta(name), *turns, *model_registry.bell(name, stamp)]
    return ("FCALL", "bs_group_wait", len(where), *where, spec.group, stamp)


def bell(view: View, name: bytes) -> list[bytes]:
    """The bell's key: the engine refuses a read that names it if our list of strands is stale."""
    return [] if view.carriage.has_looked else [keys.bell(name, view.recall(name).bell)]


def no_such_group(name: bytes, group: bytes) -> ReplyError:
    where = f"No such key '{shown(name)}' or consumer group '{shown(group)}'"
    return ReplyError(f"NOGROUP {where} in XREADGROUP with GROUP option")


def _check(view: View, spec: ReadGroup) -> Plan[None]:
    """Check each key together with its ID, in the engine's order."""
    for name, word in zip(spec.names, spec.positions, strict=True):
        if not view.recall(name).exists:
            yield from refuse_other_types(name)
        if spec.group not in view.recall(name).groups:
            raise no_such_group(name, spec.group)
        if word == b"$" or word == b"+":
            sign = word.decode()
            fail(
                f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the "
                "history of this consumer by specifying a proper ID, or use the > ID to get new messages. "
                f"The {sign} ID would just return an empty result set."
            )
        if word != b">":
            strict_id(word)


def heal(view: View, spec: ReadGroup) -> Plan[bool]:
    """Create the group on strands that lost it: as after a native XGROUP DESTROY. Whether one lacked it."""
    healed = False
    for name in dict.fromkeys(spec.names):
        join = join_command(view.recall(name), name, spec.group, writer=view.region.writer)
        [reply] = yield Batch([join], attempt=True)
        if isinstance(reply, ReplyError) and not is_stale(reply):
            raise incomplete(spec) from reply
        healed = healed or bool(reply)
    return healed


def incomplete(spec: ReadGroup) -> ReplyError:
    """The error if a read fails although the group exists and nothing changes."""
    names = ", ".join(repr(shown(name)) for name in dict.fromkeys(spec.names))
    lost = f"a strand of {names} lacks the consumer group '{shown(spec.group)}' on this server"
    return ReplyError(f"ERR {lost}, so nothing was read. Check the region: braid status")


def read_all(view: View, spec: ReadGroup) -> Plan[list[Any]]:
    """Read each stream in turn, with the cached strands."""
    answer, budget, taken = list[Any](), Budget(spec.max_count, spec.max_size), False
    for name, word in zip(spec.names, spec.positions, strict=True):
        if budget.spent:
            break
        if word == b">":
            reads = _new_and_claimed(view, spec, name, budget)
            try:
                found = yield from (_optional(reads) if taken else reads)
            except ReplyError as error:
                if not taken or not _may_wait(error):
                    raise
                return answer  # already delivered, so return it; the next call looks again, or fails
            taken = taken or bool(found)
            if found is not None:
                answer.append([name, found])
        else:
            spec = replace(spec, claim_ms=None)  # like the engine, claim nothing from here on
            answer.append([name, (yield from _history(view, spec, name, strict_id(word), budget))])
    return answer


def _optional(plan: Plan[T]) -> Plan[T]:
    """The same plan, with an error with the code LOST if a connection is lost."""
    return altered(plan, lambda batch: replace(batch, optional=True))


def xreadgroup(
    spec: ReadGroup,
    where: Iterable[bytes],
    count: int | None,
    block_ms: int | None = None,
    *,
    claim_ms: int | None = None,
) -> Command:
    """A native read of new entries, at most `count` of each key."""
    limit: Command = () if count is None else ("COUNT", count)
    block: Command = () if block_ms is None else ("BLOCK", block_ms)
    claim: Command = () if claim_ms is None else ("CLAIM", claim_ms)
    options = (*limit, *block, *claim, *(("NOACK",) if spec.noack else ()))
    listed = list(where)
    streams = (*listed, *([b">"] * len(listed)))
    return ("XREADGROUP", "GROUP", spec.group, spec.consumer, *options, "STREAMS", *streams)


def merged(pages: Mapping[Strand, list[Any]]) -> list[Entry]:
    """Replies of native reads, in ID order."""
    return merge_pages([strand.entries(page) for strand, page in pages.items()])


def as_reply(pages: Mapping[Strand, list[Any]]) -> list[Any]:
    """Replies of native reads as the user gets them, in ID order."""
    if len(pages) == 1:
        [(strand, page)] = pages.items()
        return strand.reply(page)
    return reply_entries(merged(pages))


def _new_and_claimed(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[list[Any] | None]:
    """Entries for `>`: with CLAIM, idle pending entries first, each with its idle time and deliveries.

    None if there are none.
    """
    if not spec.limited:
        return as_reply((yield from new(view, spec, name))) or None
    budget.begin(name)
    found: list[Any] | None
    if budget.spent:
        found = yield from _empty_page(view, spec, name)
    elif claims_natively(view, spec):
        found = (yield from _with_claims(view, spec, name, budget)) or None
    else:
        found = (yield from _limited(view, spec, name, budget)) or None
    budget.end(None if found is None else len(found))
    return found


def claims_natively(view: View, spec: ReadGroup) -> bool:
    """Whether to use the engine's own CLAIM (engines with XNACK have it): for one strand; for several only
    inside MULTI, where there is no other way, and without COUNT, so that all idle entries are claimed."""
    if spec.claim_ms is None or spec.max_size is not None or b"XNACK" not in view.cache.commands:
        return False
    if any(is_passing(view, name, spec.group) for name in spec.names):
        return False
    unlimited = view.carriage.is_multi and spec.count is None and spec.max_count is None
    return unlimited or all(_is_one_strand(view, name, spec.group) for name in spec.names)


def _is_one_strand(view: View, name: bytes, group: bytes) -> bool:
    """Whether new and pending entries of a group are in one strand at most."""
    delivered = view.delivered(name, group)
    return len(delivered) <= 1 and delivered == view.owned(name, group)


def _with_claims(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[list[Any]]:
    strands = view.delivered(name, spec.group)
    if not strands:
        yield from new(view, spec, name)
        return []
    where = [*(strand.key for strand in strands), *bell(view, name)]
    read = xreadgroup(spec, where, budget.cap(spec.count), claim_ms=spec.claim_ms)
    reply, now = yield Batch([read, ("TIME",)])
    claimed, fresh = list[Any](), list[Any]()
    for strand, page in by_strand(reply):
        for native, fields, idle, count in page:
            is_new = idle == count == 0
            since = native_idle(idle, now)
            row = [strand.user(ids.native(native)), fields, since, deliveries(count, strand)]
            (fresh if is_new else claimed).append(row)
    if len(strands) > 1:
        claimed.sort(key=lambda row: (-row[2], row[0]))
        fresh.sort(key=lambda row: row[0])
    found = [[ids.text(row[0]), *row[1:]] for row in claimed + fresh]
    budget.used += len(found)
    return found


def _limited(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[list[Any]]:
    found = list[Any]()
    if spec.claim_ms is not None:
        who = (spec.group, spec.consumer, spec.claim_ms)
        found = yield from claim_idle_entries(view, view.owned(name, spec.group), who, spec.count, budget)
    left = budget.cap(None if spec.count is None else spec.count - len(found))
    if left == 0 or budget.spent:
        return found
    extra = [0, 0] if spec.claim_ms is not None else []
    if budget.size is not None:
        left = yield from _how_many_fit(view, replace(spec, count=left), name, budget)
    reads = new(view, replace(spec, count=left), name)
    try:
        fresh = as_reply((yield from (_optional(reads) if found else reads)))
    except ReplyError as error:
        if not found or not _may_wait(error):
            raise
        return found  # already claimed, so return it
    if budget.size is None:
        budget.used += len(fresh)
    return found + [[*entry, *extra] for entry in fresh]


def _any_strand(view: View, spec: ReadGroup, name: bytes) -> Strand:
    """Of the stream; an error if the registry has lost all of them."""
    strands = view.recall(name).strands
    if not strands:
        raise incomplete(spec)
    return strands[0]


def _empty_page(view: View, spec: ReadGroup, name: bytes) -> Plan[list[Any] | None]:
    """The stream's name alone filled MAXSIZE. Like the engine, create the consumer and return no
    entries; None if there were none to return."""
    strands, last = view.owned(name, spec.group), ids.before(ids.LAST)
    assert last is not None
    at = yield from now(view, name, spec.group)
    made = _xreadgroup_own(spec, _any_strand(view, spec, name), last, 1)
    looks = [xread(at, 1)] if at else []
    replies = yield Batch([*looks, made])
    reply = replies[0] if at else None
    if not reply and spec.claim_ms is not None:
        rows = yield from rows_of(view, strands, spec.group, Query(ids.ZERO, ids.LAST, PEEK, spec.claim_ms))
        reply = yield from that_fit(rows, Budget(1, None), claimed=True)
    return [] if reply else None


def _how_many_fit(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[int]:
    """MAXSIZE: read the next entries with XREAD first, because a delivery cannot be undone."""
    at = yield from now(view, name, spec.group)
    if not at:
        return 1
    page = min(spec.count or PEEK, PEEK)
    [reply] = yield Batch([xread(at, page)], resend=True)
    if not reply:
        return 1  # a read that finds nothing creates the consumer
    numbers = () if spec.claim_ms is None else (0, 0)
    return len(budget.take(merged(dict(by_strand(reply)))[:page], *numbers))


def new(view: View, spec: ReadGroup, name: bytes) -> Plan[dict[Strand, list[Any]]]:
    """New entries of one stream, by strand."""
    strands = view.delivered(name, spec.group)
    if not strands:
        # This region delivers no strand of the stream. The read creates the consumer, and the other one is
        # refused when that has changed.
        none = _xreadgroup_own(spec, _any_strand(view, spec, name), ids.before(ids.LAST) or ids.ZERO, 1)
        bells = bell(view, name)
        yield Batch([none, xreadgroup(spec, bells, 1)] if bells else [none])
        return {}
    if is_passing(view, name, spec.group):
        native = partial(_xreadgroup_one, spec, [*bell(view, name), *spec.hold])
        return (yield from read(view, spec, name, native))
    if spec.count is None or len(strands) == 1:
        where = [*(strand.key for strand in strands), *bell(view, name)]
        [reply] = yield Batch([xreadgroup(spec, where, spec.count)])
        return dict(by_strand(reply))
    one_busy, pages = only_busy(view, name, spec.group), None
    if one_busy is not None:
        pages = yield from _read_only_busy_strand(view, spec, *one_busy)
    elif spec.count == 1:
        pages = yield from _next_one(view, spec, name)
    if pages is None:
        shares = yield from split_count(view, name, spec.group, spec.count)
        bells = bell(view, name)
        commands = [xreadgroup(spec, [strand.key, *bells], share) for strand, share in shares.items()]
        replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
        pages = dict(page for reply in replies for page in by_strand(reply))
    note_delivered(view, name, spec.group, pages)
    return pages


def _xreadgroup_one(spec: ReadGroup, bells: list[bytes], strand: Strand, count: int | None) -> Command:
    return xreadgroup(spec, [strand.key, *bells], count)


def _read_only_busy_strand(
    view: View, spec: ReadGroup, busy: Strand, others: dict[Strand, Id]
) -> Plan[dict[Strand, list[Any]] | None]:
    """COUNT entries of one strand, if the others have none after these positions; else None, nothing read."""
    [news] = yield Batch([xread(others, 1)], resend=True)
    return None if news else (yield from _read_strand(view, spec, busy))


def _next_one(view: View, spec: ReadGroup, name: bytes) -> Plan[dict[Strand, list[Any]] | None]:
    """COUNT 1, if the cache knows the strand of the next entry; else None, nothing read."""
    strand = yield from next_one(view, name, spec.group)
    return None if strand is None else (yield from _read_strand(view, spec, strand))


def _read_strand(view: View, spec: ReadGroup, strand: Strand) -> Plan[dict[Strand, list[Any]]]:
    """COUNT entries of one strand."""
    [reply] = yield Batch([xreadgroup(spec, [strand.key, *bell(view, strand.name)], spec.count)])
    return dict(by_strand(reply))


def _history(view: View, spec: ReadGroup, name: bytes, since: Id, budget: Budget) -> Plan[list[Any]]:
    """The consumer's own pending entries after an ID, in ID order; [id, nil] for one that was deleted."""
    strands, count = view.owned(name, spec.group), budget.cap(spec.count)
    budget.begin(name)
    if not strands:
        budget.end(0)
        return []
    shares: dict[Strand, int | None] = dict.fromkeys(strands, count)
    if (count is not None and len(strands) > 1) or budget.size is not None:
        rows = yield from _own(view, replace(spec, count=count), strands, since)
        if budget.size is not None:
            rows = yield from that_fit(rows[:PEEK], budget, claimed=False)
        shares = {strand: share for strand in strands if (share := sum(row.strand == strand for row in rows))}
        if not shares:
            # No entries, but the read creates the consumer.
            shares, since = dict.fromkeys(strands[:1], count), ids.before(ids.LAST) or since
    commands = [_xreadgroup_own(spec, strand, since, share) for strand, share in shares.items()]
    replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
    found = reply_entries(merged(dict(page for reply in replies for page in by_strand(reply))))
    budget.used += len(found) if budget.size is None else 0
    budget.end(len(found))
    return found


def _xreadgroup_own(spec: ReadGroup, strand: Strand, since: Id, count: int | None) -> Command:
    """A native read of the consumer's own pending entries."""
    limit: Command = () if count is None else ("COUNT", count)
    where = (strand.key, ids.text(strand.floor(since)))
    return ("XREADGROUP", "GROUP", spec.group, spec.consumer, *limit, "STREAMS", *where)


def _own(view: View, spec: ReadGroup, strands: tuple[Strand, ...], since: Id) -> Plan[list[Row]]:
    start = ids.after(since)
    if start is None:
        return []
    most = PEEK if spec.count is None else spec.count
    query = Query(start, ids.LAST, most, consumer=spec.consumer)
    rows = yield from rows_of(view, strands, spec.group, query)
    return rows[:most]
