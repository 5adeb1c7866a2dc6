"""Whether a strand still holds what a batch wants of it, and if not, why.

Of entries that are gone the engine keeps their number (entries-added less length) and the highest ID that
XDEL took. Trims take from the head on. So where the head is past our position, so many unread are missing:

    nothing unread was deleted by XDEL (its highest ID is behind us)    trimmed
    one is missing, and XDEL took one                                   deleted, which is no loss
    more are missing, and XDEL took one of them                         nobody can tell
"""

from enum import Enum

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.source.survey import Standing


class Loss(Enum):
    TRIMMED = "entries were trimmed before they were read"
    GONE = "entries were trimmed, or deleted one by one, before they were read; the server cannot tell which"
    UNCOUNTED = "what was read is trimmed here, uncounted by the query: unread entries may be among it"
    DELETED = "the stream was deleted before it was read to its end"
    REBORN = "the stream was deleted and begun anew"
    NOT_REPLICATED = "entries have not arrived in this region yet"


def losses(
    strand: Strand, start: Id, end: Id, standing: Standing, before: int | None, after: int | None
) -> Loss | None:
    """What stands between us and the entries after `start` up to `end`.

    before, after: how many entries the strand had been given at either end, where that is known.
    """
    if strand.is_plain:
        if start > end or (before is not None and after is not None and after < before):
            return Loss.REBORN
        if not standing.there or standing.last < end:
            return Loss.DELETED
    elif standing.cut > start:
        return Loss.DELETED
    elif not standing.there or standing.last < end:
        return Loss.NOT_REPLICATED
    return missing(start, standing, before)


def missing(position: Id, standing: Standing, count: int | None) -> Loss | None:
    """Whether entries after a position are gone. count: how many entries the strand had been given there."""
    if standing.first is not None and standing.first <= position:
        return None  # the head is behind us, so nothing after it was trimmed
    if standing.added == standing.length or standing.last == position:
        return None
    if count is None:
        return Loss.UNCOUNTED
    gone = standing.added - count - standing.length
    if gone <= 0 or (gone == 1 and standing.deleted > position):
        return None
    return Loss.TRIMMED if standing.deleted <= position else Loss.GONE


_NEXT = {
    Loss.TRIMMED: "Keep more of the stream, or read it sooner",
    Loss.GONE: "Keep more of the stream, or read it sooner, if it is trimmed",
    Loss.UNCOUNTED: "Go on in the region that the query read before, which it has counted",
    Loss.DELETED: "What was in it is gone",
    Loss.REBORN: "What was in it is gone; what is in it now would be read from its start",
    Loss.NOT_REPLICATED: "Wait for the region to catch up",
}


def told(loss: Loss, strand: Strand, start: Id, end: Id) -> str:
    whose = "" if strand.is_plain else f", writer {strand.writer}"
    low, high = ids.text(start).decode(), ids.text(end).decode()
    return (
        f"stream {strand.name.decode('utf-8', 'replace')}{whose}: {loss.value} (after {low}, up to {high}, "
        f"native IDs). {_NEXT[loss]}. With failOnDataLoss set to false the query goes on without them."
    )
