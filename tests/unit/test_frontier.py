"""Frontiers: a join that commutes, associates and repeats harmlessly, and the order it makes."""

from hypothesis import given
from hypothesis import strategies as st

from braidstream.model.frontier import Frontier
from braidstream.model.ids import ZERO, Id
from braidstream.model.strand import Strand

STRANDS = [Strand(b"orders", "s", 1), Strand(b"orders", "s", 1023), Strand(b"orders", "c", 1, 1)]
strands = st.sampled_from(STRANDS)
places = st.integers(0, 8).map(lambda number: divmod(number, 3))
frontiers = st.dictionaries(strands, places, max_size=3).map(Frontier)


@given(frontiers, frontiers)
def test_join_commutes(one: Frontier, other: Frontier) -> None:
    assert one.join(other) == other.join(one)


@given(frontiers, frontiers, frontiers)
def test_join_associates(one: Frontier, two: Frontier, three: Frontier) -> None:
    assert one.join(two).join(three) == one.join(two.join(three))


@given(frontiers, frontiers)
def test_joining_again_changes_nothing(one: Frontier, other: Frontier) -> None:
    assert one.join(one) == one
    assert one.join(other).join(other) == one.join(other)


@given(frontiers)
def test_joining_with_nothing_seen_changes_nothing(one: Frontier) -> None:
    assert one.join(Frontier({})) == one


@given(frontiers, frontiers)
def test_a_join_covers_both_and_nothing_more(one: Frontier, other: Frontier) -> None:
    both = one.join(other)
    assert all(both[strand] >= max(one[strand], other[strand]) for strand in (*one, *other))
    assert all(both[strand] in (one[strand], other[strand]) for strand in both)


@given(frontiers, strands, places)
def test_advancing_never_goes_back(one: Frontier, strand: Strand, native: Id) -> None:
    moved = one.advance(strand, native)
    assert moved[strand] == max(one[strand], native)
    assert all(moved[other] == one[other] for other in one if other != strand)


@given(frontiers, strands)
def test_a_strand_it_does_not_name_is_read_from_the_start(one: Frontier, strand: Strand) -> None:
    assert (strand in one.at) or one[strand] == ZERO


@given(frontiers, frontiers)
def test_equal_frontiers_hash_alike(one: Frontier, other: Frontier) -> None:
    assert one == Frontier(dict(reversed(one.at.items())))
    assert hash(one) == hash(Frontier(dict(reversed(one.at.items()))))
    if one == other:
        assert hash(one) == hash(other)


@given(places, st.lists(strands, max_size=6), places)
def test_one_id_is_a_place_in_every_strand(user: Id, found: list[Strand], native: Id) -> None:
    """An entry counts as seen exactly where the ID that users know it by is not after the one given."""
    below = Frontier.below(user, tuple(found))
    for strand in found:
        if native != ZERO:
            assert (native <= below[strand]) == (strand.user(native) <= user)


@given(st.dictionaries(strands, places, max_size=6))
def test_a_frontier_keeps_what_it_was_made_of(given_places: dict[Strand, Id]) -> None:
    frontier = Frontier(given_places)
    kept = dict(given_places)
    given_places.clear()
    assert dict(frontier.at) == kept
