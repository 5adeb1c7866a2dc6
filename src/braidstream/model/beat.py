"""Heartbeats of regions, which daemons exchange: `bs:beats` has the latest of each region.

2   1794800000123          region 2 was alive at this time of its own clock; only whether it moves counts
3   1794800000456 off      region 3 was told to stop: its silence means nothing
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from braidstream.model.strand import facts

_OFF = b" off"
_DIGITS = 15  # of milliseconds, until the year 33658


@dataclass(frozen=True, slots=True, order=True)
class Beat:
    """The later of two is the greater."""

    ms: int
    is_off: bool = False

    @property
    def text(self) -> bytes:
        return b"%d%b" % (self.ms, _OFF if self.is_off else b"")


def read_beats(reply: list[Any]) -> dict[int, Beat]:
    """The hash. A field that is no beat is ignored: a newer version may have written it."""
    found = dict[int, Beat]()
    for region, text in facts(reply).items():
        number = text.removesuffix(_OFF)
        if region.isdigit() and number.isdigit() and len(number) <= _DIGITS:
            found[int(region)] = Beat(int(number), text != number)
    return found


def newer(beats: dict[int, Beat], known: dict[int, Beat]) -> dict[int, Beat]:
    """The beats that are later than the known ones."""
    return {region: beat for region, beat in beats.items() if region not in known or known[region] < beat}


@dataclass(slots=True)
class _Pulse:
    """moved_s: when the beat last moved. since_s: since when it moves without a pause."""

    beat: Beat
    moved_s: float
    since_s: float


@dataclass(slots=True)
class Pulses:
    """Whether the beats of the regions move. Times are of a monotonic clock, in seconds.

    after_s: a region whose beat has not moved for so long is dead. One that has moved for so long without
    a pause of half of it is steady.
    """

    after_s: float
    _pulses: dict[int, _Pulse] = field(default_factory=dict)

    def note(self, beats: dict[int, Beat], now_s: float) -> None:
        for region, beat in beats.items():
            known = self._pulses.get(region)
            if known is None:
                self._pulses[region] = _Pulse(beat, now_s, now_s)
            elif known.beat < beat:
                if now_s - known.moved_s > self.after_s / 2:
                    known.since_s = now_s
                known.beat, known.moved_s = beat, now_s

    def begin_again(self, now_s: float) -> None:
        """We were away and received no beats: no region counts as dead or steady because of that."""
        for pulse in self._pulses.values():
            pulse.moved_s = pulse.since_s = now_s

    def known(self, regions: Iterable[int]) -> set[int]:
        """Those that beat, or did. A region that was never heard of is neither alive nor dead."""
        return {each for each in regions if each in self._pulses and not self._pulses[each].beat.is_off}

    def alive(self, regions: Iterable[int], now_s: float) -> set[int]:
        found = self.known(regions)
        return {each for each in found if now_s - self._pulses[each].moved_s < self.after_s}

    def steady(self, regions: Iterable[int], now_s: float) -> set[int]:
        alive = self.alive(regions, now_s)
        return {each for each in alive if now_s - self._pulses[each].since_s >= self.after_s}
