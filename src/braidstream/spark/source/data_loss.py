"""Whether a strand still has the entries of a batch, and if not, why.

The engine knows how many entries were removed (entries-added minus length) and the highest ID that XDEL
deleted. Trims remove from the head. So if the head is past our position, the number of missing unread entries
follows:

    XDEL deleted nothing unread (its highest ID is before our position)    trimmed
    one is missing, and XDEL deleted one                                   deleted, which is no loss
    more are missing, and XDEL deleted one of them                         unknown
"""

from enum import Enum

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.source.strand_info import StrandInfo


class Loss(Enum):
    TRIMMED = "entries were trimmed before they were read"
    GONE = "entries were trimmed, or deleted one by one, before they were read; the server cannot tell which"
    UNCOUNTED = "all entries that were read are trimmed here, and unread entries may be trimmed too"
    DELETED = "the stream was deleted before it was read to its end"
    LOST = "the server has lost the stream's key, and what was not read may be lost"
    RECREATED = "the stream was deleted and created again"
    MOVED = "the home of the log was moved by force, and these entries are no longer part of the log"
    NOT_REPLICATED = "entries have not arrived in this region yet"


def losses(
    strand: Strand, start: Id, end: Id, info: StrandInfo, before: int | None, after: int | None
) -> Loss | None:
    """Why entries after `start` up to `end` cannot be read; None if they can.

    before, after: how many entries were added to the strand at both ends, if known.
    """
    if end > info.limit:
        return Loss.MOVED
    if strand.is_plain:
        if start > end or (before is not None and after is not None and after < before):
            return Loss.RECREATED
        if not info.there or info.last < end:
            return Loss.DELETED
    elif info.cut > start:
        return Loss.DELETED
    elif info.lost > start:
        return Loss.LOST
    elif not info.there or info.last < end:
        return Loss.NOT_REPLICATED
    return missing(start, info, before)


def missing(position: Id, info: StrandInfo, count: int | None) -> Loss | None:
    """Whether entries after a position were lost. count: how many entries were added up to there."""
    if info.first is not None and info.first <= position:
        return None  # the head is at or before the position, so nothing after it was trimmed
    if info.added == info.length or info.last == position or info.first == ids.after(position):
        return None  # nothing was removed, or nothing can be missing in between
    if count is None:
        return Loss.UNCOUNTED
    gone = info.added - count - info.length
    if gone <= 0 or (gone == 1 and info.deleted > position):
        return None
    return Loss.TRIMMED if info.deleted <= position else Loss.GONE


_NEXT = {
    Loss.TRIMMED: "Keep more of the stream, or read it sooner",
    Loss.GONE: "Keep more of the stream, or read it sooner, if it is trimmed",
    Loss.UNCOUNTED: "Continue in the region that the query read before, which it has counted",
    Loss.DELETED: "Its entries are lost",
    Loss.LOST: "If a peer has them, its daemon restores them: start the query again then",
    Loss.RECREATED: "Its old entries are lost; the new ones would be read from the start",
    Loss.MOVED: "The daemon of the former home appends them again, with new offsets",
    Loss.NOT_REPLICATED: "Wait for the region to catch up",
}


def describe(loss: Loss, strand: Strand, start: Id, end: Id) -> str:
    whose = "" if strand.is_plain else f", writer {strand.writer}"
    low, high = ids.text(start).decode(), ids.text(end).decode()
    return (
        f"stream {strand.name.decode('utf-8', 'replace')}{whose}: {loss.value} (after {low}, up to {high}, "
        f"native IDs). {_NEXT[loss]}. With failOnDataLoss set to false the query continues without them."
    )
