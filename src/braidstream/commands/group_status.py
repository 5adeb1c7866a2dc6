"""Positions of groups and consumers: XINFO GROUPS, XINFO CONSUMERS, and the groups of XINFO STREAM FULL.

The lag is the exact number of undelivered entries, also after deletions and trims. The engine's counters
are used where they are exact; else the entries are counted.
"""

from collections.abc import Iterable
from typing import Any, Final

from braidstream.commands.xack import STAND_IN, deliveries
from braidstream.commands.xgroup import no_group
from braidstream.errors import DamagedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.registry import ONCE, Registry
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.braid import read_strands
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

Info = dict[bytes, Any]
PAGE: Final = 1_000
# How many ranges one round trip reads.
_RANGES: Final = 100


def flat(info: Info) -> list[Any]:
    return [word for pair in info.items() for word in pair]


def groups(view: View, name: bytes) -> Plan[list[Any]]:
    """XINFO GROUPS key. Three round trips; more if entries must be counted for the lag."""
    registry, answers = yield from read_strands(view, name, lambda strand: strand.xinfo())
    if not answers:
        raise ReplyError("ERR no such key")
    strands = {strand: facts(reply) for strand, reply in answers}
    replies = yield Batch([("XINFO", "GROUPS", strand.key) for strand in strands], resend=True)
    natives = {
        strand: {each[b"name"]: each for each in map(facts, reply)}
        for strand, reply in zip(strands, replies, strict=True)
    }
    found = []
    for group in registry.groups:
        everywhere = {strand: natives[strand][group] for strand in strands if group in natives[strand]}
        consumers = yield from _consumers(everywhere, group)
        owned = registry.owned(group, view.region)
        rows = {strand: row for strand, row in everywhere.items() if strand in owned}
        found.append(
            flat(
                {
                    b"name": group,
                    b"consumers": len(consumers),
                    b"pending": sum(row[b"pending"] for row in rows.values()),
                    b"last-delivered-id": ids.text(last_delivered(registry, group, rows)),
                    b"entries-read": entries_read(strands, rows),
                    b"lag": (yield from lag(registry, group, strands, rows)),
                    **_scope(registry, group, view),
                }
            )
        )
    return found


def _scope(registry: Registry, group: bytes, view: View) -> Info:
    """The regions whose strands a group of scope `once` delivers here. Others have the engine's fields."""
    scope = registry.scopes.get(group)
    if scope is None:
        return {}
    return {b"scope": ONCE, b"owned": [b"%d" % writer for writer in scope.owned(view.region)]}


def last_delivered(registry: Registry, group: bytes, rows: dict[Strand, Info]) -> Id:
    ends = (registry.end(strand, ids.native(row[b"last-delivered-id"])) for strand, row in rows.items())
    return max((registry.groups[group], *ends))


def entries_read(strands: dict[Strand, Info], rows: dict[Strand, Info]) -> int | None:
    """The sum over the strands; None if the group has read none of them, or one of them has no count."""
    counts = [row[b"entries-read"] for row in rows.values()]
    if all(count is None for count in counts):
        return None
    counts = [_read_of(row, strands[strand]) for strand, row in rows.items()]
    return None if None in counts else sum(counts)


def _read_of(row: Info, info: Info) -> int | None:
    """How many entries of a strand the group has passed: the engine's count.

    A strand that the group has not read yet has none. Then its position decides, as the engine estimates.
    """
    count: int | None = row[b"entries-read"]
    added, length = int(info[b"entries-added"]), int(info[b"length"])
    position, last = ids.native(row[b"last-delivered-id"]), ids.native(info[b"last-generated-id"])
    if count is not None or not added:
        return count or 0
    if position >= last or not length:
        return added
    first, deleted = ids.native(info[b"first-entry"][0]), ids.native(info[b"max-deleted-entry-id"])
    return added - length if position < first and deleted < first else None


def lag(registry: Registry, group: bytes, strands: dict[Strand, Info], rows: dict[Strand, Info]) -> Plan[int]:
    """How many entries follow the group's position, in all strands, without those that another region has
    acknowledged: they will not be delivered here."""
    total, passes = 0, registry.passes.get(group, frozenset[bytes]())
    passed = (yield from _passed(strands, group)) if any(each.registration in passes for each in rows) else {}
    for strand, row in rows.items():
        position, info = ids.native(row[b"last-delivered-id"]), strands[strand]
        known = known_lag(position, row, info, group in registry.user_counted)
        total += (yield from _count_after(strand, position)) if known is None else known
        if known != 0 and strand.registration in passed:
            total -= yield from _count_within(strand, position, passed[strand.registration])
    return total


def _passed(strands: Iterable[Strand], group: bytes) -> Plan[dict[bytes, list[tuple[Id, Id]]]]:
    """By strand the ranges that the group will pass over here (lua/ranges.lua)."""
    name, field = next(iter(strands)).name, MetaField.GROUP_PASSED + group
    [reply] = yield Batch([("HGET", keys.meta(name), field)], resend=True)
    words = bytes(reply or b"").split()
    try:
        pairs = zip(words[::2], words[1::2], strict=True)
        return {strand: [_range(each) for each in text.split(b",")] for strand, text in pairs}
    except ValueError:
        raise DamagedError(name, keys.meta(name), field) from None


def _range(text: bytes) -> tuple[Id, Id]:
    """`4-0~5-0`, or `7-0` alone."""
    first, _, last = text.partition(b"~")
    return ids.native(first), ids.native(last or first)


def _count_within(strand: Strand, position: Id, ranges: list[tuple[Id, Id]]) -> Plan[int]:
    """How many entries after a position are in these ranges."""
    starts = [(max(ids.before(first) or ids.ZERO, position), last) for first, last in ranges]
    count, left = 0, [(start, last) for start, last in starts if start < last]
    while left:
        asked = left[:_RANGES]
        size = PAGE // len(asked)
        pages = yield Batch(
            [
                ("XRANGE", strand.key, b"(" + ids.text(start), ids.text(last), "COUNT", size)
                for start, last in asked
            ],
            resend=True,
        )
        left = left[_RANGES:]
        for (_, last), page in zip(asked, pages, strict=True):
            count += len(page)
            if len(page) == size:
                left.append((ids.native(page[-1][0]), last))
    return count


def known_lag(position: Id, row: Info, info: Info, user_counted: bool) -> int | None:
    """The lag in one strand, if it follows from first and last entry or from the counters."""
    if not info[b"length"] or position >= ids.native(info[b"last-entry"][0]):
        return 0
    if position < ids.native(info[b"first-entry"][0]):
        return int(info[b"length"])
    read = row[b"entries-read"]
    if user_counted or read is None or info[b"entries-added"] != info[b"length"]:
        return None  # the counters do not show entries that were removed before they were read
    ahead = int(info[b"entries-added"]) - int(read)
    return ahead if 0 < ahead < info[b"length"] else None


def _count_after(strand: Strand, position: Id) -> Plan[int]:
    count = 0
    while True:
        [page] = yield Batch([after(strand, position, PAGE)], resend=True)
        count += len(page)
        if len(page) < PAGE:
            return count
        position = ids.native(page[-1][0])


def after(strand: Strand, native: Id, count: int) -> Command:
    """A page of the entries after a native ID."""
    if native == ids.LAST:
        return ("XRANGE", strand.key, b"+", b"-")  # nothing
    start = b"-" if native == ids.ZERO else b"(" + ids.text(native)
    return ("XRANGE", strand.key, start, b"+", "COUNT", count)


def consumers(view: View, name: bytes, group: bytes) -> Plan[list[Any]]:
    """XINFO CONSUMERS key group: each consumer once, over all strands. Two round trips."""
    registry, answers = yield from read_strands(view, name, lambda strand: strand.xinfo())
    if not answers:
        raise ReplyError("ERR no such key")
    if group not in registry.groups:
        no_group(name, group)
    found = yield from _consumers(registry.strands, group)
    return [flat(found[consumer]) for consumer in sorted(found)]


def _consumers(strands: Iterable[Strand], group: bytes) -> Plan[dict[bytes, Info]]:
    commands: list[Command] = [("XINFO", "CONSUMERS", strand.key, group) for strand in strands]
    replies = yield Batch(commands, resend=True)
    found = dict[bytes, Info]()
    for reply in replies:
        for row in map(facts, reply):
            if row[b"name"] == STAND_IN:
                continue
            known = found.setdefault(row[b"name"], row)
            if known is not row:
                found[row[b"name"]] = _joined(known, row)
    return found


def _joined(one: Info, other: Info) -> Info:
    """One consumer on two strands: pending entries are added, the shorter idle time counts."""
    joined = {
        **one,
        b"pending": one[b"pending"] + other[b"pending"],
        b"idle": min(one[b"idle"], other[b"idle"]),
    }
    if b"inactive" in one:
        active = [since for since in (one[b"inactive"], other[b"inactive"]) if since >= 0]
        joined[b"inactive"] = min(active, default=-1)
    return joined


def full(registry: Registry, infos: dict[Strand, Info], count: int) -> Plan[list[Any]]:
    """The groups of XINFO STREAM FULL."""
    natives = {
        strand: {each[b"name"]: each for each in map(facts, info[b"groups"])}
        for strand, info in infos.items()
    }
    ends = {strand: _ends(info) for strand, info in infos.items()}
    found = []
    for group in registry.groups:
        rows = {strand: natives[strand][group] for strand in infos if group in natives[strand]}
        found.append(
            flat(
                {
                    b"name": group,
                    b"last-delivered-id": ids.text(last_delivered(registry, group, rows)),
                    b"entries-read": entries_read(ends, rows),
                    b"lag": (yield from lag(registry, group, ends, rows)),
                    b"pel-count": sum(row[b"pel-count"] for row in rows.values()),
                    **_nacked(rows.values()),
                    b"pending": _pending(((strand, row[b"pending"]) for strand, row in rows.items()), count),
                    b"consumers": _full_consumers(rows, count),
                }
            )
        )
    return found


def _nacked(rows: Iterable[Info]) -> Info:
    """How many entries were returned by XNACK, on engines that show it."""
    if not all(b"nacked-count" in row for row in rows):
        return {}
    stand_ins = (who for row in rows for who in map(facts, row[b"consumers"]) if who[b"name"] == STAND_IN)
    native = sum(row[b"nacked-count"] for row in rows)
    return {b"nacked-count": native + sum(who[b"pel-count"] for who in stand_ins)}


def _ends(info: Info) -> Info:
    """FULL shows the first entries only, so the last generated ID stands in for the last entry."""
    entries = info[b"entries"]
    if not entries:
        return info
    last = entries[-1] if len(entries) == info[b"length"] else [info[b"last-generated-id"]]
    return {**info, b"first-entry": entries[0], b"last-entry": last}


def _pending(pages: Iterable[tuple[Strand, list[Any]]], count: int) -> list[Any]:
    rows = [
        (strand.user(ids.native(entry)), strand.writer, [*_owner(rest), deliveries(count, strand)])
        for strand, page in pages
        for entry, *rest, count in page
    ]
    merged = sorted(rows, key=lambda row: row[:2])
    return [[ids.text(entry), *rest] for entry, _, rest in (merged[:count] if count else merged)]


def _owner(row: list[Any]) -> list[Any]:
    """[consumer, time], or the time alone; an entry without an owner has neither."""
    return [b"", 0] if row[0] == STAND_IN else row


def _full_consumers(rows: dict[Strand, Info], count: int) -> list[Any]:
    found = dict[bytes, dict[Strand, Info]]()
    for strand, row in rows.items():
        for consumer in map(facts, row[b"consumers"]):
            if consumer[b"name"] == STAND_IN:
                continue
            found.setdefault(consumer[b"name"], {})[strand] = consumer
    answer = []
    for name in sorted(found):
        parts = found[name]
        info: Info = {b"name": name, b"seen-time": max(part[b"seen-time"] for part in parts.values())}
        if any(b"active-time" in part for part in parts.values()):
            info[b"active-time"] = max(part[b"active-time"] for part in parts.values())
        info[b"pel-count"] = sum(part[b"pel-count"] for part in parts.values())
        info[b"pending"] = _pending(((strand, part[b"pending"]) for strand, part in parts.items()), count)
        answer.append(flat(info))
    return answer
