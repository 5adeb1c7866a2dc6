"""RENAME, COPY, DUMP, RESTORE: a stream's entries, merged, become the chosen strand of another name.

    orders    s1  1-1     4-1                        old    c1  1-1  2-2  3-0  4-1
              s2      2-2           -- RENAME -->                (IDs as users know them)
              c1          3-0

The entries are copied page by page into a temporary key. One function then turns this key into the new
stream and deletes what had the new name before (and, for RENAME, the old stream). The source is WATCHed
meanwhile: if it changes, the copy starts again. Groups are not copied, and of entries that share one ID
only the first is (AA-12, AA-25 of docs/design/requirements.md).
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from braidstream.commands import group_status, xreadgroup_reply
from braidstream.commands.arguments import Argv, fail, integer, option, options, refuse_long_name, shown
from braidstream.commands.expire import carry_out, expire_at
from braidstream.commands.xack import Query, rows_of
from braidstream.commands.xinfo import info
from braidstream.commands.xread import read_range
from braidstream.errors import HOSTILE, RefusedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.hashes import sampled, share_buckets
from braidstream.model.ids import Id
from braidstream.model.registry import Registry, group_start, moved_keys, named_keys
from braidstream.model.strand import Command, facts
from braidstream.plan import braid
from braidstream.plan.append import native_command
from braidstream.plan.braid import delete
from braidstream.plan.lookup import (
    checked_now,
    exists,
    ms_of,
    read_registry,
    registry_of,
    require_region,
    settled,
)
from braidstream.plan.plan import Batch, Plan, ending_watch
from braidstream.plan.view import View

PAGE: Final = 500
TRIES: Final = 5
# A payload that is restored is looked at in pages: after one with more bytes the next one is small. Fewer
# words of one entry, or groups, cost little.
_PAGE_BYTES: Final = 1_000_000
_FEW_WORDS: Final = 256
# A temporary copy whose name `token` made: the client, the time.
_MADE: Final = re.compile(re.escape(keys.COPY) + rb"[0-9]+\.([0-9]+)\.[0-9]+:")


def rename(view: View, argv: Argv) -> Plan[bytes]:
    """RENAME: O(n), copies every entry once."""
    source, target = argv[1], argv[2]
    if not (yield from _is_stream(argv)):
        yield Batch([("RENAME", source, target)])
        yield from delete(view, target)
    elif source != target:
        yield from _copy(view, source, target, move=True, replace=True)
    return b"OK"


def rename_if_new(view: View, argv: Argv) -> Plan[int]:
    """RENAMENX: as RENAME; 0 if newkey exists."""
    source, target = argv[1], argv[2]
    if not (yield from _is_stream(argv)):
        if (yield from exists(target)):
            [plain] = yield Batch([("EXISTS", source)], resend=True)
            return 0 if plain else fail("ERR no such key")
        [reply] = yield Batch([("RENAMENX", source, target)])
        return int(reply)
    return int(source != target and (yield from _copy(view, source, target, move=True, replace=False)))


def _is_stream(argv: Argv) -> Plan[bool]:
    """Whether the source is a stream; an error if the user may not run this command on the plain key.

    To check that, the command is run from the key to itself: it has no effect, and the engine checks the
    rights first.
    """
    command, source = argv[0], argv[1]
    checked, reply = yield Batch([(command, source, source), registry_of(source)], resend=True, attempt=True)
    for each in (checked, reply):
        if isinstance(each, ReplyError) and (each is reply or each.code == "NOPERM"):
            raise each
    found = yield from checked_now([registry_of(source)], {source: Registry.parse(source, reply)})
    return found[source].exists


def copy(view: View, argv: Argv) -> Plan[int]:
    """COPY: O(n), copies every entry once. 0 if the destination exists, without REPLACE."""
    source, target, replace, database = argv[1], argv[2], False, None
    for word, value in options(argv, 3, {b"REPLACE": 0, b"DB": 1}):
        if word == b"REPLACE":
            replace = True
        else:
            database = integer(value)
    elsewhere = database is not None and database != (yield from _database())
    is_stream = yield from _is_stream(argv)
    if elsewhere and not is_stream:
        [reply] = yield Batch([tuple(argv)])
        return int(reply)
    if elsewhere:
        raise RefusedError("COPY", "another database is another region", "Leave DB out")
    if source == target:
        fail("ERR source and destination objects are the same")
    if not is_stream and not (yield from exists(target)):
        [reply] = yield Batch([tuple(argv)])
        return int(reply)
    if is_stream:
        return int((yield from _copy(view, source, target, move=False, replace=replace)))
    if not replace:
        return 0
    [copied] = yield Batch([("COPY", source, target, "REPLACE")])
    if copied:
        yield from delete(view, target)
    return int(copied)


def _database() -> Plan[int]:
    [client] = yield Batch([("CLIENT", "INFO")], resend=True)
    return int(dict(word.partition(b"=")[::2] for word in bytes(client).split())[b"db"])


def _copy(view: View, source: bytes, target: bytes, *, move: bool, replace: bool) -> Plan[bool]:
    """Copy or move the source to the target; False if the target exists and may not be replaced."""
    view.carriage.refuse_watch("RENAME and COPY")
    refuse_long_name(b"RENAME" if move else b"COPY", target)
    aside = keys.copy(target, (yield from token()))
    copied = Copy(source, target, aside, move)
    return (yield from ending_watch(_copy_aside(view.under_watch(), copied, replace), ("UNLINK", aside)))


def _copy_aside(view: View, made: "Copy", replace: bool) -> Plan[bool]:
    source, target, aside, move = made.source, made.target, made.aside, made.move
    for _ in range(TRIES):
        watch: Command = ("WATCH", keys.meta(source), keys.meta(target))
        replies = yield Batch(
            [
                ("WATCH", target),
                watch,
                registry_of(source),
                registry_of(target),
                ("EXISTS", target),
                ("TIME",),
            ]
        )
        view.learn(source, replies[2])
        view.learn(target, replies[3])
        yield from settled(view, (source, target))
        here, there = view.recall(source), view.recall(target)
        if not replace and ((replies[4] and not there.fenced) or there.exists):
            yield Batch([("UNWATCH",), ("UNLINK", aside)])
            return False
        if 0 < here.until < ms_of(replies[5]):
            # Its daemon has not carried it out yet. What was written later must not end with it.
            yield Batch([("UNWATCH",)])
            yield from carry_out(view, source)
            continue
        if not here.exists:
            if move:
                fail("ERR no such key")
            yield Batch([("UNWATCH",), ("UNLINK", aside)])
            return False
        if here.is_log or there.is_log:
            refuse_logs(source if here.is_log else target)
        try:
            yield Batch([("WATCH", *(strand.key for strand in here.strands)), ("UNLINK", aside)])
            done = yield from _attempt(view, dataclasses.replace(made, replaces=bool(replies[4])))
        except ReplyError as error:
            if error.code not in ("BSCOPY", "BSSTALE"):
                raise
            yield Batch([("UNWATCH",), ("UNLINK", aside)])
            done = False
        view.forget(target)
        view.forget(source)
        if done:
            if move and here.fenced and not keys.shares_slot(source):
                yield Batch([("UNLINK", source)])
            if here.due or here.until:
                yield from expire_at(view, target, here.due or here.until)
            return True
    fail_changing(source)


def refuse_logs(name: bytes) -> NoReturn:
    why = f"'{shown(name)}' is a log, and its offsets belong to its name"
    raise RefusedError("RENAME or COPY", why, "Read it with TREAD and write the entries with TWRITE")


def fail_changing(name: bytes) -> NoReturn:
    raise ReplyError(
        f"ERR {shown(name)!r} was written {TRIES} times while it was copied. "
        "Stop the writers for a moment and try again."
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A copy that becomes a stream.

    move: the source is deleted. replaces: a plain key has the name of the target.
    """

    source: bytes
    target: bytes
    aside: bytes
    move: bool
    replaces: bool = False


def _attempt(view: View, copied: Copy) -> Plan[bool]:
    length, last = yield from fill(view, copied.source, copied.aside)
    command = adoption(view, copied, (length, last))
    done: list[object] | None = yield Batch([command], atomic=True)
    return done is not None


def token() -> Plan[bytes]:
    """A unique name for a temporary copy: this connection and the time."""
    time, client = yield Batch([("TIME",), ("CLIENT", "ID")], resend=True)
    return b"%d.%b.%b" % (client, time[0], time[1])


def made_s(key: bytes) -> int | None:
    """When the temporary copy was begun, by the clock of its server. None for a key with another token."""
    found = _MADE.match(key)
    return None if found is None else int(found[1])


def fill(view: View, source: bytes, aside: bytes) -> Plan[tuple[int, Id]]:
    """Copy the entries, then the counters, as the user sees both: (how many, the last ID)."""
    about = yield from info(view, [b"XINFO", b"STREAM", source])
    known = facts(about)
    yield Batch([("XGROUP", "CREATE", aside, "bs", "0", "MKSTREAM"), ("XGROUP", "DESTROY", aside, "bs")])
    start, last, length = b"-", ids.ZERO, 0
    while True:
        page = yield from read_range(view, [b"XRANGE", source, start, b"+", b"COUNT", b"%d" % PAGE])
        if not page:
            break
        commands: list[Command] = []
        for entry, fields in page:
            if ids.native(entry) != last:  # of entries with one ID, the first
                commands.append(native_command(aside, (entry, *fields)))
            last = ids.native(entry)
        if None in (yield Batch(commands)):
            raise ReplyError("BSCOPY the copy went away while it was made")
        length += len(commands)
        if last == ids.LAST:
            break
        start = b"(" + ids.text(last)
    # Counters and pages were read at different times. If the source changed in between, the WATCH fails.
    end = max(last, ids.native(known[b"last-generated-id"]))
    deleted = min(end, ids.native(known[b"max-deleted-entry-id"]))
    added = max(length, known[b"entries-added"])
    yield Batch([("XSETID", aside, ids.text(end), "ENTRIESADDED", added, "MAXDELETEDID", ids.text(deleted))])
    return length, end


def adoption(view: View, made: Copy, holds: tuple[int, Id], groups: Sequence[bytes] = ()) -> Command:
    """The command that turns the copy into the stream and deletes the old content.

    holds: how many entries the copy has, and its last ID.
    groups: the groups of the copy, each followed by its start on other strands.

    A plain key of the name may be in another slot. A single server accepts that; a cluster refuses the whole
    call (CROSSSLOT), and nothing is done.
    """
    source, target, aside, move = made.source, made.target, made.aside, made.move
    here, there = view.recall(source), view.recall(target)
    home, chosen = view.home(target), view.chosen(target)
    if chosen in there.strands:
        chosen = chosen.next_life  # the deletion ends its present life
    plain = (target,) if made.replaces or keys.shares_slot(target) else ()
    own, words = named_keys(target, there, there.strands)
    moved, moved_words = moved_keys(source, here)
    from_source = (keys.meta(source), *moved) if move else ()
    where = (keys.meta(target), home.key, aside, chosen.key, *own, *from_source, *plain)
    return (
        "FCALL",
        "bs_braid_adopt",
        len(where),
        *where,
        home.label,
        chosen.label,
        chosen.life,
        ids.text(home.rest(holds[1])),
        holds[0],
        view.region.journal_writer,
        *words,
        *(moved_words if move else (-1,)),
        len(plain),
        *groups,
    )


# ----------------------------------------------------------------------------------------------------
#
# DUMP and RESTORE of streams: one native stream with the user's IDs, groups and pending entries.
#
#     DUMP      s1  1-1     4-1                  aside  1-1  2-2  3-0  4-1   --> DUMP aside --> bytes
#               s2      2-2       -- copied -->         groups, consumers, pending entries
#               c1          3-0
#
#     RESTORE   bytes --> RESTORE aside --> adopted as the chosen strand, its groups with it (as by RENAME)
#
# Of entries that share one ID only one is dumped. A group has a position in each strand; the dump has one
# position, before the first entry that was not delivered: some entries may be delivered twice, none is
# skipped.

# The first byte of a payload: the types that engines have used for a stream, and for anything else.
_STREAM: Final = frozenset((0x0F, 0x13, 0x15, 0x1A, 0x1B))
_OTHER: Final = frozenset((*range(0, 8), *range(9, 0x1A))) - _STREAM
# What PEXPIRETIME answers about a key that does not exist.
_IS_OVER: Final = -2
_BUSY: Final = "BUSYKEY Target key name already exists."
_UNREADABLE: Final = ("ERR DUMP payload", "ERR Bad data format")


def _may_be_stream(payload: bytes) -> bool:
    """Whether the payload is a stream, or of a type that is newer than this code: then the engine decides."""
    return payload != b"" and payload[0] not in _OTHER


def dump(view: View, argv: Argv) -> Plan[bytes | None]:
    """DUMP: O(n) for a stream, copies every entry; retries if the stream changes meanwhile."""
    name = argv[1]
    if not (yield from read_registry(view, name)).exists:
        return (yield from _native(argv))
    view.will_continue()
    view.carriage.refuse_watch("DUMP")
    view = view.alone().under_watch()
    aside = keys.copy(name, (yield from token()))
    return (yield from ending_watch(_dump_aside(view, argv, aside), ("UNLINK", aside)))


def _dump_aside(view: View, argv: Argv, aside: bytes) -> Plan[bytes | None]:
    name = argv[1]
    for _ in range(TRIES):
        _, reply = yield Batch([("WATCH", keys.meta(name)), registry_of(name)])
        registry = view.learn(name, reply)
        if not registry.exists:
            yield Batch([("UNWATCH",)])
            return (yield from _native(argv))
        yield Batch([("WATCH", *(strand.key for strand in registry.strands)), ("UNLINK", aside)])
        yield from fill(view, name, aside)
        yield from _fill_groups(view, registry, name, aside)
        done: list[Any] | None = yield Batch([("DUMP", aside), ("UNLINK", aside)], atomic=True)
        if done is not None:
            return bytes(done[0])
    fail_changing(name)


def _native(argv: Argv) -> Plan[bytes | None]:
    """DUMP of a plain key."""
    [reply] = yield Batch([tuple(argv)], resend=True)
    return None if reply is None else bytes(reply)


def _fill_groups(view: View, registry: Registry, name: bytes, aside: bytes) -> Plan[None]:
    """Create the groups on the copy, with positions, consumers and pending entries."""
    for known in map(facts, (yield from group_status.groups(view, name))):
        group, read = known[b"name"], known[b"entries-read"]
        place = yield from _place(view, name, group, ids.native(known[b"last-delivered-id"]))
        count: Command = () if read is None or read < 0 else ("ENTRIESREAD", read)
        rows = yield from group_status.consumers(view, name, group)
        yield Batch(
            [
                ("XGROUP", "CREATE", aside, group, ids.text(place), *count),
                *(("XGROUP", "CREATECONSUMER", aside, group, facts(row)[b"name"]) for row in rows),
            ]
        )
        yield from _fill_pending(view, registry, group, aside)


def _place(view: View, name: bytes, group: bytes, delivered: Id) -> Plan[Id]:
    """The position before the first entry that was not delivered; at most the last delivered ID."""
    at = yield from xreadgroup_reply.now(view, name, group)
    pages = yield Batch([group_status.after(strand, place, 1) for strand, place in at.items()], resend=True)
    firsts = [strand.user(ids.native(page[0][0])) for strand, page in zip(at, pages, strict=True) if page]
    return min([delivered, *(ids.before(first) or ids.ZERO for first in firsts)])


def _fill_pending(view: View, registry: Registry, group: bytes, aside: bytes) -> Plan[None]:
    start: Id | None = ids.ZERO
    while start is not None:
        rows = yield from rows_of(view, registry.strands, group, Query(start, ids.LAST, PAGE))
        if not rows:
            return
        yield Batch(
            [
                (
                    *("XCLAIM", aside, group, row.consumer, 0, ids.text(row.id)),
                    *("IDLE", row.idle, "RETRYCOUNT", row.deliveries, "FORCE", "JUSTID"),
                )
                for row in rows[:PAGE]
            ]
        )
        start = ids.after(rows[:PAGE][-1].id)


def restore(view: View, argv: Argv) -> Plan[bytes]:
    """RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency].

    The payload of a stream becomes a stream of the region, groups and pending entries included.
    """
    replace = b"REPLACE" in map(option, argv[4:])
    if _may_be_stream(argv[3]) or view.recall(argv[1]).exists:
        view.will_continue()
    if _may_be_stream(argv[3]) and (yield from _restore_stream(view, argv, replace)):
        return b"OK"
    is_stream = (yield from read_registry(view, argv[1])).exists
    if is_stream and not replace:
        fail(_BUSY)
    [reply] = yield Batch([tuple(argv)])
    if is_stream:
        yield from braid.delete(view, argv[1])
    return bytes(reply)


def _restore_stream(view: View, argv: Argv, replace: bool) -> Plan[bool]:
    """Restore into a temporary key and adopt it. False, and nothing is changed, if it is not a stream.

    Retry if the registry was stale, for example because a deadline was just over.
    """
    tries = 0
    while True:
        tries += 1
        view.carriage.refuse_watch("RESTORE")
        yield from require_region(view)
        aside = keys.copy(argv[1], (yield from token()))
        try:
            restored = _restore_aside(view, argv, aside, replace)
            return (yield from ending_watch(restored, ("UNLINK", aside)))
        except ReplyError as error:
            if error.code != "BSSTALE" or tries == TRIES:
                raise


def _restore_aside(view: View, argv: Argv, aside: bytes, replace: bool) -> Plan[bool]:
    name = argv[1]
    *looked, error, kind = yield Batch(
        [
            ("WATCH", name),
            ("WATCH", keys.meta(name)),
            registry_of(name),
            ("EXISTS", name),
            ("RESTORE", aside, *argv[2:]),
            ("TYPE", aside),
        ],
        attempt=True,
    )
    for each in looked:
        if isinstance(each, ReplyError):
            raise each
    _, _, reply, taken = looked
    view.learn(name, reply)
    yield from settled(view, [name])
    registry = view.recall(name)
    busy = not replace and ((taken and not registry.fenced) or registry.exists)
    if not isinstance(kind, ReplyError) and kind != b"stream" and argv[3][0] not in _STREAM:
        yield Batch([("UNWATCH",), ("UNLINK", aside)])
        return False
    try:
        if isinstance(kind, ReplyError):
            raise kind
        if isinstance(error, ReplyError) and not (busy and error.text.startswith(_UNREADABLE)):
            raise error
        refuse_long_name(argv[0], name)
        if busy:
            fail(_BUSY)
        due = -1
        if argv[2] != b"0":  # the copy itself must not expire: its registry would not know why
            due, _ = yield Batch([("PEXPIRETIME", aside), ("PERSIST", aside)])
        if due == _IS_OVER:  # as the engine: only what it replaces is deleted
            yield Batch([("UNWATCH",), ("UNLINK", name)])
            yield from braid.delete(view, name)
            return True
        yield from _refuse_hostile(name, aside)
        yield from _adopt(view, Copy(name, name, aside, move=False, replaces=bool(taken)))
    finally:
        view.forget(name)
    if due >= 0:
        yield from expire_at(view, name, due)
    return True


def _refuse_hostile(name: bytes, aside: bytes) -> Plan[None]:
    """An error for words that would keep the engine's Lua busy. A payload is one word to a gateway."""
    [groups] = yield Batch([("XINFO", "GROUPS", aside)])
    lists, after, count = [[facts(group)[b"name"] for group in groups]], b"-", 1
    while True:
        [page] = yield Batch([("XRANGE", aside, after, "+", "COUNT", count)])
        lists += [fields for _, fields in page]
        for words in lists:
            if len(words) > _FEW_WORDS and share_buckets(sampled(words, _FEW_WORDS)):
                fail(f"ERR the payload of {shown(name)!r} cannot be restored: {HOSTILE}")
        if len(page) < count:
            return
        size = sum(len(word) for words in lists for word in words)
        after, count, lists = b"(" + page[-1][0], 1 if size > _PAGE_BYTES else min(2 * count, PAGE), []


def _adopt(view: View, made: Copy) -> Plan[None]:
    name, aside = made.target, made.aside
    about, groups = yield Batch([("XINFO", "STREAM", aside), ("XINFO", "GROUPS", aside)])
    known, words = facts(about), list[bytes]()
    for group in map(facts, groups):
        words += (group[b"name"], group_start(ids.native(group[b"last-delivered-id"])))
    holds = int(known[b"length"]), ids.native(known[b"last-generated-id"])
    done = yield Batch([adoption(view, made, holds, words)], atomic=True)
    if done is None:
        raise ReplyError(f"ERR {shown(name)!r} was written while it was restored. Try again.")
