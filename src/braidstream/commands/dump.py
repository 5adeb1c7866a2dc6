"""DUMP and RESTORE of streams: one native stream with the user's IDs, groups and pending entries.

    DUMP      s1  1-1     4-1                  aside  1-1  2-2  3-0  4-1   --> DUMP aside --> bytes
              s2      2-2       -- copied -->         groups, consumers, pending entries
              c1          3-0

    RESTORE   bytes --> RESTORE aside --> adopted as the chosen strand, its groups with it (as by RENAME)

Of entries that share one ID only one is dumped. A group has a position in each strand; the dump has one
position, before the first entry that was not delivered: some entries may be delivered twice, none is skipped.
"""

from typing import Any, Final

from braidstream.commands.arguments import Argv, fail, option, shown
from braidstream.commands.expire import expire_at
from braidstream.commands.groups import group_status
from braidstream.commands.groups.pending import Query, rows_of
from braidstream.commands.rename import PAGE, TRIES, Copy, adoption, fail_changing, fill, token
from braidstream.commands.xreadgroup import heads
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.meta import Registry, group_start
from braidstream.model.strand import facts
from braidstream.protocol import braid
from braidstream.protocol.lookup import read_registry, registry_of, require_region, settled
from braidstream.protocol.plan import Batch, Plan, ending_watch
from braidstream.protocol.stream_view import View

# The first byte of a payload: the types that engines have used for a stream, and for anything else.
_STREAM: Final = frozenset((0x0F, 0x13, 0x15, 0x1A, 0x1B))
_OTHER: Final = frozenset((*range(0, 8), *range(9, 0x1A))) - _STREAM
# What PEXPIRETIME answers about a key that does not exist.
_IS_OVER: Final = -2
_BUSY: Final = "BUSYKEY Target key name already exists."
_UNREADABLE: Final = ("ERR DUMP payload", "ERR Bad data format")


def is_plain(view: View, argv: Argv) -> bool:
    """Whether the engine can run the call itself: the name is no stream and does not become one."""
    becomes = argv[0].upper() == b"RESTORE" and _may_be_stream(argv[3])
    return not becomes and not view.recall(argv[1]).exists


def _may_be_stream(payload: bytes) -> bool:
    """Whether the payload is a stream, or of a type that is newer than this code: then the engine decides."""
    return payload != b"" and payload[0] not in _OTHER


def dump(view: View, argv: Argv) -> Plan[bytes | None]:
    """DUMP: O(n) for a stream, copies every entry; retries if the stream changes meanwhile."""
    name = argv[1]
    if not (yield from read_registry(view, name)).exists:
        return (yield from _native(argv))
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
    for info in map(facts, (yield from group_status.groups(view, name))):
        group, read = info[b"name"], info[b"entries-read"]
        place = yield from _place(view, name, group, ids.native(info[b"last-delivered-id"]))
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
    at = yield from heads.now(view, name, group)
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
    """`_restore_once`; retry if the registry was stale, because a deadline was just over, say."""
    for left in reversed(range(TRIES)):
        try:
            return (yield from _restore_once(view, argv, replace))
        except ReplyError as error:
            if error.code != "BSSTALE" or not left:
                raise
    raise AssertionError("the last try returns or raises")


def _restore_once(view: View, argv: Argv, replace: bool) -> Plan[bool]:
    """Restore into a temporary key and adopt it. False, and nothing is changed, if it is no stream."""
    name = argv[1]
    view.carriage.refuse_watch("RESTORE")
    yield from require_region(view)
    aside = keys.copy(name, (yield from token()))
    return (yield from ending_watch(_restore_aside(view, argv, aside, replace), ("UNLINK", aside)))


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
        if busy:
            fail(_BUSY)
        due = -1
        if argv[2] != b"0":  # the copy itself must not expire: its registry would not know why
            due, _ = yield Batch([("PEXPIRETIME", aside), ("PERSIST", aside)])
        if due == _IS_OVER:  # as the engine: only what it replaces is deleted
            yield Batch([("UNWATCH",), ("UNLINK", name)])
            yield from braid.delete(view, name)
            return True
        yield from _adopt(view, Copy(name, name, aside, move=False, replaces=bool(taken)))
    finally:
        view.forget(name)
    if due >= 0:
        yield from expire_at(view, name, due)
    return True


def _adopt(view: View, made: Copy) -> Plan[None]:
    name, aside = made.target, made.aside
    about, groups = yield Batch([("XINFO", "STREAM", aside), ("XINFO", "GROUPS", aside)])
    known, words = facts(about), list[bytes]()
    for info in map(facts, groups):
        words += (info[b"name"], group_start(ids.native(info[b"last-delivered-id"])))
    holds = int(known[b"length"]), ids.native(known[b"last-generated-id"])
    done = yield Batch([adoption(view, made, holds, words)], atomic=True)
    if done is None:
        raise ReplyError(f"ERR {shown(name)!r} was written while it was restored. Try again.")
