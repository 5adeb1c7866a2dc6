"""The offset of a streaming query: a frontier and counts; how much one micro-batch takes.

    {"frontier": {"orders": {"s1": "1794702853882-4"}},
     "counted": {"region": 1, "streams": {"orders": {"s1": 1021}}},
     "began": {"orders": {"s1": "1794702850000-0"}}}

`counted` is the engine's entries-added in that region. It shows whether a trim removed unread entries, and
gives the lag. Regions count differently, so it is only valid in that region. `began` is in the first offset
of a query
only: Spark stores the end of a batch, never the start of the first one, and "latest" would mean another time
when that batch is replayed.

Spark keeps a hundred offsets in its progress reports, and writes each into the checkpoint. So those of many
strands are packed:

    {"packed": "eNpd...", "region": 1, "began": "eNq1..."}
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from braidstream.clusters.bulk import Server
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_of_text, name_text, place_of_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.source import columns

INITIAL: Final[dict[str, Any]] = {"initial": True}
# An offset with more strands is packed.
READABLE: Final = 1_000


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
        began = stored.get("began")
        if "packed" in stored:
            at, counts = _unpack(stored["packed"])
            first = None if began is None else Frontier(_unpack(began)[0])
            return Offset(Frontier(at), counts, stored["region"], first)
        counted = stored.get("counted", {})
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
        if len(self.frontier.at) > READABLE:
            packed: dict[str, Any] = {"packed": _pack(self.frontier.at, self.counts), "region": self.region}
            return packed if self.began is None else {**packed, "began": _pack(self.began.at, {})}
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


# ----------------------------------------------------------------------------------------------------
#
# A packed offset: the names and places of the strands once, and their positions and counts in columns, byte
# by byte, so that the high bytes, which are alike, are together. Compressed, in base64.

# What was packed or unpacked last, by its text: the end of a batch is the start of the next one.
_RECENT: Final = 4
_recent: dict[str, tuple[Mapping[Strand, Id], Mapping[Strand, int]]] = {}


def _pack(at: Mapping[Strand, Id], counts: Mapping[Strand, int]) -> str:
    streams = dict[bytes, list[Strand]]()
    for strand in at:
        streams.setdefault(strand.name, []).append(strand)
    layouts, of_streams, strands = dict[tuple[str, ...], int](), list[int](), list[Strand]()
    names = sorted(streams)
    for name in names:
        places = sorted((place_text(strand), strand) for strand in streams[name])
        layout = tuple(place for place, _ in places)
        of_streams.append(layouts.setdefault(layout, len(layouts)))
        strands += [strand for _, strand in places]
    first_ms = min((at[strand][0] for strand in strands), default=0)
    columns = (
        of_streams,
        [at[strand][0] - first_ms for strand in strands],
        [at[strand][1] for strand in strands],
        [counts.get(strand, -1) + 1 for strand in strands],
    )
    head = {"streams": [*map(name_text, names)], "places": [*layouts], "first_ms": first_ms}
    planes = (np.array(column, "<u8").view(np.uint8).reshape(-1, 8).T.tobytes() for column in columns)
    whole = b"\n".join((json.dumps(head).encode(), b"".join(planes)))
    text = b64encode(zlib.compress(whole)).decode()
    _remember(text, at, counts)
    return text


def _unpack(text: str) -> tuple[Mapping[Strand, Id], Mapping[Strand, int]]:
    if (known := _recent.get(text)) is not None:
        return known
    head, _, planes = zlib.decompress(b64decode(text, validate=True)).partition(b"\n")
    known = json.loads(head)
    layouts = [[_maker(place) for place in layout] for layout in known["places"]]
    names = [name_of_text(name) for name in known["streams"]]
    of_streams, rest = _column(planes, len(names))
    strands = [make(name) for name, layout in zip(names, of_streams, strict=True) for make in layouts[layout]]
    ms, rest = _column(rest, len(strands), known["first_ms"])
    sequences, rest = _column(rest, len(strands))
    counted, rest = _column(rest, len(strands))
    at = dict(zip(strands, zip(ms, sequences, strict=True), strict=True))
    counts = {strand: count - 1 for strand, count in zip(strands, counted, strict=True) if count}
    _remember(text, at, counts)
    return at, counts


def _column(planes: bytes, length: int, plus: int = 0) -> tuple[list[int], bytes]:
    """The first column, and the other ones."""
    column = np.frombuffer(planes[: 8 * length], np.uint8).reshape(8, -1).T.copy().view("<u8")
    return (column.ravel() + np.uint64(plus)).tolist(), planes[8 * length :]


def _maker(place: str) -> Callable[[bytes], Strand]:
    """What makes the strand of a place for the name of a stream."""
    found = place_of_text(b"", place)
    if found is None:
        raise ValueError(f"{place} is not a strand")
    kind, writer, life = found.kind, found.writer, found.life
    return lambda name: Strand(name, kind, writer, life)


def _remember(text: str, at: Mapping[Strand, Id], counts: Mapping[Strand, int]) -> None:
    _recent[text] = at, counts
    while len(_recent) > _RECENT:
        del _recent[next(iter(_recent))]


# ----------------------------------------------------------------------------------------------------
#
# Limits a micro-batch by counting entries and bytes along the strands. Driver only.
#
# An ID does not show how many entries are before it. So to find where a limited batch ends, the driver
# receives its entries once, and counts them without parsing them (unless a value has a `*`, or bytes are
# limited). The engine serves the entries of a limited batch twice, unless all of them fit.

PAGE_ROWS, PAGE_BYTES = 5_000, 2 << 20


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread part of one strand: after `start`, up to `end`.

    count: the maximum number of entries. size: approximate bytes of one.
    """

    start: Id
    end: Id
    count: int
    size: int


def cut(
    server: Server, backlogs: Mapping[Strand, Backlog], max_entries: int | None, max_bytes: int | None
) -> dict[Strand, tuple[Id, int]]:
    """{strand: (end, number of entries)}.

    Every strand gets a share by its backlog, the one furthest behind first. At least one entry is read, also
    beyond the limit in bytes: a large one must not stop the query.
    """
    total = max(1, sum(backlog.count for backlog in backlogs.values()))
    if max_bytes is None and max_entries is not None and total <= max_entries:
        return {strand: (backlog.end, backlog.count) for strand, backlog in backlogs.items()}
    entries_left, bytes_left = max_entries, max_bytes
    taken = dict[Strand, tuple[Id, int]]()
    for strand, backlog in sorted(backlogs.items(), key=lambda each: each[1].start):
        share = backlog.count / total
        most = None if max_entries is None else min(entries_left or 0, max(1, round(max_entries * share)))
        room = None if max_bytes is None else min(bytes_left or 0, max(1, round(max_bytes * share)))
        end, count, size = _walk(server, strand, backlog, most, room, not any(n for _, n in taken.values()))
        taken[strand] = end, count
        entries_left = None if entries_left is None else entries_left - count
        bytes_left = None if bytes_left is None else max(0, bytes_left - size)
    return taken


def count(server: Server, strand: Strand, end: Id, size: int) -> int:
    """Count the entries of a strand up to a position, by reading them."""
    return _walk(server, strand, Backlog(ids.ZERO, end, 0, size), None, None, False)[1]


def _walk(
    server: Server, strand: Strand, backlog: Backlog, most: int | None, room: int | None, must_move: bool
) -> tuple[Id, int, int]:
    """A limited number of entries and bytes of a strand: (their end, number, size)."""
    position, count, size = backlog.start, 0, 0
    page_rows = max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, backlog.size)))
    with server.wire(strand.key) as wire:
        while most is None or count < most:
            wanted = page_rows if most is None else min(page_rows, most - count)
            low, high = b"(" + ids.text(position), ids.text(backlog.end)
            reply = wire.receive(wire.send(("XRANGE", strand.key, low, high, "COUNT", wanted)))
            if room is None and (known := columns.extent(reply)) is not None:
                found, position = known
                count += found
                if found < wanted:
                    return backlog.end, count, size
                continue
            page = columns.parse(reply)
            sums = size + np.cumsum(page.sizes)
            fits = len(page) if room is None else int(np.searchsorted(sums, room, side="right"))
            if not fits and must_move and not count and len(page):
                fits = 1
            if fits:
                position, count, size = page.id(fits - 1), count + fits, int(sums[fits - 1])
            if fits < len(page):
                break
            if len(page) < wanted:
                return backlog.end, count, size
    return position, count, size
