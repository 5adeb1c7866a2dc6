"""TREAD by offset; TREAD GROUP and TACK: readers that share a log.

Without RETRY nothing is pending: a native XREADGROUP NOACK. With RETRY an entry is delivered again until it
is acknowledged or expires, and at most PENDING entries are pending (lua/log_group.lua):

    fast     MULTI [bs_log_admit, native XREADGROUP]     room for all, and nothing due
    exact    bs_log_take                                 due entries, the limit, the queue for room
    wait     XREADGROUP BLOCK on the log, or on `room` while the list is full: first come, first served

A group of scope `once` (model/registry.py) delivers the strands that this region owns. Its reads name the
bell too: the engine refuses them if the owners have changed, and wakes readers that wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from braidstream.commands import xgroup
from braidstream.commands.arguments import Argv, fail, shown
from braidstream.commands.twrite import (
    Extent,
    Read,
    Segment,
    extent_of,
    find_log,
    infos,
    parse_ack,
    parse_read,
    refuse_others,
    segments,
)
from braidstream.commands.xread import BLOCK_SLICE_MS
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.keys import LOG
from braidstream.model.registry import Registry, bell, offset_id, offset_of
from braidstream.model.strand import Command, Strand
from braidstream.plan.lookup import read_registry, registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.plan.view import View

# A waiting reader looks up after this time: the home of the log may have moved.
SLICE_MS: Final = 5_000
# How engines tell that a group or a log is gone, also to a reader that waits.
_GONE: Final = ("NOGROUP", "UNBLOCKED", "BSSTALE")
_NOACK: Final = b"-"
_FOREVER_MS: Final = 10**12
# How often a reader whose turn it is asks again before it queues once more.
_SPINS: Final = 40
# The answer of a queue that has no room.
_FULL: Final = 1


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of a log that a group delivers here.

    parts: new entries come from them, the oldest epoch first. held: they are handed over to another region,
    and this one delivers again what is due. bell: its key, if the group has the scope `once`.
    """

    parts: list[Segment]
    held: list[Segment] = field(default_factory=list)
    bell: tuple[bytes, ...] = ()
    stamp: bytes = b""

    @property
    def scope(self) -> tuple[bytes, ...]:
        """The last argument of the functions."""
        return (b"@%d:%b" % (len(self.held), self.stamp),) if self.bell else ()


class _Patience:
    """How long a reader still waits. Plans have no patience: the engine says how long it waited.

    until: for bs_log_take: milliseconds from now, then the time of the engine; empty if it does not wait.
    """

    def __init__(self, spec: Read, view: View) -> None:
        self.waits = spec.block_ms is not None and view.carriage.may_block
        self.left_ms = spec.block_ms or _FOREVER_MS
        self.until = b"+%d" % self.left_ms if self.waits else b""

    @property
    def is_over(self) -> bool:
        return not self.waits or self.left_ms <= 0

    @property
    def turn_ms(self) -> int:
        return min(self.left_ms, SLICE_MS)

    def waited(self, ms: int) -> None:
        self.left_ms -= ms

    def end(self) -> None:
        self.left_ms = 0


def read_group(view: View, name: bytes, spec: Read) -> Plan[list[Any] | None]:
    """TREAD GROUP: one round trip if the log and the group exist. The first use creates the group."""
    patience, from_last = _Patience(spec, view), spec.from_last
    retries = Retries(f"group {spec.group!r} of log {name.decode(errors='replace')!r} kept vanishing")
    while True:
        rows = list[Any]()
        registry = yield from find_log(view, name)
        if spec.group not in registry.groups:
            registry = yield from _read_again(view, name)  # it may have a scope
        parts = _parts(name, registry)
        if not parts:
            if patience.is_over:
                break
            from_last = False  # entries that are written from now on are after the last
            yield from _wait_for_log(view, name, registry, patience)
            continue
        try:
            share = yield from _share_of(view, name, spec, parts)
            rows = yield from _deliver(view, share, spec, patience)
            if rows or patience.is_over:
                break
            if not spec.retry_ms:
                yield from _read_again(view, name)
        except ReplyError as error:
            if not _is_gone(error):
                raise
            retries.count()
            registry = yield from _read_again(view, name)
            if _parts(name, registry) and spec.group not in registry.groups:
                yield from _create(view, name, spec, from_last=from_last)
    if spec.with_info:
        return [(yield from _info(view, name)), *rows]
    return rows or (None if patience.waits else [])


def _is_gone(error: ReplyError) -> bool:
    return error.code in _GONE and not error.is_client_unblock


def _parts(name: bytes, registry: Registry) -> list[Segment]:
    return [part for part in segments(name, registry) if part.strand in registry.strands]


def _read_again(view: View, name: bytes) -> Plan[Registry]:
    view.forget(name)
    return (yield from read_registry(view, name))


def _share_of(view: View, name: bytes, spec: Read, parts: list[Segment]) -> Plan[_Share]:
    """What the group delivers here. In scope `once`: one more round trip, which creates the bell."""
    assert spec.group is not None
    retries = Retries(f"the groups of {name.decode(errors='replace')!r} kept changing")
    while spec.group in view.recall(name).scopes:
        retries.count()
        stamp = view.recall(name).bell
        where = (keys.meta(name), *bell(name, stamp))
        wait: Command = ("FCALL", "bs_group_wait", len(where), *where, spec.group, stamp)
        registry = view.learn(name, (yield from send_one(wait)))
        if registry.bell == stamp and spec.group in registry.scopes:
            owned, news = registry.owned(spec.group, view.region), registry.delivered(spec.group, view.region)
            found = [part for part in _parts(name, registry) if part.strand in owned]
            return _Share(
                [part for part in found if part.strand in news],
                [part for part in found if part.strand not in news],
                bell(name, stamp),
                stamp,
            )
    return _Share(parts)


def _create(view: View, name: bytes, spec: Read, *, from_last: bool) -> Plan[None]:
    assert spec.group is not None
    start = b"$" if from_last else b"0"
    try:
        yield from xgroup.manage(view, [b"XGROUP", b"CREATE", name, spec.group, start])
    except ReplyError as error:
        is_deleted = error.code == "BSNOKEY" or "requires the key to exist" in error.text
        if error.code != "BUSYGROUP" and not is_deleted:
            raise
        view.forget(name)  # another reader created it, or the log was deleted meanwhile: look again


def _info(view: View, name: bytes) -> Plan[list[int]]:
    parts = segments(name, view.recall(name))
    replies = yield Batch([*infos(parts), registry_of(name)], resend=True, attempt=True)
    registry = view.learn(name, replies.pop())
    extent = extent_of(registry, parts, replies)
    return [extent.first, extent.last]


def _wait_for_log(view: View, name: bytes, registry: Registry, patience: _Patience) -> Plan[None]:
    """Wait until the log is created. Readers do not create it: the first writer is its home."""
    home = registry.home
    if home is None:
        likely = [Strand(name, LOG, writer) for writer in view.region.writers]
    else:
        likely = [Strand(name, LOG, home.writer, home.number)]
    turn = patience.turn_ms
    where: Command = (*(strand.key for strand in likely), *("0-0" for _ in likely))
    block: Command = ("XREAD", "COUNT", 1, "BLOCK", turn, "STREAMS", *where)
    [reply] = yield Batch([block], resend=True, block_ms=turn)
    if reply is None:
        patience.waited(turn)
    view.forget(name)


def _deliver(view: View, share: _Share, spec: Read, patience: _Patience) -> Plan[list[Any]]:
    parts = share.parts
    if not parts and not (share.held and spec.retry_ms):
        return (yield from _wait_for_change(share, spec, patience))
    if not spec.retry_ms:
        return (yield from _deliver_once(view, share, spec, patience))
    if len(parts) == 1 and parts[0].is_open and not share.held and view.carriage.one_step(2):
        found = yield from _take_fast(view, share, spec)
        if found:
            return found
    return (yield from _take(view, share, spec, patience))


def _wait_for_change(share: _Share, spec: Read, patience: _Patience) -> Plan[list[Any]]:
    """Other regions deliver the whole log. Wait until the owners change."""
    if not patience.is_over:
        turn = patience.turn_ms
        yield Batch([_native(spec, _NOACK, *share.bell, noack=True, block_ms=turn)], block_ms=turn)
        patience.waited(turn)
    return []


def _as_it_ends_now(view: View, part: Segment) -> Plan[Segment]:
    """The segment after a wait. If another region writes it, its epoch may have ended during the wait."""
    strand = part.strand
    if strand.writer == view.region.writer:
        return part
    registry = yield from _read_again(view, strand.name)
    known = {each.strand: each for each in segments(strand.name, registry)}
    return known.get(strand, replace(part, last=0))


# Without RETRY


def _deliver_once(view: View, share: _Share, spec: Read, patience: _Patience) -> Plan[list[Any]]:
    """Older epochs first. One slice of waiting on the last strand."""
    *older, last = share.parts
    for part in older:
        read = _native(spec, _NOACK, part.strand.key, *share.bell, noack=True)
        rows = _rows((yield from send_one(read)), part)
        if rows:
            return rows
    where = (last.strand.key, *share.bell)
    if patience.is_over:
        return _rows((yield from send_one(_native(spec, _NOACK, *where, noack=True))), last)
    turn = patience.turn_ms
    command = _native(spec, _NOACK, *where, noack=True, block_ms=turn)
    [reply] = yield Batch([command], block_ms=turn)
    if reply is None:
        patience.waited(turn)
        return []
    return _rows(reply, (yield from _as_it_ends_now(view, last)))


def _native(
    spec: Read,
    consumer: bytes,
    *where: bytes,
    count: int | None = None,
    noack: bool = False,
    block_ms: int | None = None,
) -> Command:
    assert spec.group is not None
    words: Command = ("XREADGROUP", "GROUP", spec.group, consumer, "COUNT", count or spec.count)
    words += ("NOACK",) if noack else ()
    words += () if block_ms is None else ("BLOCK", block_ms)
    return (*words, "STREAMS", *where, *(">" for _ in where))


def _rows(reply: Any, part: Segment) -> list[Any]:
    """The entries of a native XREADGROUP that are part of the log. It read one strand, and empty streams."""
    return [row for row in _entries(reply[0][1]) if row[0] <= part.last] if reply else []


def _beyond(reply: Any, part: Segment) -> list[bytes]:
    """The IDs of entries that are not: a former home wrote them after its epoch had ended."""
    return [native for native, _ in reply[0][1] if offset_of(native) > part.last]


def _entries(page: Iterable[Any]) -> list[Any]:
    return [[offset_of(native), fields[1], fields[3]] for native, fields in page]


# With RETRY


def _keys_of(share: _Share, group: bytes) -> tuple[bytes, ...]:
    strands = [part.strand for part in (*share.held, *share.parts)]
    name = strands[0].name
    return (
        *(strand.key for strand in strands),
        *keys.takes(name, group),
        *([keys.meta(name)] if share.bell else []),
    )


def _take_fast(view: View, share: _Share, spec: Read) -> Plan[list[Any]]:
    """New entries natively, if there is room for all and nothing can be due."""
    assert spec.group is not None
    [part] = share.parts
    strand = part.strand
    which = (strand.name, spec.group)
    if which in view.cache.crowded:
        view.cache.crowded.discard(which)
        return []
    where = _keys_of(share, spec.group)
    times = (spec.group, spec.count, spec.retry_ms, spec.expire_ms, view.recall(strand.name).log.pending)
    admit: Command = ("FCALL", "bs_log_admit", len(where), *where, *times, *share.scope)
    gate = keys.takes(strand.name, spec.group)[2]
    read = _native(spec, spec.policy, strand.key, gate, *share.bell)
    admitted, reply = yield Batch([admit, read], atomic=True, attempt=True)
    if isinstance(admitted, ReplyError) and not isinstance(reply, ReplyError):
        view.cache.crowded.add(which)
        return _rows(reply, part)  # delivered all the same; the next read is refused before it takes anything
    if isinstance(admitted, ReplyError):
        raise admitted
    if not admitted:
        view.cache.crowded.add(which)
        return []
    if isinstance(reply, ReplyError):
        raise reply
    return _rows(reply, part)


def _take(view: View, share: _Share, spec: Read, patience: _Patience) -> Plan[list[Any]]:
    """Due entries and new ones within the limit. Waits until the time is up or a slice is over."""
    assert spec.group is not None
    parts = [*share.held, *share.parts]
    last = parts[-1].strand
    where = _keys_of(share, spec.group)
    room, _, _, waits = keys.takes(last.name, spec.group)
    ticket, token, spins = int(patience.is_over), b"", 0
    while True:
        limit = view.recall(last.name).log.pending
        times = (spec.group, spec.count, spec.retry_ms, spec.expire_ms, limit)
        ends = (part.last for part in parts)
        words: Command = (*times, ticket, patience.until, token, *ends, *share.scope)
        call: Command = ("FCALL", "bs_log_take", len(where), *where, *words)
        page, state, until, token, most, turn = yield from send_one(call)
        if page or state == 0:
            patience.end()
            return _entries(page)
        patience.until = until
        if state == _FULL and spins:
            spins -= 1
            continue
        if state == _FULL:
            room_read = _native(spec, b"w", room, count=1, noack=True, block_ms=turn)
            [rung] = yield Batch([room_read], block_ms=turn, attempt=True)
            if not isinstance(rung, ReplyError):
                # A reader that was served has its reservation for a moment longer: do not lose the turn.
                ticket, spins = 1, _SPINS if rung else 0
            elif not _is_gone(rung):
                raise rung
            continue
        command = _native(spec, spec.policy, last.key, *share.bell, count=most, block_ms=turn)
        [reply] = yield Batch([command], block_ms=turn)
        if reply:
            part = yield from _as_it_ends_now(view, parts[-1])
            rows, late = _rows(reply, part), _beyond(reply, part)
            release: list[Command] = [("ZREM", waits, token)]
            if late:
                release.append(("XACK", last.key, spec.group, *late))
            if len(rows) < most:
                release.append(("XADD", room, "NOMKSTREAM", "MAXLEN", 1, "*", "r", 1))
            yield Batch(release, attempt=True)  # the entries are delivered, whatever comes of it
            if rows:
                return rows
        ticket = 1  # it waited a whole slice
        known = _parts(last.name, (yield from _read_again(view, last.name)))
        if share.bell or known != parts:
            return []  # the home has moved, or may have: start again


# TACK


def acknowledge(view: View, argv: Argv) -> Plan[int]:
    """TACK: one round trip for offsets, one for each range. NOGROUP if there is no such group."""
    name, group = argv[1], argv[2]
    offsets, ranges = parse_ack(argv)
    parts = _parts(name, (yield from find_log(view, name)))
    acked = yield from _acknowledge(name, parts, group, offsets, ranges)
    may_have_moved = bool(ranges) and len(view.region.writers) > 1
    if acked < len(offsets) or may_have_moved or not acked:
        registry = yield from _read_again(view, name)
        if not acked and group not in registry.groups:
            fail(f"NOGROUP No such key '{shown(name)}' or consumer group '{shown(group)}'")
        changed = [part for part in _parts(name, registry) if part not in parts]
        acked += yield from _acknowledge(name, changed, group, offsets, ranges)
    return acked


def _acknowledge(
    name: bytes, parts: list[Segment], group: bytes, offsets: list[int], ranges: list[tuple[int, int]]
) -> Plan[int]:
    room, acked = keys.takes(name, group)[0], 0
    commands: list[Command] = [
        ("XACK", part.strand.key, group, *map(offset_id, wanted))
        for part in parts
        if (wanted := [offset for offset in offsets if part.within(offset, offset)])
    ]
    if commands:
        ring: Command = ("XADD", room, "NOMKSTREAM", "MAXLEN", 1, "*", "r", 1)
        # The ring may be refused, if memory is full: readers that wait look again after a slice.
        replies = (yield Batch([*commands, ring], attempt=True))[:-1]
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        acked += sum(replies)
    for first, last in ranges:
        acked += yield from _acknowledge_range(parts, group, first, last)
    return acked


def _acknowledge_range(parts: list[Segment], group: bytes, first: int, last: int) -> Plan[int]:
    strands = [part.strand for part in parts if part.within(first, last)]
    if not strands:
        return 0
    where = (*(strand.key for strand in strands), keys.takes(strands[0].name, group)[0])
    total = 0
    while True:
        try:
            acked: int = yield from send_one(("FCALL", "bs_log_ack", len(where), *where, group, first, last))
        except ReplyError as error:
            if error.code != "NOGROUP":
                raise
            return total
        total += acked
        if acked < 100_000:
            return total


# ----------------------------------------------------------------------------------------------------
#
# TREAD without a group: entries by offset.
#
# Element i of a reply is offset + i: `[offset, tag, entry]`, or nil where the entry was evicted or deleted.
#
#     TREAD log 3 4          3 was evicted, 6 is the last      [nil, [4, ..], [5, ..], [6, ..]]

# A reply has at most this many nils in a row, so that one word cannot ask for a reply of gigabytes.
MOST_NILS: Final = 10_000
# Offsets that follow each other are never so far apart, unless the home lost its data (lua/strand.lua).
JUMP: Final = 10**15

Row = list[Any]
Found = dict[int, Row]


def read(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """TREAD: one round trip if the log is cached and has all entries, otherwise two."""
    name, spec = argv[1], parse_read(argv)
    if spec.group is not None or (spec.block_ms is not None and view.carriage.may_block):
        view.will_continue()
    if spec.group is not None and spec.count:
        return (yield from read_group(view, name, spec))
    waits = spec.block_ms is not None and view.carriage.may_block and spec.count > 0
    registry = yield from find_log(view, name)
    if not spec.with_info and view.carriage.may_look_again and spec.count:
        full = yield from _read_full(name, registry, spec)
        if full is not None:
            return full
    extent, found = yield from _read_known(view, name, spec)
    rows = _offset_rows(spec, extent.last, found)
    if not rows and waits:
        rows = (yield from _wait(view, name, spec, extent)) or []
        if not rows and not spec.with_info:
            return None
    if rows and not found and extent.last - spec.offset >= JUMP and view.carriage.may_look_again:
        yield from _refuse_jump(view, name, spec)
    if not spec.with_info:
        return rows
    if rows and rows[-1] and rows[-1][0] > extent.last:
        extent = replace(extent, first=min(extent.first, rows[-1][0]), last=rows[-1][0])
    return [[extent.first, extent.last], *rows]


def _last_wanted(spec: Read) -> int:
    return spec.offset + spec.count - 1


def _ranges(parts: Iterable[Segment], spec: Read) -> list[Command]:
    limit = ("COUNT", spec.count) if spec.skip else ()
    end = None if spec.skip else _last_wanted(spec)
    wanted = (part.within(spec.offset, part.last if end is None else end) for part in parts)
    return [part.xrange(*limit) for part in wanted if part]


def _read_full(name: bytes, registry: Registry, spec: Read) -> Plan[list[Any] | None]:
    """The entries, if all are there. None: some are missing, or do not exist yet."""
    wanted = [part for part in segments(name, registry) if part.last >= spec.offset]
    if spec.skip and len(wanted) > 1:
        return None  # entries of a later epoch may have arrived before the rest of an earlier one
    parts = [part for part in wanted if part.strand in registry.strands]
    commands = _ranges(parts, spec)
    if not commands:
        return None
    pages = yield Batch(commands, resend=True, attempt=True)
    if any(isinstance(page, ReplyError) for page in pages):
        return None
    found = _found(pages)
    return [found[offset] for offset in sorted(found)][: spec.count] if len(found) >= spec.count else None


def _read_known(view: View, name: bytes, spec: Read) -> Plan[tuple[Extent, Found]]:
    """The entries, and where the log begins and ends. Reads again if the registry was stale.

    The ends come first: an entry that is missing below the end was there, and is gone.
    """
    retries = Retries(f"the strands of {name.decode(errors='replace')!r} kept changing")
    while True:
        retries.count()
        parts = segments(name, view.recall(name))
        commands = [*infos(parts), *(_ranges(parts, spec) if spec.count else ()), registry_of(name)]
        replies = yield Batch(commands, resend=True, attempt=True)
        *answers, reply = replies
        for each in answers[len(parts) :] + [reply]:
            if isinstance(each, ReplyError):
                raise each
        registry = view.learn(name, reply) if view.carriage.may_look_again else view.recall(name)
        if segments(name, registry) == parts:
            extent = extent_of(registry, parts, answers[: len(parts)])
            found = _found(answers[len(parts) :])
            return extent, {offset: row for offset, row in found.items() if offset <= extent.limit}
        yield from refuse_others(view, name, registry)


def _refuse_jump(view: View, name: bytes, spec: Read) -> Plan[None]:
    """An error if the next entry is so far away that a reader would never get there, nil by nil."""
    parts = [part for part in segments(name, view.recall(name)) if part.strand in view.recall(name).strands]
    pages = yield Batch(_ranges(parts, replace(spec, skip=True, count=1)), resend=True)
    following = min(_found(pages), default=spec.offset)
    if following - spec.offset >= JUMP:
        fail(
            f"JUMP log '{shown(name)}' has no offsets from {spec.offset} to {following - 1}: its home lost "
            f"its data, and went on at {following}. Continue there, or use SKIP"
        )


def _found(pages: Iterable[list[Any]]) -> Found:
    return {
        offset: [offset, fields[1], fields[3]]
        for page in pages
        for native, fields in page
        for offset in (offset_of(native),)
    }


def _offset_rows(spec: Read, last: int, found: Found) -> list[Row | None]:
    """The reply: entries by offset, nil where one is missing. At most MOST_NILS in a row."""
    rows = list[Row | None]()
    if spec.skip:
        rows += [found[offset] for offset in sorted(found)][: spec.count]
        return rows
    end = min(max(last, max(found, default=0)), _last_wanted(spec))
    nils = 0
    for offset in range(spec.offset, end + 1):
        row = found.get(offset)
        nils = 0 if row else nils + 1
        if nils > MOST_NILS:
            return rows
        rows.append(row)
    return rows


def _wait(view: View, name: bytes, spec: Read, extent: Extent) -> Plan[list[Row | None] | None]:
    """Wait for an entry at the offset or later. None if the time is up.

    It waits on the strand that the log ends in, and on the strands that its next epoch may begin with.
    """
    assert spec.block_ms is not None
    left = spec.block_ms
    while True:
        turn = BLOCK_SLICE_MS if not spec.block_ms else min(left, BLOCK_SLICE_MS)
        waited = _awaited(view, name, extent)
        where = (*(strand.key for strand in waited), *(offset_id(spec.offset - 1) for _ in waited))
        command: Command = ("XREAD", "COUNT", spec.count, "BLOCK", turn, "STREAMS", *where)
        [reply] = yield Batch([command], resend=True, block_ms=turn)
        if reply is None:
            left -= turn
        # Read again: a strand of another epoch may have come, and holes count.
        extent, found = yield from _read_known(view, name, spec)
        rows = _offset_rows(spec, extent.last, found)
        if rows:
            return rows
        if spec.block_ms and left <= 0:
            return None


def _awaited(view: View, name: bytes, extent: Extent) -> list[Strand]:
    if extent.ends_in is None:
        return [Strand(name, LOG, writer) for writer in view.region.writers]
    last = extent.ends_in.strand
    if last != view.log_home(name):
        return [last]  # later epochs have entries already, which do not count before the rest of this one
    return [last, *(Strand(name, LOG, writer, last.life + 1) for writer in view.region.writers)]
