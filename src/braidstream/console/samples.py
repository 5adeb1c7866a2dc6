"""What the regions looked like during the last half hour, sampled once for all viewers, in memory only."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from braidstream.config import Config
from braidstream.errors import BraidError
from braidstream.operations.checkup import check_up
from braidstream.operations.doctor import Finding
from braidstream.operations.read_regions import Rates, look, rates_between
from braidstream.operations.status import Overview, overview
from braidstream.operations.streams import StrandRow

_FIRST_WITHIN_S: Final = 20.0

_log = logging.getLogger("braidstream")

EVERY_S: Final = 2.0
SPAN_S: Final = 1_800

Link = tuple[str, str]
# A time in seconds, and a value; None where it is unknown.
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Sample:
    """at: seconds since 1970. lags: ms by link, None if unknown. rates: entries per second by link."""

    at: float
    lags: dict[Link, int | None] = field(default_factory=dict)
    rates: Rates = field(default_factory=dict)


class Sampler:
    """Reads all regions again and again. latest: None until the first reading is done.

    has_file: the regions are those of a file, not one by its URL.
    """

    def __init__(self, regions: Config, *, has_file: bool = True) -> None:
        self._regions, self._has_file = regions, has_file
        self._samples: deque[Sample] = deque(maxlen=round(SPAN_S / EVERY_S))
        self._read_at = 0.0
        self._first = asyncio.Event()
        self.latest: Overview | None = None

    async def run(self) -> None:
        """Until it is cancelled. A round never overlaps the next one."""
        while True:
            began = time.monotonic()
            try:
                await self._read()
            except Exception:  # an odd value in a region: the next round may work
                _log.exception("the regions could not be read")
            await asyncio.sleep(max(0.2, EVERY_S - (time.monotonic() - began)))

    async def _read(self) -> None:
        now = time.monotonic()
        found = overview(await look(self._regions), has_file=self._has_file)
        before, self.latest = self.latest, found
        rates = Rates() if before is None else rates_between(before, found, now - self._read_at)
        self._read_at = now
        lags = {
            (each.source, each.target): each.status.lag_ms if each.status else None for each in found.links
        }
        self._samples.append(Sample(time.time(), lags, rates))
        self._first.set()

    async def newest(self) -> Overview:
        """The latest reading; the first one is waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WITHIN_S):
                await self._first.wait()
        if self.latest is None:
            raise BraidError("the regions could not be read yet. What the console logs says why.")
        return self.latest

    @property
    def rates(self) -> Rates:
        return self._samples[-1].rates if self._samples else {}

    def worst_lags(self, region: str) -> list[Point]:
        """How far the peer that is furthest behind this region was behind, in seconds."""
        return self._points(lambda sample: _worst(sample, region))

    def shipped(self, region: str) -> list[Point]:
        """Entries per second that the region's links shipped to all peers together."""
        return self._points(lambda sample: _shipped(sample, region))

    def _points(self, value: Callable[[Sample], float | None]) -> list[Point]:
        return [(sample.at, value(sample)) for sample in self._samples]


def _worst(sample: Sample, region: str) -> float | None:
    known = [ms for (source, _), ms in sample.lags.items() if source == region and ms is not None]
    return max(known) / 1000 if known else None


def _shipped(sample: Sample, region: str) -> float | None:
    known = [rate for (source, _), rate in sample.rates.items() if source == region]
    return sum(known) if known else None


def spans(points: list[Point]) -> Iterator[list[tuple[float, float]]]:
    """The stretches of known values, between which a curve has a gap."""
    part = list[tuple[float, float]]()
    for at, value in points:
        if value is not None:
            part.append((at, value))
        elif part:
            yield part
            part = []
    if part:
        yield part


# ----------------------------------------------------------------------------------------------------
# How fast streams grow, by writer: sampled while a page shows them, in memory, bounded.

RATE_SPAN_S: Final = 300
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
        seen = self._seen.setdefault((region, name), deque(maxlen=RATE_SPAN_S))
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


# ----------------------------------------------------------------------------------------------------
# The latest check-up of all regions, shared by all viewers.

# A check-up scans the keys of the servers. It is not repeated more often than this.
_FRESH_S: Final = 60.0
_WITHIN_S: Final = 15.0


@dataclass(slots=True)
class LatestFindings:
    """why: empty if the check-up was completed. at: when, in seconds since 1970.

    has_file: the regions are those of a file, not one by its URL.
    """

    has_file: bool = True
    findings: list[Finding] = field(default_factory=list)
    why: str = ""
    at: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def latest(self, regions: Config) -> "LatestFindings":
        async with self._lock:
            if time.time() - self.at > _FRESH_S:
                try:
                    async with asyncio.timeout(_WITHIN_S):
                        names = {each.name for each in regions.region}
                        self.findings = await check_up(regions, names, has_file=self.has_file)
                    self.why = ""
                except TimeoutError:
                    self.findings = []
                    self.why = f"It took more than {_WITHIN_S:g} s: a server has many keys. Run: braid doctor"
                self.at = time.time()
        return self
