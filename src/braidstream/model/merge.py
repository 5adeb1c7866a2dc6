"""Weave: merge the strands' pages into one order. Pure functions.

    s1   1-1        4-1   5-1
    s2        2-2               6-2       ->   1-1  2-2  3-0  4-1  5-1  6-2
    c1              3-0

Pages are sorted runs, so sorting their concatenation is the merge (timsort finds the runs). Entries
with one ID in several strands stand next to each other, by writer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import Any

from braidstream.model.ids import TEXT
from braidstream.model.strand import Entry


def weave(pages: Iterable[list[Entry]], count: int | None = None, *, reverse: bool = False) -> list[Entry]:
    """One sorted page of all; at most `count` entries of it."""
    filled = [page for page in pages if page]
    woven = filled[0] if len(filled) == 1 else sorted(chain.from_iterable(filled), reverse=reverse)
    return woven if count is None else woven[:count]


def certain(
    pages: Iterable[list[Entry]], unfinished: Iterable[list[Entry]], *, reverse: bool = False
) -> list[Entry]:
    """What is known for sure of the whole order: up to the first end of a page that may go on.

    1 3 5 |        6 is not certain: after 5, the first page may hold a smaller one
    2 4 6
    """
    woven = weave(pages, reverse=reverse)
    ends = [page[-1] for page in unfinished if page]
    if not ends:
        return woven
    if reverse:
        ms, seq, writer, _ = max(ends)
        return woven[: bisect_right(woven, (-ms, -seq, -writer), key=_from_the_end)]
    ms, seq, writer, _ = min(ends)
    return woven[: bisect_left(woven, (ms, seq, writer + 1, []))]


def _from_the_end(entry: Entry) -> tuple[int, int, int]:
    return -entry[0], -entry[1], -entry[2]


def bodies(woven: list[Entry]) -> list[Any]:
    """What the user gets: [id, fields] of each."""
    return [[TEXT % (ms, seq), fields] for ms, seq, _, fields in woven]
