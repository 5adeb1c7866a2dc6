"""Which streams an archive refuses, and why. One that is refused stops no other.

Nothing of a refused stream is read, compared or trimmed: its entries would be wrong or missing in the lake.
"""

from collections.abc import Iterator
from itertools import chain

from braidstream.errors import BraidError, DataLossError, LakeError
from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.lake.lake_state import State, adopted_since
from braidstream.spark.source.data_loss import Loss, missing
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos

Refused = dict[bytes, BraidError]


def find_refused(state: State, infos: StrandInfos, region: int | None, *, allow_loss: bool) -> Refused:
    """The streams to leave out. allow_loss: not those that were trimmed before they were archived."""
    refused: Refused = dict(adopted_since(state, infos, region))
    found: Iterator[tuple[bytes, BraidError]] = _recreated(state, infos)
    if not allow_loss:
        found = chain(found, _trimmed(state, infos, region))
    for name, error in found:
        refused.setdefault(name, error)
    return refused


def is_unread(state: State, strand: Strand, info: StrandInfo) -> bool:
    return info.there and info.last > state.frontier[strand]


def counted(state: State, strand: Strand, info: StrandInfo, region: int | None) -> int | None:
    """How many entries were added to a strand up to where it is archived, if known."""
    if info.lost > state.frontier[strand]:
        return 0  # its key was lost since, and the server counts from there
    return state.offset(strand).count(strand, region)


def notes_of_loss(state: State, unread: StrandInfos) -> Iterator[str]:
    """Strands whose keys were lost since they were archived. unread: those with new entries."""
    for strand, info in unread.items():
        start = state.frontier[strand]
        if strand in state.frontier and info.lost > start:
            yield (
                f"stream {name_text(strand.name)}, strand {place_text(strand)}: the server has lost its key, "
                f"and began again. The lake keeps what it has. Entries after {ids.text(start).decode()} "
                "(native) that were not archived are lost, unless a peer restores them"
            )


def missed(state: State, strand: Strand, info: StrandInfo, region: int | None) -> int:
    """How many entries were removed before they were archived."""
    before, start = counted(state, strand, info, region), state.frontier[strand]
    is_behind = info.first is not None and info.first <= start
    if strand not in state.frontier or info.cut > start or before is None or is_behind:
        return 0
    return max(0, info.added - before - info.length)


def _recreated(state: State, infos: StrandInfos) -> Iterator[tuple[bytes, LakeError]]:
    for strand, info in infos.items():
        here = state.frontier[strand]
        if strand.is_plain and info.there and info.last < here:
            yield (
                strand.name,
                LakeError(
                    f"stream {name_text(strand.name)}: ends at {ids.text(info.last).decode()}, archived up "
                    f"to {ids.text(here).decode()}: it was deleted and created again, or the server has "
                    "lost entries. Archive it to another lake. After a loss, newer entries end this."
                ),
            )


def _trimmed(state: State, infos: StrandInfos, region: int | None) -> Iterator[tuple[bytes, DataLossError]]:
    """Entries were removed before they were archived, and they were not deleted."""
    for strand, info in infos.items():
        start = state.frontier[strand]
        if strand not in state.frontier or info.cut > start or not is_unread(state, strand, info):
            continue
        loss = missing(start, info, counted(state, strand, info, region))
        if loss is not None:
            where = f"stream {name_text(strand.name)}, strand {place_text(strand)}"
            count, there = missed(state, strand, info, region), (region, state.offset(strand).region)
            yield strand.name, DataLossError(f"{where}: {_describe(loss, there, start, count)}")


def _describe(loss: Loss, regions: tuple[int | None, int | None], start: Id, count: int) -> str:
    """regions: this one, and the one that has counted the archived entries."""
    after, (here, there) = f"after {ids.text(start).decode()} (native)", regions
    if loss is Loss.UNCOUNTED:
        return (
            f"in region {here} all archived entries are trimmed, and entries {after} may "
            f"be trimmed too: the archive has counted them in region {there} only. Run it there, or once "
            "with --allow-loss here."
        )
    how = "trimmed" if loss is Loss.TRIMMED else "trimmed, or deleted (the server cannot tell which),"
    return (
        f"{count} entries {after} were {how} before they were archived. Archive more often or keep more "
        "of the stream. To continue without them: --allow-loss."
    )
