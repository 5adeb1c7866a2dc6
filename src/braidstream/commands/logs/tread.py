"""TREAD without a group: entries by offset.

Element i of a reply is offset + i: `[offset, tag, entry]`, or nil where the entry was evicted or deleted.

    TREAD log 3 4          3 was evicted, 6 is the last      [nil, [4, ..], [5, ..], [6, ..]]
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from braidstream.commands.arguments import Argv, fail, option, shown
from braidstream.commands.logs.log_arguments import Read, parse_read
from braidstream.commands.logs.log_groups import read_group
from braidstream.commands.logs.log_lookup import (
    Extent,
    Segment,
    extent_of,
    find_log,
    infos,
    refuse_others,
    segments,
)
from braidstream.commands.xread import BLOCK_SLICE_MS
from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.model.keys import LOG
from braidstream.model.meta import Registry
from braidstream.model.offset_log import offset_id, offset_of
from braidstream.model.strand import Strand
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.retries import Retries
from braidstream.protocol.stream_view import View

# A reply has at most so many nils in a row, so that one word cannot ask for a reply of gigabytes.
MOST_NILS: Final = 10_000
# Offsets that follow each other are never so far apart, unless the home lost its data (lua/strand.lua).
JUMP: Final = 10**15

Row = list[Any]
Found = dict[int, Row]


def read(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """TREAD: one round trip if the log is cached and has all entries, otherwise two."""
    name, spec = argv[1], parse_read(argv)
    if spec.group is not None and spec.count:
        return (yield from read_group(view, name, spec))
    waits = spec.block_ms is not None and view.carriage.may_block and spec.count > 0
    registry = yield from find_log(view, name)
    if not spec.with_info and view.carriage.may_look_again and spec.count:
        full = yield from _read_full(name, registry, spec)
        if full is not None:
            return full
    extent, found = yield from _read_known(view, name, spec)
    rows = _rows(spec, extent.last, found)
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


def shares(view: View, argv: Argv) -> bool:
    """Whether TREAD is done in its first batch."""
    return not any(option(word) in (b"BLOCK", b"GROUP") for word in argv[4:])


def fits_multi(view: View, argv: Argv) -> bool:
    """Whether TREAD can stand in a MULTI: not with a group, which may have to be created."""
    return not any(option(word) == b"GROUP" for word in argv[4:])


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


def _rows(spec: Read, last: int, found: Found) -> list[Row | None]:
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
        rows = _rows(spec, extent.last, found)
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
