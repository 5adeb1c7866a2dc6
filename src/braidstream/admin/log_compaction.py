"""Compaction of a log: the last entry of each tag stays. The plans behind `braid log compact`.

    offset    1  2  3  4  5  6  7               1 to 4 go: their tags come again
    tag       a  b  a  b  c  b  a               5, 6 and 7 stay: the last of c, b and a

If a group has not acknowledged 3, in any region, 3 and 4 stay too.

Readers get nil for what is gone. The engine frees the memory of deleted entries only when all entries of a
radix-tree node are deleted, so the strands are written anew (lua/log_rewrite.lua).
"""

from typing import Any, Final

from braidstream.admin.log_moves import read_log
from braidstream.commands.drop import AT_ONCE as DROPPED_AT_ONCE
from braidstream.commands.drop import drop_command
from braidstream.commands.logs.log_lookup import Segment, extent_of, infos, segments
from braidstream.errors import BraidError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.model.offset_log import LAST_OFFSET, offset_id, offset_of
from braidstream.model.strand import Strand, facts
from braidstream.protocol.identify import read_any_region
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.protocol.retries import TRIES
from braidstream.protocol.stream_view import View

# Entries per page.
PAGE: Final = 1_000


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
    page: list[Any] = (yield from send_one(here.xrevrange("COUNT", PAGE), resend=True)) if here else []
    return [(offset_of(native), fields[1]) for native, fields in page]


def delete(strand: Strand, offsets: list[int]) -> Plan[int]:
    """Delete entries here, and by the journal in the other regions. Returns how many were there."""
    view, done = View((yield from read_any_region())), 0
    for first in range(0, len(offsets), DROPPED_AT_ONCE):
        natives = [offset_id(offset) for offset in offsets[first : first + DROPPED_AT_ONCE]]
        done += (yield from send_one(drop_command(view, strand, natives, (b"KEEPREF", b"")))).count(1)
    return done


def has_deleted(strand: Strand) -> Plan[bool]:
    """Whether single entries of a strand were deleted, so that writing it anew may free memory."""
    info = facts((yield from send_one(("XINFO", "STREAM", strand.key), resend=True)))
    return bool(ids.native(info[b"max-deleted-entry-id"]) > ids.ZERO)


def memory_of(parts: list[Segment]) -> Plan[int]:
    """How many bytes the engine needs for them."""
    sizes = yield Batch([("MEMORY", "USAGE", part.strand.key, "SAMPLES", 0) for part in parts], resend=True)
    return sum(size or 0 for size in sizes)


def rewrite(strand: Strand, token: bytes) -> Plan[None]:
    """Write a strand anew, while it is used. token: random, since several may do that at once."""
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
                raise BraidError(f"log {name!r} was not written anew: {why}. Try again.") from None
            if error.code != "BSSTALE":
                raise
