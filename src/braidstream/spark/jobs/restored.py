"""Finds entries that came back to a server below the archive's position.

A server that has lost entries gets them back from a peer, at their place (lua/mend.lua). The registry then
has the range (`m:`), and counts how often (`y:`). The archive may be past it already:

    lake      1  2        5  6 |               3 and 4 were lost before they were archived
    server    1  2  3  4  5  6  7              3 and 4 were restored:  m: 3 4

So if that note has changed, the archive reads what the range has and the lake has not. Until then it trims
nothing of the strand.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.meta import mended_range
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.jobs.deletions import archived_positions
from braidstream.spark.lake import files
from braidstream.spark.lake.lake_state import State, place_in, within
from braidstream.spark.source.entries import entry_of
from braidstream.spark.source.slices import Range
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos
from braidstream.spark.source.survey import Surveyor

PAGE: Final = 1_000
# Each becomes a file. More of them wait for the next round.
MOST_RANGES: Final = 100

Mended = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Restored:
    """Ranges to archive, and what the lake notes of the region then; None: as it is."""

    parts: list[Range] = field(default_factory=list)
    mended: Mended | None = None


def is_noted(state: State, strand: Strand, info: StrandInfo, region: int | None) -> bool:
    """Whether restored entries of a strand are archived."""
    noted = state.mended.get(name_text(strand.name), {}).get(place_in(strand, region), "")
    return noted.encode() == info.mended


def find_restored(
    root: str, surveyor: Surveyor, state: State, infos: StrandInfos, *, guarded: bool
) -> Restored:
    """What was restored below the frontier since the last look. The driver lists the IDs of these ranges."""
    region, parts = surveyor.region, list[Range]()
    mended = {stream: dict(places) for stream, places in state.mended.items()}
    for strand, info in infos.items():
        if is_noted(state, strand, info, region):
            continue
        found = list[Range]()
        if (where := _range_below(state, strand, info)) is not None:
            alive, archived = _alive(surveyor, strand, where), _archived(root, state, strand, where)
            found = list(_ranges(strand, info, _runs(alive, archived), guarded=guarded))
        parts += found[: MOST_RANGES - len(parts)]
        if len(parts) == MOST_RANGES:
            break
        mended.setdefault(name_text(strand.name), {})[place_in(strand, region)] = info.mended.decode()
    return Restored(parts, None if mended == state.mended else mended)


def _range_below(state: State, strand: Strand, info: StrandInfo) -> tuple[Id, Id] | None:
    """The restored range, as far as it is below the frontier: after one ID up to another."""
    where = mended_range(info.mended, strand.life)
    if where is None or strand not in state.frontier:
        return None
    first, last = max(where[0], ids.after(info.cut) or ids.LAST), min(where[1], state.frontier[strand])
    return (ids.before(first) or ids.ZERO, last) if first <= last else None


def _alive(surveyor: Surveyor, strand: Strand, where: tuple[Id, Id]) -> set[Id]:
    return surveyor.try_servers(lambda server: server.run(_ids(strand, where), strand.key))


def _ids(strand: Strand, where: tuple[Id, Id]) -> Plan[set[Id]]:
    found, (after, high) = set[Id](), where
    while True:
        page = ("XRANGE", strand.key, b"(" + ids.text(after), ids.text(high), "COUNT", PAGE)
        [entries] = yield Batch([page], resend=True)
        found |= {ids.native(entry[0]) for entry in entries}
        if len(entries) < PAGE:
            return found
        after = ids.native(entries[-1][0])


def _archived(root: str, state: State, strand: Strand, where: tuple[Id, Id]) -> set[Id]:
    low, high = where
    ends = strand.user(low), strand.user(high)
    paths = within(state.files.values(), name_text(strand.name), place_text(strand), *ends)
    wanted = files.Wanted.of(strand, low, high)
    positions = (archived_positions(root, each.path, wanted).to_pylist() for each in paths)
    return {strand.native(entry_of(each)) for some in positions for each in some}


def _runs(alive: set[Id], archived: set[Id]) -> Iterator[list[Id]]:
    """Live entries that are not archived, as runs without an archived entry in between: one may just come
    back, and would be archived twice."""
    run = list[Id]()
    for each in sorted(alive | archived):
        if each not in archived:
            run.append(each)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _ranges(strand: Strand, info: StrandInfo, runs: Iterable[list[Id]], *, guarded: bool) -> Iterator[Range]:
    for run in runs:
        start = ids.before(run[0]) or ids.ZERO
        first = info.first if info.first is not None and info.first > start else None
        yield Range(strand, start, run[-1], first, info.size, guarded, len(run))


def mends_of(state: State, infos: Mapping[Strand, StrandInfo], region: int | None) -> dict[Strand, bytes]:
    """What was restored, of each strand whose restored entries are all archived."""
    return {strand: info.mended for strand, info in infos.items() if is_noted(state, strand, info, region)}
