"""repair: repairs anomalies of an audit, if a region still has the right data.

A native stream accepts no entry in its middle. So the job writes a copy next to the damaged one, with groups
and pending entries, and replaces it in one step:

    old   1 2   4 5 |           new   1 2 3 4 5 |  -> RENAME new old, unless the old one was changed meanwhile

Entries that were added meanwhile are copied, and the job tries again. If entries were removed meanwhile, by
XDEL
or a trim, it changes nothing: they would come back. An XACK at the moment of the RENAME may be lost; then the
entry is delivered again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from braidstream.commands.removal import drop_command
from braidstream.commands.rename import token
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.frontier import strand_of_row
from braidstream.model.ids import Id
from braidstream.model.registry import acked
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.lookup import read_any_region
from braidstream.plan.plan import Batch, Plan, ending_watch, send_one
from braidstream.plan.view import View
from braidstream.spark.jobs.audit import Anomaly, Auditor, read_entry

PAGE: Final = 1_000
TRIES: Final = 20
BUSY: Final = "the strand was changed meanwhile: run it again"

Fixes = dict[Id, list[bytes]]


def repair(auditor: Auditor, anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """The same anomalies, healed or with the reason why not."""
    listed = list(anomalies)
    copies = dict[tuple[int, Strand], Fixes]()
    for at, each in enumerate(listed):
        strand = strand_of_row(each.stream, each.place)
        if each.note == "group":
            auditor.run_plan(each.region, strand.key, _regroup, strand, each.id.encode())
            listed[at] = replace(each, healed=True)
        elif each.kind == "resurrected":
            native = ids.text(_native(strand, each.id))
            auditor.run_plan(each.region, strand.key, send_one, ("XDEL", strand.key, native))
            listed[at] = replace(each, healed=True)
        elif each.kind == "duplicated":
            auditor.run_plan(each.region, strand.key, _drop, strand, _native(strand, each.id))
            listed[at] = replace(each, healed=True)
        elif each.certain:
            fields = _from_peers(auditor, each, strand)
            if fields is None:
                listed[at] = replace(each, note="no region has it")
            else:
                copies.setdefault((each.region, strand), {})[_native(strand, each.id)] = fields
    for (region, strand), fixes in copies.items():
        done = auditor.run_plan(region, strand.key, rebuild, strand, fixes)
        listed = [_rebuilt(each, region, strand, fixes, done) for each in listed]
    return listed


def _rebuilt(each: Anomaly, region: int, strand: Strand, fixes: Fixes, done: bool) -> Anomaly:
    mine = strand_of_row(each.stream, each.place) == strand and each.region == region
    if not mine or each.kind not in ("lost", "diverged") or each.note == "group" or not each.certain:
        return each
    if _native(strand, each.id) not in fixes:
        return each
    return replace(each, healed=True) if done else replace(each, note=BUSY)


def _native(strand: Strand, user: str) -> Id:
    return strand.native(ids.native(user.encode()))


def _from_peers(auditor: Auditor, each: Anomaly, strand: Strand) -> list[bytes] | None:
    """The entry as another region has it; its own region first."""
    home = auditor.snapshots(strand.name).home(strand)
    native = _native(strand, each.id)
    for region in sorted(auditor.at, key=lambda one: one != home):
        if region != each.region:
            reply = auditor.run_plan(region, strand.key, read_entry, strand, native)
            if reply:
                return list(reply[0][1])
    return None


def _drop(strand: Strand, native: Id) -> Plan[Any]:
    region = yield from read_any_region()
    command = drop_command(View(region), strand, [ids.text(native)], (b"KEEPREF", b""))
    return (yield from send_one(command))


def _regroup(strand: Strand, group: bytes) -> Plan[Any]:
    """Create a group on a strand that lost it: after the acknowledged entries, or at its start."""
    [known] = yield Batch([("HGET", keys.meta(strand.name), MetaField.GROUP_ACKED + group)], resend=True)
    at = acked(known or b"")
    start = at.get(strand.registration, b"0-0")
    return (yield from send_one(("XGROUP", "CREATE", strand.key, group, start)))


def rebuild(strand: Strand, fixes: Fixes) -> Plan[bool]:
    """Write a new copy with restored or corrected entries. False if the strand changed too fast.

    Entries after the strand's last ID are left out: a link sends them.
    """
    made = keys.copy(strand.name, (yield from token()))
    return (yield from ending_watch(_rebuild(strand, fixes, made), ("UNLINK", made)))


def _rebuild(strand: Strand, fixes: Fixes, made: bytes) -> Plan[bool]:
    [info] = yield Batch([strand.xinfo()])
    before = facts(info)
    if max(fixes) > ids.native(before[b"last-generated-id"]):
        return False
    left, cursor = dict(fixes), ids.ZERO
    for _ in range(TRIES):
        cursor = yield from _copy_on(strand, made, cursor, left)
        yield Batch([("WATCH", strand.key)])
        rest = ("XRANGE", strand.key, b"(" + ids.text(cursor), "+", "COUNT", 1)
        more, info = yield Batch([rest, strand.xinfo()])
        now = facts(info)
        if _removed(now) != _removed(before):
            yield Batch([("UNWATCH",)])
            break
        if more:
            yield Batch([("UNWATCH",)])
            continue
        commands = yield from _last_step(strand, made)
        if (yield Batch(commands, atomic=True)) is not None:
            return True
    yield Batch([("DEL", made)])
    return False


def _removed(info: Mapping[bytes, Any]) -> tuple[int, Any]:
    """A value that changes when an entry is deleted or trimmed, or when the strand is created again."""
    first = info[b"first-entry"]
    return info[b"entries-added"] - info[b"length"], first and first[0]


def _copy_on(strand: Strand, made: bytes, cursor: Id, left: Fixes) -> Plan[Id]:
    """Append the following entries to the new copy, with the fixes among them. Returns its end."""
    while True:
        [page] = yield Batch([("XRANGE", strand.key, b"(" + ids.text(cursor), "+", "COUNT", PAGE)])
        entries = {ids.native(native): fields for native, fields in page}
        end = max(entries) if len(page) == PAGE else ids.LAST
        for native in [each for each in left if each <= end]:
            entries[native] = left.pop(native)
        if entries:
            commands = [("XADD", made, ids.text(each), *entries[each]) for each in sorted(entries)]
            yield Batch(commands)
            cursor = max(entries)
        if len(page) < PAGE:
            return cursor


def _last_step(strand: Strand, made: bytes) -> Plan[list[Command]]:
    """Commands for the groups, the strand's counters, and the RENAME."""
    reply, length, expires = yield Batch([strand.xinfo(), ("XLEN", made), ("PEXPIRETIME", strand.key)])
    info = facts(reply)
    commands: list[Command] = []
    [groups] = yield Batch([("XINFO", "GROUPS", strand.key)])
    for group in map(facts, groups):
        commands += yield from _group(strand, made, group)
    added = max(info[b"entries-added"], length)  # an old snapshot has not counted the missing entries
    counts = ("ENTRIESADDED", added, "MAXDELETEDID", info[b"max-deleted-entry-id"])
    commands.append(("XSETID", made, info[b"last-generated-id"], *counts))
    commands.append(("RENAME", made, strand.key))
    if expires > 0:  # the engine deletes the stream then (lua/deadline.lua)
        commands.append(("PEXPIREAT", strand.key, expires))
    return commands


def _group(strand: Strand, made: bytes, group: Mapping[bytes, Any]) -> Plan[list[Command]]:
    name = group[b"name"]
    read = group.get(b"entries-read")
    count: Command = () if read is None else ("ENTRIESREAD", read)
    commands: list[Command] = [("XGROUP", "CREATE", made, name, group[b"last-delivered-id"], *count)]
    [consumers] = yield Batch([("XINFO", "CONSUMERS", strand.key, name)])
    commands += [("XGROUP", "CREATECONSUMER", made, name, facts(each)[b"name"]) for each in consumers]
    after = "-"
    while True:
        [pending] = yield Batch([("XPENDING", strand.key, name, after, "+", PAGE)])
        for native, consumer, idle, deliveries in pending:
            how = ("IDLE", idle, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")
            commands.append(("XCLAIM", made, name, consumer, 0, native, *how))
        if len(pending) < PAGE:
            return commands
        after = f"({pending[-1][0].decode()}"
