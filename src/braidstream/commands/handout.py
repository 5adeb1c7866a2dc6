"""What one XREADGROUP hands out, without waiting: new entries, or a consumer's own pending ones again.

New entries (`>`). Each strand has its own position, so nothing is skipped, whatever arrives late.

    one strand                    native XREADGROUP, one round trip
    no COUNT                      native, over all strands
    COUNT, several strands        1. how many of which strand come next? (heads.py)
                                  2. so many from this strand, so many from that: native, in one MULTI

At most COUNT come back, whoever reads at the same time: step 2 asks for numbers, not for IDs. What
another consumer took meanwhile is taken from what follows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from braidstream import ids
from braidstream.braid import View
from braidstream.commands import heads
from braidstream.commands.arguments import strict_id
from braidstream.commands.budget import Budget
from braidstream.commands.claims import claim_idle_entries
from braidstream.commands.group_arguments import ReadGroup
from braidstream.commands.pending import Query, Row, rows_of
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Entry, Strand
from braidstream.weave import bodies, weave

# With MAXSIZE, at most so many entries are looked at (and given) in one call.
PEEK: Final = 100


def read_all(view: View, spec: ReadGroup) -> Plan[list[Any]]:
    """Each stream in turn, as the view knows its strands."""
    answer, budget = list[Any](), Budget(spec.max_count, spec.max_size)
    for name, word in zip(spec.names, spec.positions, strict=True):
        if word == b">":
            found = yield from _new_and_claimed(view, spec, name, budget)
            if found:
                answer.append([name, found])
        else:
            history = yield from _history(view, spec, name, strict_id(word))
            answer.append([name, history])
    return answer


def xreadgroup(
    spec: ReadGroup, where: Iterable[bytes], count: int | None, block_ms: int | None = None
) -> Command:
    """A native read of new entries, at most `count` of each key."""
    limit: Command = () if count is None else ("COUNT", count)
    block: Command = () if block_ms is None else ("BLOCK", block_ms)
    noack: Command = ("NOACK",) if spec.noack else ()
    listed = list(where)
    streams = (*listed, *([b">"] * len(listed)))
    return ("XREADGROUP", "GROUP", spec.group, spec.consumer, *limit, *block, *noack, "STREAMS", *streams)


def woven(pages: Mapping[Strand, list[Any]]) -> list[Entry]:
    """What native reads have found, in ID order."""
    return weave([strand.entries(page) for strand, page in pages.items()])


def _new_and_claimed(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[list[Any]]:
    """What `>` gives: with CLAIM, idle pending entries first, each with its idle time and deliveries."""
    if not spec.limited:
        return bodies((yield from new(view, spec, name)))
    found = list[Any]()
    if spec.claim_ms is not None:
        found = yield from claim_idle_entries(
            view,
            view.recall(name).strands,
            (spec.group, spec.consumer, spec.claim_ms),
            budget.cap(spec.count),
        )
        budget.used += len(found)
    left = budget.cap(None if spec.count is None else spec.count - len(found))
    if left == 0 or budget.spent:
        return found
    if budget.size is not None:
        left = yield from _how_many_fit(view, replace(spec, count=left), name, budget)
    fresh = (yield from new(view, replace(spec, count=left), name)) if left != 0 else []
    if budget.size is None:
        budget.used += len(fresh)
    extra = [0, 0] if spec.claim_ms is not None else []
    return found + [[*entry, *extra] for entry in bodies(fresh)]


def _how_many_fit(view: View, spec: ReadGroup, name: bytes, budget: Budget) -> Plan[int]:
    """MAXSIZE: look at the next entries before taking them; what was given cannot be taken back."""
    at = yield from heads.now(view, name, spec.group)
    page = min(spec.count or PEEK, PEEK)
    [reply] = yield Batch([heads.xread(at, page)], resend=True)
    return len(budget.take(woven(dict(heads.by_strand(reply)))[:page]))


def new(view: View, spec: ReadGroup, name: bytes) -> Plan[list[Entry]]:
    """New entries of one stream, in ID order."""
    strands = view.recall(name).strands
    if spec.count is None or len(strands) == 1:
        [reply] = yield Batch([xreadgroup(spec, (strand.key for strand in strands), spec.count)])
        return woven(dict(heads.by_strand(reply)))
    shares = yield from heads.shares(view, name, spec.group, spec.count)
    commands = [xreadgroup(spec, [strand.key], share) for strand, share in shares.items()]
    replies = yield Batch(commands, atomic=view.one_step(len(commands)))
    pages = dict(page for reply in replies for page in heads.by_strand(reply))
    heads.took(view, name, spec.group, pages)
    return woven(pages)


def _history(view: View, spec: ReadGroup, name: bytes, since: Id) -> Plan[list[Any]]:
    """The consumer's own pending entries after an ID, in ID order; [id, nil] for one that was deleted."""
    strands = view.recall(name).strands
    shares: dict[Strand, int | None] = dict.fromkeys(strands, spec.count)
    if spec.count is not None and len(strands) > 1:
        start = ids.after(since)
        rows = yield from _own(view, spec, strands, start) if start is not None else _nothing()
        shares = {strand: share for strand in strands if (share := sum(row.strand == strand for row in rows))}
    commands: list[Command] = []
    for strand, count in (shares or dict.fromkeys(strands[:1], spec.count)).items():
        limit: Command = () if count is None else ("COUNT", count)
        where = (strand.key, ids.text(strand.floor(since)))
        commands.append(("XREADGROUP", "GROUP", spec.group, spec.consumer, *limit, "STREAMS", *where))
    replies = yield Batch(commands, atomic=view.one_step(len(commands)))
    return bodies(woven(dict(page for reply in replies for page in heads.by_strand(reply))))


def _nothing() -> Plan[list[Row]]:
    return []
    yield


def _own(view: View, spec: ReadGroup, strands: tuple[Strand, ...], start: Id) -> Plan[list[Row]]:
    assert spec.count is not None
    query = Query(start, ids.LAST, spec.count, consumer=spec.consumer)
    rows = yield from rows_of(view, strands, spec.group, query)
    return rows[: spec.count]
