"""The offset of a streaming query: a frontier, and how many entries each strand had been given by then.

    {"frontier": {"orders": {"s1": "1794702853882-4"}},
     "counted": {"region": 1, "streams": {"orders": {"s1": 1021}}},
     "began": {"orders": {"s1": "1794702850000-0"}}}

`counted` is what the engine's entries-added said in that region: it tells a trim that took unread entries
from one that did not, and gives the lag. Another region counts differently, so there it is not used.
`began` stands in the first offset of a query only. Spark stores where a batch ends, never where the first
one began; "latest" would mean another moment when that batch is replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.model.frontier import Frontier, name_of_text, name_text, place_of_text, place_text
from braidstream.model.strand import Strand

INITIAL: Final[dict[str, Any]] = {"initial": True}


@dataclass(frozen=True, slots=True)
class Offset:
    """A position, read from or written to a checkpoint. `initial`: before the first batch."""

    frontier: Frontier
    counts: Mapping[Strand, int] = field(default_factory=dict)
    region: int | None = None
    began: Frontier | None = None
    initial: bool = False

    @staticmethod
    def parse(stored: Mapping[str, Any]) -> "Offset":
        if stored.get("initial"):
            return Offset(Frontier({}), initial=True)
        counted = stored.get("counted", {})
        began = stored.get("began")
        return Offset(
            Frontier.parse(stored["frontier"]),
            dict(_counts(counted.get("streams", {}))),
            counted.get("region"),
            None if began is None else Frontier.parse(began),
        )

    @property
    def stored(self) -> dict[str, Any]:
        """The JSON form, frozen by tests/spark/offset.json."""
        if self.initial:
            return dict(INITIAL)
        streams = dict[str, dict[str, int]]()
        for strand in sorted(self.counts, key=lambda each: (each.name, place_text(each))):
            streams.setdefault(name_text(strand.name), {})[place_text(strand)] = self.counts[strand]
        told: dict[str, Any] = {"frontier": self.frontier.positions}
        if streams:
            told["counted"] = {"region": self.region, "streams": streams}
        if self.began is not None:
            told["began"] = self.began.positions
        return told

    def count(self, strand: Strand, region: int | None) -> int | None:
        """How many entries the strand had been given, if that region counted them."""
        return self.counts.get(strand) if self.region == region else None


def _counts(streams: Mapping[str, Mapping[str, int]]) -> list[tuple[Strand, int]]:
    found = list[tuple[Strand, int]]()
    for text, places in streams.items():
        for place, count in places.items():
            strand = place_of_text(name_of_text(text), place)
            if strand is not None:
                found.append((strand, int(count)))
    return found
