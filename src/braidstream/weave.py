"""Weave: merge the strands' pages into one order. Pure functions.

    s1   1-1        4-1   5-1
    s2        2-2               6-2       ->   1-1  2-2  3-0  4-1  5-1  6-2
    c1              3-0

Pages are sorted runs, so sorting their concatenation is the merge (timsort finds the runs). Entries
with one ID in several strands stand next to each other, by writer.
"""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from braidstream.strand import Entry


def weave(pages: Iterable[list[Entry]], count: int | None = None, *, reverse: bool = False) -> list[Entry]:
    """One sorted page of all; at most `count` entries of it."""
    filled = [page for page in pages if page]
    if len(filled) == 1:
        woven = filled[0]
    else:
        woven = sorted(chain.from_iterable(filled), reverse=reverse, key=_position)
    return woven if count is None else list(islice(woven, count))


def _position(entry: Entry) -> tuple[int, int, int]:
    return entry[:3]


def bodies(woven: list[Entry]) -> list[Any]:
    """What the user gets: [id, fields] of each."""
    return [entry[3] for entry in woven]
