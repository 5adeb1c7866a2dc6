"""The strands of a log, as the source sees them: one for each epoch, up to where the log has no gap here.

    t0.1    1 2 3 4 5 6 | 7 8           the epoch ends at 6: 7 and 8 are not part of the log
    t1.2              7 8 9 10          read up to 10 once t0.1 is here up to 6; until then nothing of it

So the positions of a log are offsets, and a query reads them in order, in whichever region it runs.
"""

from dataclasses import replace

from braidstream.commands.logs.log_lookup import Segment, segments
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.meta import Registry
from braidstream.model.offset_log import LAST_OFFSET, SEALED
from braidstream.model.strand import Strand
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos


def dense(name: bytes, registry: Registry, infos: StrandInfos, ends: dict[Strand, Id]) -> StrandInfos:
    """What of the strands of a log belongs to it. ends: the last entry of each strand.

    A strand that is not part of the log (two regions made it apart) is not there, and has the limit 0-0.
    """
    found = {strand: _without(info) for strand, info in infos.items()}
    is_complete = True
    for part in segments(name, registry):
        info = infos.get(part.strand)
        if info is None:
            break
        last = _last_of(part, info, ends.get(part.strand, ids.ZERO)) if is_complete else 0
        found[part.strand] = _limited(part, info, last)
        is_complete = is_complete and last >= part.last
    return found


def _last_of(part: Segment, info: StrandInfo, end: Id) -> int:
    """The last offset of a segment here; the one before the segment if it has none."""
    last = info.last if info.there else info.cut
    if last >= SEALED:
        # Its writer takes no more entries. Where the epoch ends is known once the registry has the next one.
        last = (0, part.last) if part.last < LAST_OFFSET else max(end, info.cut)
    return min(max(last[1] if last < SEALED else 0, part.first - 1), part.last)


def _limited(part: Segment, info: StrandInfo, last: int) -> StrandInfo:
    first = info.first
    if first is not None and not (0, part.first) <= first <= (0, part.last):
        first = None
    limit = (0, part.last)
    cut, lost = min(info.cut, limit), min(info.lost, limit)
    return replace(info, last=(0, last), first=first, cut=cut, lost=lost, limit=limit)


def _without(info: StrandInfo) -> StrandInfo:
    return replace(info, last=ids.ZERO, first=None, cut=ids.ZERO, lost=ids.ZERO, there=False, limit=ids.ZERO)
