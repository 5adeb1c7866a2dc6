"""Whether a strand still holds what a batch wants of it, and if not, why."""

from enum import Enum

from braidstream import ids
from braidstream.ids import Id
from braidstream.spark.survey import Standing
from braidstream.strand import Strand


class Loss(Enum):
    TRIMMED = "entries were trimmed before they were read"
    DELETED = "the stream was deleted before it was read to its end"
    REBORN = "the stream was deleted and begun anew"
    NOT_REPLICATED = "entries have not arrived in this region yet"


def losses(
    strand: Strand, start: Id, end: Id, standing: Standing, before: int | None, after: int | None
) -> Loss | None:
    """What stands between us and the entries after `start` up to `end`.

    before, after: how many entries the strand had been given at either end, where that is known.
    """
    if strand.kind == "p":
        if start > end or (before is not None and after is not None and after < before):
            return Loss.REBORN
        if not standing.there or standing.last < end:
            return Loss.DELETED
    elif standing.cut > start:
        return Loss.DELETED
    elif not standing.there or standing.last < end:
        return Loss.NOT_REPLICATED
    if standing.first is not None and standing.first <= start:
        return None  # the head is behind us, so nothing after it was trimmed
    if before is None:
        return None if standing.last == start else Loss.TRIMMED if standing.added > standing.length else None
    return Loss.TRIMMED if standing.added - before > standing.length else None


_NEXT = {
    Loss.TRIMMED: "Keep more of the stream, or read it sooner",
    Loss.DELETED: "What was in it is gone",
    Loss.REBORN: "What was in it is gone; what is in it now would be read from its start",
    Loss.NOT_REPLICATED: "Wait for the region to catch up",
}


def told(loss: Loss, strand: Strand, start: Id, end: Id) -> str:
    whose = "" if strand.kind == "p" else f", writer {strand.writer}"
    low, high = ids.text(start).decode(), ids.text(end).decode()
    return (
        f"stream {strand.name.decode('utf-8', 'replace')}{whose}: {loss.value} (after {low}, up to {high}, "
        f"native IDs). {_NEXT[loss]}. With failOnDataLoss set to false the query goes on without them."
    )
