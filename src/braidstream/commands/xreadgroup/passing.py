"""Reads of strands in which other regions have acknowledged entries that are still ahead of the group here.

A native group has one position in a strand and cannot leave an entry out. So the engine function
bs_group_read (lua/ranges.lua) reads the next entries, acknowledges those that another region has
acknowledged, and returns the others. Once the group is past them, reads are native again. A pipeline reads
natively, and gets them again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from braidstream.commands.xreadgroup import heads
from braidstream.commands.xreadgroup.group_arguments import ReadGroup
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

# The most entries of a strand that the function reads in one call.
PAGE: Final = 1_000

Native = Callable[[Strand, int | None], Command]


def is_passing(view: View, name: bytes, group: bytes) -> bool:
    """Whether the group may have to pass entries over, by the cache."""
    passed = view.recall(name).passes.get(group)
    if not passed or view.carriage.has_looked:
        return False
    return any(strand.registration in passed for strand in view.delivered(name, group))


def read(view: View, spec: ReadGroup, name: bytes, native: Native) -> Plan[dict[Strand, list[Any]]]:
    """New entries of one stream, at most COUNT; none only if there are none. native: reads other strands."""
    found = dict[Strand, list[Any]]()
    while True:
        shares = yield from _shares(view, spec, name)
        passed = view.recall(name).passes.get(spec.group, frozenset[bytes]())
        commands = [
            _function(view, spec, strand, share or PAGE)
            if strand.registration in passed
            else native(strand, share)
            for strand, share in shares.items()
        ]
        try:
            replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
        except ReplyError:
            if found:
                return found  # already delivered, so return it
            raise
        moved, is_full = 0, False
        for strand, reply in zip(shares, replies, strict=True):
            if strand.registration not in passed:
                page = dict(heads.by_strand(reply)).get(strand, [])
                moved += len(page)
            else:
                number, is_ahead, page = reply
                moved, is_full = moved + number, is_full or number == PAGE
                if not is_ahead:
                    view.expect_passed(strand, spec.group)
            if page:
                found.setdefault(strand, []).extend(page)
        if not moved or (found and (spec.count is not None or not is_full)):
            return found
        if spec.max_size is not None:
            spec = replace(spec, count=1)  # what fits was measured by entries that were passed over


def _shares(view: View, spec: ReadGroup, name: bytes) -> Plan[dict[Strand, int | None]]:
    strands = view.delivered(name, spec.group)
    if spec.count is None or len(strands) == 1:
        return dict.fromkeys(strands, spec.count)
    view.forget_reading(name, spec.group)  # the group moves further than by what it returns
    return {**(yield from heads.shares(view, name, spec.group, spec.count))}


def _function(view: View, spec: ReadGroup, strand: Strand, count: int) -> Command:
    where = (keys.meta(strand.name), strand.key)
    noack = b"NOACK" if spec.noack else b""
    words = (spec.group, spec.consumer, min(count, PAGE), noack, strand.registration)
    return ("FCALL", "bs_group_read", len(where), *where, *words, view.recall(strand.name).bell)
