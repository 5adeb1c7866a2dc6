"""What the regions may have in the end, by the replies that clients got. anomalies.py has the names.

A client does not see when its command was done, or whether: what nobody can say is not an anomaly.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.oracle.answers import ascends, difference, id_order, times_over
from tests.oracle.client_log import ACKED, REFUSED, UNKNOWN, ClientLog, Delivery, Loss, Op

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


@dataclass(frozen=True, slots=True)
class Rules:
    """maxlen: the caps of some streams. consumed: the streams that have a group whose consumers read all."""

    maxlen: Mapping[str, int] = field(default_factory=dict)
    consumed: Sequence[str] = ()


def judge(
    log: ClientLog,
    finals: Mapping[int, Final],
    rules: Rules,
    losses: Sequence[Loss] = (),
    stepped_until: float = 0.0,
) -> dict[str, list[str]]:
    """Every anomaly, by name. What a server lost and no peer knew is excused.

    stepped_until: when the last clock that was wrong beyond the bound was set right. What was added before
    may be missing from a capped stream: it is unknown which entries are the oldest.
    """
    one = finals[min(finals)]
    by_stream: dict[str, list[Op]] = defaultdict(list)
    for op in log.ops:
        by_stream[op.stream].append(op)
    found: dict[str, list[str]] = defaultdict(list)
    found["diverged"] += _diverged(finals)
    found["duplicated"] += _redelivered(log, losses, peers=len(finals) - 1)
    found["skipped"] += _skipped(log, one, rules.consumed)
    for name, entries in one.entries.items():
        ops = by_stream[name]
        here = [loss for loss in losses if loss.concerns(name)]
        found["generated twice"] += _minted_again(name, ops, here)
        found["duplicated"] += _twice(name, entries)
        found["reordered"] += _reordered(name, ops, entries)
        found["invented"] += _invented(name, ops, entries)
        there = {text for _, text in entries}
        for op, stays in _fates(ops, here, rules.maxlen.get(name)):
            if name in rules.maxlen and op.began <= stepped_until:
                continue
            if stays and op.subject not in there:
                found["lost"].append(f"{name} {op.reply} ({op.subject}), acknowledged by region {op.region}")
            if stays is False and op.subject in there:
                found["resurrected"].append(f"{name} {op.reply} ({op.subject}) of region {op.region}")
    return {name: lines for name, lines in found.items() if lines}


def _fates(ops: list[Op], losses: Sequence[Loss], maxlen: int | None) -> Iterator[tuple[Op, bool | None]]:
    """For each acknowledged entry: must it exist (True), must it not (False), or is it unknown (None)?"""
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
    newest = sorted((id_order(op.reply) for op in adds), reverse=True)[:maxlen]
    for op in adds:
        if _is_excused(op, losses):
            yield op, None
        elif maxlen is not None:
            yield op, True if id_order(op.reply) >= newest[-1] else None
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
    if drop.region != op.region or drop.began < op.ended or drop.outcome != ACKED:
        return False
    return not any(_is_in(op, loss) and drop.began <= loss.upto + BACK_WITHIN_S for loss in losses)


def excused(log: ClientLog, losses: Sequence[Loss]) -> int:
    """Acknowledged entries that may be missing: their server lost them before any peer knew of them."""
    adds = [op for op in log.ops if op.kind == "add" and op.outcome == ACKED]
    return sum(_is_excused(op, losses) for op in adds)


def missing(log: ClientLog, final: Final, losses: Sequence[Loss], rules: Rules) -> int:
    """Those of them that are missing, of streams without deletions."""
    there = {text for entries in final.entries.values() for _, text in entries}
    deleted = {op.stream for op in log.ops if op.kind != "add"} | set(rules.maxlen)
    adds = [op for op in log.ops if op.kind == "add" and op.outcome == ACKED and op.subject not in there]
    return sum(op.stream not in deleted and _is_excused(op, losses) for op in adds)


def _is_excused(op: Op, losses: Sequence[Loss]) -> bool:
    lost_before = any(op.subject in loss.alone for loss in losses)
    return lost_before or any(op.subject not in loss.known and _is_in(op, loss) for loss in losses)


def _in_loss(op: Op, losses: Sequence[Loss]) -> bool:
    """Whether a server may have forgotten that it was done."""
    return any(_is_in(op, loss) for loss in losses)


def _is_in(op: Op | Delivery, loss: Loss) -> bool:
    in_time = op.ended >= loss.since and op.began <= loss.upto
    return in_time and op.region == loss.region and loss.concerns(op.stream)


def _minted_again(name: str, ops: list[Op], losses: Sequence[Loss]) -> Iterator[str]:
    """One ID for two entries. Allowed if a server lost the first of them, and no peer knew it."""
    by_id: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.kind == "add" and op.outcome == ACKED:
            by_id[op.reply].append(op)
    for id, adds in by_id.items():
        kept = [op for op in adds if not _is_excused(op, losses)]
        if len(kept) > 1:
            yield f"{name} {id} stands for {', '.join(op.subject for op in kept)}"


def _twice(name: str, entries: Entries) -> Iterator[str]:
    once = Counter({text: 1 for _, text in entries})
    for text, times in times_over((text for _, text in entries), once).items():
        yield f"{name} has {text} {times} times"


def _reordered(name: str, ops: list[Op], entries: Entries) -> Iterator[str]:
    ids = [id for id, _ in entries]
    if not ascends(ids) or len(set(ids)) < len(ids):
        yield f"the IDs of {name} do not ascend"
    acked = {op.subject for op in ops if op.kind == "add" and op.outcome == ACKED}
    last: dict[str, int] = {}
    for _, text in entries:
        writer, _, number = text.partition("-")
        if text in acked:  # one that its writer gave up may have been done late
            if int(number) <= last.get(writer, 0):
                yield f"{name} has {text} after {writer}-{last[writer]}"
            last[writer] = int(number)


def _invented(name: str, ops: list[Op], entries: Entries) -> Iterator[str]:
    outcome = {op.subject: op.outcome for op in ops if op.kind == "add"}
    for id, text in entries:
        if outcome.get(text, REFUSED) == REFUSED:
            yield f"{name} has {id} ({text}), which was refused or never written"


def _redelivered(log: ClientLog, losses: Sequence[Loss], peers: int) -> Iterator[str]:
    """A server that lost data may give an entry out once more for each peer that gives entries back.

    The new primary of a cluster does so only if the old one was killed when it had just given it out.
    """
    given: dict[tuple[str, int, str], list[Delivery]] = defaultdict(list)
    for each in log.deliveries:
        if each.new:
            given[each.stream, each.region, each.id].append(each)
    forgot = Counter(loss.region for loss in losses if loss.streams is None)
    primaries = [loss for loss in losses if loss.streams is not None]
    for (name, region, id), times in given.items():
        again = len(times) - 1 - peers * forgot[region]
        if again > 0 and again > sum(any(_is_in(each, loss) for each in times) for loss in primaries):
            yield f"region {region} gave out {id} of {name} as new {len(times)} times"


def _skipped(log: ClientLog, final: Final, consumed: Sequence[str]) -> Iterator[str]:
    given = {(each.stream, each.id) for each in log.deliveries}
    for name in consumed:
        for id, text in final.entries[name]:
            if (name, id) not in given:
                yield f"no consumer was given {id} ({text}) of {name}"


def _diverged(finals: Mapping[int, Final]) -> Iterator[str]:
    for name in finals[min(finals)].entries:
        if differs := difference({region: final.entries[name] for region, final in finals.items()}):
            yield f"{name}: {differs}"
        if differs := difference({region: final.groups[name] for region, final in finals.items()}):
            yield f"groups of {name}: {differs}"


def _over(op: Op) -> float:
    """When it was done at the latest: a paused engine does it late, for a client that has gone."""
    return op.ended + (0 if op.outcome == ACKED else LATE_S)
