"""Merged pages equal all entries of all strands, sorted at once."""

from hypothesis import given
from hypothesis import strategies as st

from braidstream.model.strand import Entry, merge_certain, merge_pages, reply_entries

# Few milliseconds and sequences, so that entries of several writers meet.
_ids = st.integers(0, 2**16 - 1).map(lambda bits: {divmod(at, 4) for at in range(16) if bits >> at & 1})
_strands = st.dictionaries(st.integers(1, 16), _ids, max_size=16)
_counts = st.one_of(st.none(), st.integers(0, 40))


def _pages(strands: dict[int, set[tuple[int, int]]], *, reverse: bool) -> list[list[Entry]]:
    return [
        [(ms, seq, writer, [b"w", b"%d" % writer]) for ms, seq in sorted(found)][:: -1 if reverse else 1]
        for writer, found in strands.items()
    ]


@given(_strands, _counts, st.booleans())
def test_pages_are_merged_in_order(
    strands: dict[int, set[tuple[int, int]]], count: int | None, reverse: bool
) -> None:
    naive = sorted(
        ((*entry, writer) for writer, found in strands.items() for entry in found), reverse=reverse
    )
    merged = merge_pages(_pages(strands, reverse=reverse), count, reverse=reverse)
    assert [entry[:3] for entry in merged] == naive[:count]
    assert reply_entries(merged) == [[b"%d-%d" % (ms, seq), fields] for ms, seq, _, fields in merged]


@given(_strands, st.integers(0, 40), st.booleans())
def test_pages_of_the_count_are_enough(
    strands: dict[int, set[tuple[int, int]]], count: int, reverse: bool
) -> None:
    whole = _pages(strands, reverse=reverse)
    assert merge_pages([page[:count] for page in whole], count, reverse=reverse) == merge_pages(
        whole, count, reverse=reverse
    )


@given(_strands, st.integers(1, 6), st.booleans())
def test_what_is_certain_is_the_beginning_of_the_whole(
    strands: dict[int, set[tuple[int, int]]], share: int, reverse: bool
) -> None:
    """Whatever the unread rest of the strands is; and it is no less than the shortest page."""
    whole = _pages(strands, reverse=reverse)
    heads = [page[:share] for page in whole]
    unfinished = [page for page in heads if len(page) == share]
    known = merge_certain(heads, unfinished, reverse=reverse)
    assert known == merge_pages(whole, reverse=reverse)[: len(known)]
    assert len(known) >= (share if unfinished else sum(map(len, whole)))


def test_entries_with_one_id_stand_together_by_writer() -> None:
    strands = {9: {(1, 0), (2, 0)}, 3: {(2, 0), (3, 0)}}
    assert [entry[:3] for entry in merge_pages(_pages(strands, reverse=False))] == [
        (1, 0, 9),
        (2, 0, 3),
        (2, 0, 9),
        (3, 0, 3),
    ]
