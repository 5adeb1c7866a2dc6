"""Weave: merge the strands' pages into one order. Pure functions.

    s1   1-1        4-1   5-1
    s2        2-2               6-2       ->   1-1  2-2  3-0  4-1  5-1  6-2
    c1              3-0

Pages are sorted runs, so sorting their concatenation is the merge (timsort finds the runs). Entries
with one ID in several strands stand next to each other, by writer.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any

from braidstream.strand import Entry


def weave(pages: Iterable[list[Entry]], count: int | None = None, *, reverse: bool = False) -> list[Entry]:
    """One sorted page of all; at most `count` entries of it."""
    filled = [page for page in pages if page]
    if len(filled) == 1:
        woven = filled[0]
    else:
        woven = sorted(chain.from_iterable(filled), reverse=reverse, key=position)
    return woven if count is None else woven[:count]


# Where an entry stands: (ms, seq, writer).
position: Callable[[Entry], tuple[int, int, int]] = itemgetter(0, 1, 2)


def certain(
    pages: Iterable[list[Entry]], unfinished: Iterable[list[Entry]], *, reverse: bool = False
) -> list[Entry]:
    """What is known for sure of the whole order: up to the first end of a page that may go on.

    1 3 5 |        6 is not certain: after 5, the first page may hold a smaller one
    2 4 6
    """
    woven = weave(pages, reverse=reverse)
    ends = [position(page[-1]) for page in unfinished if page]
    if not ends:
        return woven
    if reverse:
        return [entry for entry in woven if position(entry) >= max(ends)]
    return [entry for entry in woven if position(entry) <= min(ends)]


def bodies(woven: list[Entry]) -> list[Any]:
    """What the user gets: [id, fields] of each."""
    return [[b"%d-%d" % (ms, seq), fields] for ms, seq, _, fields in woven]
