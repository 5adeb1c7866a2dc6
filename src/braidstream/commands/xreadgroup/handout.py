"""What one XREADGROUP returns without waiting: new entries, or a consumer's own pending ones again.

New entries (`>`). The group has a position in each strand, so late entries are not skipped.

    one strand                    native XREADGROUP, one round trip
    no COUNT                      native, over all strands
    COUNT, several strands        1. how many of which strand come next? (heads.py)
                                  2. a native read of each strand with its number, in one MULTI

Step 2 reads numbers of entries, not IDs, so concurrent consumers never make it return more than COUNT: it
returns the entries after those that another consumer got. Each read also names the stream's bell: if a
strand was created since step 1, or a group was moved, the engine refuses the whole read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from braidstream.commands.arguments import fail, shown, strict_id
from braidstream.commands.budget import PEEK, Budget
from braidstream.commands.groups.claims import claim_idle_entries, native_idle, that_fit
from braidstream.commands.groups.pending import Query, Row, deliveries, rows_of
from braidstream.commands.groups.xgroup import join_command
from braidstream.commands.xreadgroup import heads, passing
from braidstream.commands.xreadgroup.group_arguments import ReadGroup
from braidstream.errors import ReplyError
from braidstream.model import ids, keys, meta
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.merge import merge_pages, reply_entries
from braidstream.model.strand import Entry, Strand
from braidstream.protocol.lookup import is_stale, refuse_other_types
from braidstream.protocol.plan import Batch, Plan, altered
from braidstream.protocol.retries import TRIES
from braidstream.protocol.stream_view import View

T = TypeVar("T")


# Errors that do not count once other entries were delivered: something was deleted since we looked, or the
# server of a stream cannot answer now.
_NEXT_TIME: Final = frozenset(
    ("NOGROUP", "LOST", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "LOADING", "MASTERDOWN", "BUSY")
)


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
    where = [keys.meta(name), *turns, *meta.bell(name, stamp)]
    return ("FCALL", "bs_group_wait", len(where), *where, spec.group, stamp)


def bell(view: View, name: bytes) -> list[bytes]:
    """The bell's key: the engine refuses a read that names it if our list of strands is stale."""
    return [] if view.carriage.has_looked else [keys.bell(name, view.recall(name).bell)]


def _check(view: View, spec: ReadGroup) -> Plan[None]:
    """Check each key together with its ID, in the engine's order."""
    for name, word in zip(spec.names, spec.positions, strict=True):
        if not view.recall(name).exists:
            yield from refuse_other_types(name)
        if spec.group not in view.recall(name).groups:
            where = f"No such key '{shown(name)}' or consumer group '{shown(spec.group)}'"
            fail(f"NOGROUP {where} in XREADGROUP with GROUP option")
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
    """Create the group on strands that lost it: a native XGROUP DESTROY, say. Whether one lacked it."""
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
                if error.code not in _NEXT_TIME or not taken:
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
    if spec.claim_ms is None or spec.max_size is not None or b"XNACK" not in view.commands:
        return False
    if any(passing.is_passing(view, name, spec.group) for name in spec.names):
        return False
    unlimited = view.carriage.is_all_or_nothing and spec.count is None and spec.max_count is None
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
    for strand, page in heads.by_strand(reply):
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
        if error.code not in _NEXT_TIME or not found:
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
    at = yield from heads.now(view, name, spec.group)
    made = _xreadgroup_own(spec, _any_strand(view, spec, name), last, 1)
    looks = [heads.xread(at, 1)] if at else []
    replies = yield Batch([*looks, made])
    reply = replies[0] if at else None
    if not reply and spec.claim_ms is not None:
        rows = yield from rows_of(view, strands, spec.group, Query(ids.ZERO, ids.LAST, PEEK, spec.claim_ms))
        reply = yield from that_fit(rows, Budget(1, None), claimed=True)
    return [] if reply else None


def _how_many_fit(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[int]:
    """MAXSIZE: read the next entries with XREAD first, because a delivery cannot be undone."""
    at = yield from heads.now(view, name, spec.group)
    if not at:
        return 1
    page = min(spec.count or PEEK, PEEK)
    [reply] = yield Batch([heads.xread(at, page)], resend=True)
    if not reply:
        return 1  # a read that finds nothing creates the consumer
    numbers = () if spec.claim_ms is None else (0, 0)
    return len(budget.take(merged(dict(heads.by_strand(reply)))[:page], *numbers))


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
    if passing.is_passing(view, name, spec.group):
        bells = bell(view, name)
        native = partial(_xreadgroup_one, spec, bells)
        return (yield from passing.read(view, spec, name, native))
    if spec.count is None or len(strands) == 1:
        where = [*(strand.key for strand in strands), *bell(view, name)]
        [reply] = yield Batch([xreadgroup(spec, where, spec.count)])
        return dict(heads.by_strand(reply))
    one_busy, pages = heads.one_busy(view, name, spec.group), None
    if one_busy is not None:
        pages = yield from _of_one(view, spec, *one_busy)
    elif spec.count == 1:
        pages = yield from _next_one(view, spec, name)
    if pages is None:
        shares = yield from heads.shares(view, name, spec.group, spec.count)
        bells = bell(view, name)
        commands = [xreadgroup(spec, [strand.key, *bells], share) for strand, share in shares.items()]
        replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
        pages = dict(page for reply in replies for page in heads.by_strand(reply))
    heads.note_delivered(view, name, spec.group, pages)
    return pages


def _xreadgroup_one(spec: ReadGroup, bells: list[bytes], strand: Strand, count: int | None) -> Command:
    return xreadgroup(spec, [strand.key, *bells], count)


def _of_one(
    view: View, spec: ReadGroup, busy: Strand, others: dict[Strand, Id]
) -> Plan[dict[Strand, list[Any]] | None]:
    """COUNT entries of one strand, if the others have none after these positions; else None, nothing read."""
    [news] = yield Batch([heads.xread(others, 1)], resend=True)
    return None if news else (yield from _of(view, spec, busy))


def _next_one(view: View, spec: ReadGroup, name: bytes) -> Plan[dict[Strand, list[Any]] | None]:
    """COUNT 1, if the cache knows the strand of the next entry; else None, nothing read."""
    strand = yield from heads.next_one(view, name, spec.group)
    return None if strand is None else (yield from _of(view, spec, strand))


def _of(view: View, spec: ReadGroup, strand: Strand) -> Plan[dict[Strand, list[Any]]]:
    """COUNT entries of one strand."""
    [reply] = yield Batch([xreadgroup(spec, [strand.key, *bell(view, strand.name)], spec.count)])
    return dict(heads.by_strand(reply))


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
    found = reply_entries(merged(dict(page for reply in replies for page in heads.by_strand(reply))))
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
