"""How fast streams grow, by writer: sampled while somebody looks at them, in memory, bounded."""

import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from braidstream.admin.stream_overview import StrandRow
from braidstream.console.samples import Point

SPAN_S: Final = 300
_EVERY_S: Final = 1.0
_MOST_STREAMS: Final = 200

Counts = dict[int, int]


class StreamRates:
    """Counts of entries ever added, by region and stream; of the streams that were looked at last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, bytes], deque[tuple[float, Counts]]] = OrderedDict()

    def note(self, region: str, name: bytes, strands: Iterable[StrandRow]) -> dict[int, list[Point]]:
        """Remember the counts of now. Returns entries per second over time, by writer."""
        counts = Counts()
        for row in strands:
            counts[row.strand.writer] = counts.get(row.strand.writer, 0) + row.added
        seen = self._seen.setdefault((region, name), deque(maxlen=SPAN_S))
        self._seen.move_to_end((region, name))
        if len(self._seen) > _MOST_STREAMS:
            self._seen.popitem(last=False)
        now = time.time()
        if not seen or now - seen[-1][0] >= _EVERY_S:
            seen.append((now, counts))
        return {writer: _rates(seen, writer) for writer in counts}


def _rates(seen: Iterable[tuple[float, Counts]], writer: int) -> list[Point]:
    points, before = list[Point](), None
    for at, counts in seen:
        count = counts.get(writer, 0)
        if before is not None:
            grown = count - before[1]
            points.append((at, grown / (at - before[0]) if grown >= 0 else None))
        before = at, count
    return points
