"""The offset of a streaming query: a frontier, and how many entries were added to each strand by then.

    {"frontier": {"orders": {"s1": "1794702853882-4"}},
     "counted": {"region": 1, "streams": {"orders": {"s1": 1021}}},
     "began": {"orders": {"s1": "1794702850000-0"}}}

`counted` is the engine's entries-added in that region. It shows whether a trim removed unread entries, and
gives the lag. Regions count differently, so it is only valid in that region. `began` is in the first offset
of a query
only: Spark stores the end of a batch, never the start of the first one, and "latest" would mean another time
when that batch is replayed.
"""

from collections.abc import Iterable, Mapping
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
        stored: dict[str, Any] = {"frontier": self.frontier.positions}
        if streams:
            stored["counted"] = {"region": self.region, "streams": streams}
        if self.began is not None:
            stored["began"] = self.began.positions
        return stored

    def renamed(self, names: Mapping[Strand, Strand]) -> "Offset":
        """The same position after native streams were adopted: each is another strand, with the same IDs."""
        if not names or self.initial:
            return self
        began = None if self.began is None else _renamed(self.began, names)
        counts = {names.get(strand, strand): count for strand, count in self.counts.items()}
        return Offset(_renamed(self.frontier, names), counts, self.region, began)

    def count(self, strand: Strand, region: int | None) -> int | None:
        """How many entries were added to the strand, if that region counted them."""
        return self.counts.get(strand) if self.region == region else None


def _renamed(frontier: Frontier, names: Mapping[Strand, Strand]) -> Frontier:
    return Frontier({names.get(strand, strand): native for strand, native in frontier.at.items()})


def adopted(strands: Iterable[Strand], there: Iterable[Strand], writer: int | None) -> dict[Strand, Strand]:
    """Which native streams of an offset were adopted (`braid adopt`), and the strand that each is now.

    writer: that of the region that was looked at. If several regions have adopted the name, it is its strand.
    """
    names, known, by_name = dict[Strand, Strand](), set[Strand](), dict[bytes, list[Strand]]()
    for each in there:
        known.add(each)
        if each.has_chosen_ids:
            by_name.setdefault(each.name, []).append(each)
    for strand in strands:
        if strand.is_plain and strand not in known:
            chosen = by_name.get(strand.name, [])
            own = [each for each in chosen if each.writer == writer] or (chosen if len(chosen) == 1 else [])
            if own:
                names[strand] = own[0]
    return names


def _counts(streams: Mapping[str, Mapping[str, int]]) -> list[tuple[Strand, int]]:
    found = list[tuple[Strand, int]]()
    for text, places in streams.items():
        for place, count in places.items():
            strand = place_of_text(name_of_text(text), place)
            if strand is not None:
                found.append((strand, int(count)))
    return found
