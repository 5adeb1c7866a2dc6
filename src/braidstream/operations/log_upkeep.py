"""Move the home of a log, rescue its late tails, compact it: the plans behind `braid log`.

move      seal at the old home, bring the registry to the new one, which continues at the next offset
force     the old home is lost: the new one continues after the last offset that has arrived there
rescue    the old home is back: what it wrote meanwhile is appended at the new home, with new offsets
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from braidstream.commands.removal import drop_all
from braidstream.commands.twrite import Segment, extent_of, infos, segments
from braidstream.errors import BraidError, DamagedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.keys import LOG
from braidstream.model.registry import (
    ENTRY,
    LAST_OFFSET,
    TAG,
    Epoch,
    Registry,
    bell,
    ends_of,
    epochs_of,
    offset_id,
    offset_of,
)
from braidstream.model.strand import Command, Strand, facts
from braidstream.operations.streams import list_streams
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import current, read_any_region, refuse_held_offsets, registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import TRIES
from braidstream.plan.view import View

# How many entries one call rescues, and about how many bytes.
PAGE: Final = 300
PAGE_BYTES: Final = 1024 * 1024
# How many ranges of rescued offsets are noted of one strand: holes beyond are noted as rescued too.
MOST_RANGES: Final = 100
# A note of rescued offsets: `r:<label>:<after>` -> `<upto>`. Malformed ones count nowhere (lua/log_move.lua).
_NOTE: Final = re.compile(re.escape(MetaField.RESCUED) + rb"([^:]+):?([0-9]{0,16})\Z")
_UPTO: Final = re.compile(rb"[1-9][0-9]{0,15}\Z")

Entries = list[tuple[int, bytes, bytes]]
# A strand whose epoch is over, and the last offset of it that counts.
Tail = tuple[Strand, int]


@dataclass(frozen=True, slots=True)
class MovedLog:
    """The registry of a log, and which offsets were appended again, by the label of their strand."""

    registry: Registry
    rescued: dict[bytes, list[range]]

    def is_rescued(self, strand: Strand, offset: int) -> bool:
        return any(offset in part for part in self.rescued.get(strand.label, ()))


def read_log(name: bytes) -> Plan[Registry]:
    """The registry of a log. An error if it is none."""
    return (yield from read_moved(name)).registry


def read_moved(name: bytes) -> Plan[MovedLog]:
    reply = yield from send_one(registry_of(name), resend=True)
    registry, rescued = Registry.parse(name, reply), dict[bytes, list[range]]()
    if registry.home is None or not (registry.is_log or not registry.exists):
        raise BraidError(f"{name.decode(errors='replace')!r} is not a log.")
    for field, upto in zip(reply[::2], reply[1::2], strict=True):
        if (note := _NOTE.match(field)) and _UPTO.match(upto):
            label, after = note.groups()
            rescued.setdefault(label, []).append(range(int(after or 0) + 1, int(upto) + 1))
    return MovedLog(registry, rescued)


def find_homes() -> Plan[dict[bytes, Epoch]]:
    """The last epoch of every log of this server. Scans the database."""
    homes, cursor = dict[bytes, Epoch](), 0
    while True:
        cursor, names = yield from list_streams(cursor)
        fields: list[Command] = [("HGET", keys.meta(name), MetaField.HOMES) for name in names]
        replies = (yield Batch(fields, resend=True)) if names else []
        for name, reply in zip(names, replies, strict=True):
            if reply and (epochs := epochs_of(reply)) and (yield from _is_log(name)):
                homes[name] = epochs[-1]
        if not cursor:
            return homes


def _is_log(name: bytes) -> Plan[bool]:
    try:
        return (yield from current(name)).is_log
    except DamagedError:  # it hides no other
        return False


def home_of(registry: Registry) -> Epoch:
    assert registry.home is not None
    return registry.home


def strand_of_epoch(name: bytes, epoch: Epoch) -> Strand:
    return Strand(name, LOG, epoch.writer, epoch.number)


def end_epoch(name: bytes, epoch: Epoch, to: int, *, force: bool) -> Plan[int]:
    """End an epoch and begin the next one at region `to`. Returns its first offset. You can repeat it.

    force: at the new home, without the old one.
    """
    where: Command = (keys.meta(name), strand_of_epoch(name, epoch).key)
    words: Command = (epoch.number, epoch.writer, to)
    registry = yield from read_log(name)
    if not force:
        yield from refuse_held_offsets()
        where += tuple(keys.journal(name, writer) for writer in {each.writer for each in registry.epochs})
        return int((yield from send_one(("FCALL", "bs_log_seal", len(where), *where, *words))))
    where += (Strand(name, LOG, to, epoch.number + 1).key,)
    words += (registry.bell,)
    for part in segments(name, registry):
        if part.strand.life < epoch.number:
            where += (part.strand.key,)
            words += (part.strand.label, part.first, part.last)
    where += bell(name, registry.bell)
    return int((yield from send_one(("FCALL", "bs_log_force", len(where), *where, *words))))


def lost_tails(name: bytes, registry: Registry, writer: int) -> Iterator[Tail]:
    """Own strands of a region whose epochs are over, and the last offset of each that counts."""
    for epoch, end in zip(registry.epochs[:-1], ends_of(registry.epochs), strict=False):
        if epoch.writer == writer:
            yield strand_of_epoch(name, epoch), end


def read_tail(strand: Strand, after: int) -> Plan[Entries]:
    """A page of what a strand has beyond its epoch."""
    return (yield from read_page(strand.key, after))


def read_page(key: bytes, after: int) -> Plan[Entries]:
    call: Command = ("FCALL_RO", "bs_entry_page", 1, key, offset_id(after), PAGE, PAGE_BYTES)
    page: list[Any]
    _, page = yield from send_one(call, resend=True)
    for native, fields in page:
        if fields[::2] != [TAG, ENTRY]:
            where = f"{key.decode(errors='replace')}, {native.decode()}"
            raise ReplyError(f"WRONGTYPE {where} is not an entry of a log. Was it added with a bare client?")
    return [(offset_of(native), fields[1], fields[3]) for native, fields in page]


def append_tail(name: bytes, tail: Tail, entries: Entries) -> Plan[int]:
    """Append them at the home, each once. Returns how many were new."""
    return (yield from append_once(name, tail[0].label, entries))


def append_once(name: bytes, origin: bytes, entries: Entries) -> Plan[int]:
    """The same for entries of any origin, in order. The home notes the ranges of offsets that were appended.

    A range has no holes: what is missing may have been lost, and be restored and rescued later.
    """
    yield from refuse_held_offsets()
    log, here = (yield from read_moved(name)), (yield from read_any_region())
    home = strand_of_epoch(name, home_of(log.registry))
    if home.writer != here.writer:
        raise BraidError(f"region {here.name} is not the home of {name.decode(errors='replace')!r} yet.")
    done, noted = 0, [*log.rescued.get(origin, ())]
    for run in _runs(entries):
        after = _extended(noted, run[0][0])
        words = [word for entry in run for word in entry]
        call = ("FCALL", "bs_log_rescue", 2, keys.meta(name), home.key, home.label, origin, after, *words)
        done += yield from _call_with_strand(call, home, log.registry)
        noted.append(range(after + 1, run[-1][0] + 1))
    return done


def _runs(entries: Entries) -> Iterator[Entries]:
    """The entries, in parts without holes."""
    for _, run in groupby(enumerate(entries), key=lambda pair: pair[1][0] - pair[0]):
        yield [entry for _, entry in run]


def _extended(noted: Sequence[range], first: int) -> int:
    """After which offset the range begins that an entry extends. A new one begins before the entry."""
    nearest = max((part for part in noted if part.stop <= first), key=lambda part: part.stop, default=None)
    if nearest is None or (nearest.stop < first and len(noted) < MOST_RANGES):
        return first - 1
    return nearest.start - 1


def _call_with_strand(call: Command, home: Strand, registry: Registry) -> Plan[int]:
    """Create the home strand only if it is missing: a daemon has no right to the plain key of the name."""
    try:
        return int((yield from send_one(call)))
    except ReplyError as error:
        if error.code != "BSSTALE":
            raise
    yield from send_one(ensure_command(home, registry.bell, plain=not registry.is_log))
    return int((yield from send_one(call)))


def delete_tail(strand: Strand, entries: Entries) -> Plan[int]:
    """Delete what was rescued, in this region, and by its journal in the others."""
    return (yield from delete(strand, [offset for offset, _, _ in entries]))


# ----------------------------------------------------------------------------------------------------
#
# Compaction of a log: the last entry of each tag stays. The plans behind `braid log compact`.
#
#     offset    1  2  3  4  5  6  7               1 to 4 go: their tags come again
#     tag       a  b  a  b  c  b  a               5, 6 and 7 stay: the last of c, b and a
#
# If a group has not acknowledged 3, in any region, 3 and 4 stay too.
#
# Readers get nil for what is gone. The engine frees the memory of deleted entries only when all entries of
# a radix-tree node are deleted, so the strands are rewritten (lua/log.lua).

# Entries per page.
COMPACTION_PAGE: Final = 1_000


class Verdicts:
    """Which entries go. Give it the entries of a log from the last one to the first."""

    def __init__(self, needed_from: int) -> None:
        self.needed_from = needed_from
        self.kept = 0
        self._seen = set[bytes]()

    def obsolete(self, page: list[tuple[int, bytes]]) -> list[int]:
        """The offsets of a page that go. An entry with an empty tag stays."""
        found = list[int]()
        for offset, tag in page:
            if tag in self._seen and offset < self.needed_from:
                found.append(offset)
            else:
                self.kept += 1
            if tag:
                self._seen.add(tag)
        return found


def read_segments(name: bytes) -> Plan[list[Segment]]:
    """The parts of the log that this region has, oldest first."""
    registry = yield from read_log(name)
    return [part for part in segments(name, registry) if part.strand in registry.strands]


def needed_from(name: bytes) -> Plan[int]:
    """The first offset that a group of this region has not acknowledged. With a group never more than the
    next offset here: it has not delivered what is written or arrives later."""
    registry = yield from read_log(name)
    if not registry.groups:
        return LAST_OFFSET
    parts = segments(name, registry)
    answers = yield Batch([*infos(parts)], resend=True, attempt=True)
    lowest = extent_of(registry, parts, answers).last + 1
    for part, info in zip(parts, answers, strict=True):
        if isinstance(info, ReplyError):
            continue
        groups = yield from send_one(("XINFO", "GROUPS", part.strand.key), resend=True)
        tail = facts(info)[b"last-entry"]
        end = (0, min(offset_of(tail[0]), part.last) if tail else 0)
        for group in map(facts, groups):
            delivered = ids.native(group[b"last-delivered-id"])
            if delivered < end:
                lowest = min(lowest, max(delivered[1] + 1, part.first))
            if group[b"pending"]:
                summary = yield from send_one(("XPENDING", part.strand.key, group[b"name"]), resend=True)
                lowest = min(lowest, offset_of(summary[1]) if summary[1] else lowest)
    return lowest


def read_tags(part: Segment, upto: int) -> Plan[list[tuple[int, bytes]]]:
    """A page of offsets and tags, from `upto` downwards."""
    here = part.within(part.first, upto)
    page: list[Any] = (
        (yield from send_one(here.xrevrange("COUNT", COMPACTION_PAGE), resend=True)) if here else []
    )
    return [(offset_of(native), fields[1]) for native, fields in page]


def delete(strand: Strand, offsets: list[int]) -> Plan[int]:
    """Delete entries here, and by the journal in the other regions. Returns how many were there."""
    view = View((yield from read_any_region()))
    return (yield from drop_all(view, strand, list(map(offset_id, offsets))))


def has_deleted(strand: Strand) -> Plan[bool]:
    """Whether single entries of a strand were deleted, so that rewriting it may free memory."""
    info = facts((yield from send_one(("XINFO", "STREAM", strand.key), resend=True)))
    return bool(ids.native(info[b"max-deleted-entry-id"]) > ids.ZERO)


def memory_of(parts: list[Segment]) -> Plan[int]:
    """How many bytes the engine needs for them."""
    sizes = yield Batch([("MEMORY", "USAGE", part.strand.key, "SAMPLES", 0) for part in parts], resend=True)
    return sum(size or 0 for size in sizes)


def rewrite(strand: Strand, token: bytes) -> Plan[None]:
    """Rewrite a strand while it is used. token: random, since several may do that at once."""
    copy, meta = keys.copy(strand.name, strand.label + b"." + token), keys.meta(strand.name)
    for left in reversed(range(TRIES)):
        _, restores = yield Batch([("UNLINK", copy), ("HGET", meta, MetaField.RESTORES + strand.label)])
        swap: Command = ("FCALL", "bs_log_swap", 3, meta, strand.key, copy, strand.label, restores or b"")
        try:
            while not (yield from send_one(swap)):
                while (yield from send_one(("FCALL", "bs_log_copy", 2, strand.key, copy))):
                    pass
            break
        except ReplyError as error:
            yield Batch([("UNLINK", copy)])
            if error.code == "BSBUSY" or (error.code == "BSSTALE" and not left):
                name = strand.name.decode(errors="replace")
                why = error.text.partition(" ")[2]
                raise BraidError(f"log {name!r} was not rewritten: {why}. Try again.") from None
            if error.code != "BSSTALE":
                raise
