"""Merges pages of several strands into one page in ID order. Pure functions.

    s1   1-1        4-1   5-1
    s2        2-2               6-2       ->   1-1  2-2  3-0  4-1  5-1  6-2
    c1              3-0

Each page is sorted, so sorting their concatenation merges them (timsort detects the runs). Entries of
several strands with the same ID are ordered by writer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import Any

from braidstream.model.ids import TEXT
from braidstream.model.strand import Entry


def merge_pages(
    pages: Iterable[list[Entry]], count: int | None = None, *, reverse: bool = False
) -> list[Entry]:
    """All entries sorted, or the first `count` of them."""
    filled = [page for page in pages if page]
    merged = filled[0] if len(filled) == 1 else sorted(chain.from_iterable(filled), reverse=reverse)
    return merged if count is None else merged[:count]


def merge_certain(
    pages: Iterable[list[Entry]], unfinished: Iterable[list[Entry]], *, reverse: bool = False
) -> list[Entry]:
    """The merged entries that no unread entry can precede: up to where the first unfinished page ends.

    1 3 5 |        6 is left out: the rest of the first page may contain a smaller ID
    2 4 6
    """
    merged = merge_pages(pages, reverse=reverse)
    ends = [page[-1] for page in unfinished if page]
    if not ends:
        return merged
    if reverse:
        ms, seq, writer, _ = max(ends)
        return merged[: bisect_right(merged, (-ms, -seq, -writer), key=_from_the_end)]
    ms, seq, writer, _ = min(ends)
    return merged[: bisect_left(merged, (ms, seq, writer + 1, []))]


def _from_the_end(entry: Entry) -> tuple[int, int, int]:
    return -entry[0], -entry[1], -entry[2]


def reply_entries(merged: list[Entry]) -> list[Any]:
    """Entries as the user gets them: [id, fields] of each."""
    return [[TEXT % (ms, seq), fields] for ms, seq, _, fields in merged]
