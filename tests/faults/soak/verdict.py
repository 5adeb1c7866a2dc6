"""What the regions may hold in the end, given what the clients were told. Anomalies have names.

lost         an entry that was acknowledged, and nothing can have removed, is not there
duplicated   an entry is there twice, or a group gave it out as new twice in one region
reordered    IDs do not ascend, or one client's entries stand in another order than it wrote them
resurrected  an entry that was removed is there
minted twice one ID was given to two entries
invented     an entry is there that was refused, or that nobody wrote
skipped      no consumer of a group was ever given an entry
diverged     two regions answer differently
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.faults.soak.sites import Loss
from tests.faults.soak.traffic import ACKED, JOBS, MAXLEN, REFUSED, UNKNOWN, History, Op

# Longer than an engine is ever paused, on a machine that is busy elsewhere.
LATE_S = 120.0
# A region has back by then what its peers have of it, however many links were down.
BACK_WITHIN_S = 30.0

Entries = list[tuple[str, str]]  # ID, text


@dataclass(frozen=True, slots=True)
class Final:
    """What one region answers in the end: for each stream its entries, and its groups' names."""

    entries: dict[str, Entries]
    groups: dict[str, list[str]]


def judge(history: History, finals: dict[int, Final], losses: Sequence[Loss] = ()) -> list[str]:
    """Every anomaly as one line that starts with its name. What a server lost and no peer knew is excused."""
    one = finals[min(finals)]
    by_stream: dict[str, list[Op]] = defaultdict(list)
    for op in history.ops:
        by_stream[op.stream].append(op)
    found = [*_diverged(finals), *_redelivered(history, losses), *_skipped(history, one)]
    for name, entries in one.entries.items():
        ops = by_stream[name]
        found += [
            *_minted_again(name, ops, losses),
            *_twice(name, entries),
            *_reordered(name, ops, entries),
            *_invented(name, ops, entries),
        ]
        there = {text for _, text in entries}
        for op, kept in _fates(name, ops, losses):
            if kept and op.subject not in there:
                found.append(f"lost: {name} {op.reply} ({op.subject}), acknowledged by region {op.region}")
            if kept is False and op.subject in there:
                found.append(f"resurrected: {name} {op.reply} ({op.subject}) of region {op.region}")
    return found


def _fates(name: str, ops: list[Op], losses: Sequence[Loss]) -> Iterator[tuple[Op, bool | None]]:
    """Each acknowledged entry: must it be there (True), must it not (False), or can nobody say (None)."""
    adds = [op for op in ops if op.kind == "add" and op.outcome == ACKED]
    deleted: dict[str, set[str]] = defaultdict(set)
    for op in ops:
        if op.kind == "xdel":
            # 0: the entry was not there, and may come (again) if the region had forgotten it
            certain = op.reply == "1" and not _in_loss(op, losses)
            deleted[op.subject].add(op.outcome if certain else UNKNOWN)
    drops = [
        replace(op, outcome=UNKNOWN) if _in_loss(op, losses) else op
        for op in ops
        if op.kind == "del" and op.outcome != REFUSED
    ]
    # MAXLEN takes the oldest away, and nothing while it sees no more than so many: the newest stay.
    newest = sorted((_order(op.reply) for op in adds), reverse=True)[:MAXLEN]
    for op in adds:
        if _is_excused(op, losses):
            yield op, None
        elif name.startswith("trim"):
            yield op, True if _order(op.reply) >= newest[-1] else None
        elif op.reply in deleted:
            yield op, False if ACKED in deleted[op.reply] else None
        elif any(_takes(drop, op, losses) for drop in drops):
            yield op, False
        else:  # a deletion takes what it has seen, and cannot see what was written after it
            yield op, True if all(_over(drop) <= op.began for drop in drops) else None


def _takes(drop: Op, op: Op, losses: Sequence[Loss]) -> bool:
    """Whether a DEL has certainly deleted an entry: it takes what its region has at that moment.

    A region that has just lost the entry does not have it until a peer gives it back.
    """
    was_away = any(_is_in(op, loss) and drop.began <= loss.upto + BACK_WITHIN_S for loss in losses)
    return drop.region == op.region and drop.began >= op.ended and drop.outcome == ACKED and not was_away


def excused(history: History, losses: Sequence[Loss]) -> int:
    """Acknowledged entries that may be missing: their server lost them before any peer knew of them."""
    adds = [op for op in history.ops if op.kind == "add" and op.outcome == ACKED]
    return sum(_is_excused(op, losses) for op in adds)


def _is_excused(op: Op, losses: Sequence[Loss]) -> bool:
    return any(op.subject not in loss.known and _is_in(op, loss) for loss in losses)


def _in_loss(op: Op, losses: Sequence[Loss]) -> bool:
    """Whether a server may have forgotten that it was done."""
    return any(_is_in(op, loss) for loss in losses)


def _is_in(op: Op, loss: Loss) -> bool:
    return op.region == loss.region and op.ended >= loss.since and op.began <= loss.upto


def _minted_again(name: str, ops: list[Op], losses: Sequence[Loss]) -> Iterator[str]:
    """One ID for two entries. Allowed if a server lost the first of them, and no peer knew it."""
    by_id: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.kind == "add" and op.outcome == ACKED:
            by_id[op.reply].append(op)
    for id, adds in by_id.items():
        kept = [op for op in adds if not _is_excused(op, losses)]
        if len(kept) > 1:
            yield f"minted twice: {name} {id} stands for {', '.join(op.subject for op in kept)}"


def _twice(name: str, entries: Entries) -> Iterator[str]:
    for text, times in Counter(text for _, text in entries).items():
        if times > 1:
            yield f"duplicated: {name} has {text} {times} times"


def _reordered(name: str, ops: list[Op], entries: Entries) -> Iterator[str]:
    order = [_order(id) for id, _ in entries]
    if any(a >= b for a, b in zip(order, order[1:], strict=False)):
        yield f"reordered: the IDs of {name} do not ascend"
    acked = {op.subject for op in ops if op.kind == "add" and op.outcome == ACKED}
    last: dict[str, int] = {}
    for _, text in entries:
        writer, _, number = text.partition("-")
        if text in acked:  # one that its writer gave up may have been done late
            if int(number) <= last.get(writer, 0):
                yield f"reordered: {name} has {text} after {writer}-{last[writer]}"
            last[writer] = int(number)


def _invented(name: str, ops: list[Op], entries: Entries) -> Iterator[str]:
    outcome = {op.subject: op.outcome for op in ops if op.kind == "add"}
    for id, text in entries:
        if outcome.get(text, REFUSED) == REFUSED:
            yield f"invented: {name} has {id} ({text}), which was refused or never written"


def _redelivered(history: History, losses: Sequence[Loss]) -> Iterator[str]:
    """A server that forgot a delivery may give the entry out once more."""
    times = Counter((each.stream, each.region, each.id) for each in history.deliveries if each.new)
    forgot = Counter(loss.region for loss in losses)
    for (name, region, id), count in times.items():
        if count > 1 + forgot[region]:
            yield f"duplicated: region {region} gave out {id} of {name} as new {count} times"


def _skipped(history: History, final: Final) -> Iterator[str]:
    given = {(each.stream, each.id) for each in history.deliveries}
    for name in JOBS:
        for id, text in final.entries[name]:
            if (name, id) not in given:
                yield f"skipped: no consumer was given {id} ({text}) of {name}"


def _diverged(finals: dict[int, Final]) -> Iterator[str]:
    first, *others = sorted(finals)
    for other in others:
        for name in finals[first].entries:
            here, there = set(finals[first].entries[name]), set(finals[other].entries[name])
            if here != there:
                yield (
                    f"diverged: {name}: only region {first} has {sorted(here - there)[:5]} "
                    f"({len(here - there)}), only region {other} has {sorted(there - here)[:5]} "
                    f"({len(there - here)})"
                )
            groups = finals[first].groups[name], finals[other].groups[name]
            if groups[0] != groups[1]:
                yield f"diverged: {name}: groups {groups[0]} in region {first}, {groups[1]} in region {other}"


def _over(op: Op) -> float:
    """When it was done at the latest: a paused engine does it late, for a client that has gone."""
    return op.ended + (0 if op.outcome == ACKED else LATE_S)


def _order(id: str) -> tuple[int, int]:
    ms, _, seq = id.partition("-")
    return int(ms), int(seq)
