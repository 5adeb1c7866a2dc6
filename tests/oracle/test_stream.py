"""The naive stream does what its few lines say: the machines that trust it are no better than it is."""

import pytest

from tests.oracle.stream import Key, Stream, TooSmall

ONE: Key = ((1, 2), 2, "s")
TWO: Key = ((3, 5), 5, "s")
LATE: Key = ((2, 9), 9, "c")


def stream(*keys: Key) -> Stream:
    made = Stream()
    for key in keys:
        made.add(key, b"v")
    return made


def test_entries_are_in_the_order_of_their_ids_whoever_wrote_them() -> None:
    model = stream(ONE, TWO, LATE)
    assert model.between() == [ONE, LATE, TWO]
    assert model.between_back(count=1) == [TWO]
    assert model.after((2, 9)) == [TWO]
    assert (model.last, model.newest, model.added) == ((3, 5), (3, 5), 3)


def test_a_strand_only_grows_at_its_end() -> None:
    model = stream(TWO)
    with pytest.raises(TooSmall):
        model.add(((3, 5), 5, "s"), b"v")
    model.add(((1, 1), 5, "c"), b"v")
    assert model.next_in(3, (5, "s")) == (3, 6)
    with pytest.raises(TooSmall):
        model.next_in(2, (5, "s"))


def test_what_is_removed_is_gone_and_only_deletion_is_remembered() -> None:
    model = stream(ONE, TWO, LATE)
    assert model.trim_to(2) == 1
    assert model.max_deleted == (0, 0)
    assert model.delete_entries([(2, 9), (7, 7)]) == 1
    assert (model.between(), model.max_deleted) == ([TWO], (2, 9))
    assert (model.delete(), model.delete()) == (1, 0)


def test_a_group_is_given_a_late_entry_of_another_strand_once() -> None:
    model = stream(ONE, TWO)
    model.create_group(b"g", None)
    model.add(LATE, b"late")
    assert model.read_new(b"g", b"ann", None, noack=False) == [LATE]
    assert model.read_new(b"g", b"bob", None, noack=False) == []
    assert model.acknowledge(b"g", [(2, 9), (2, 9)]) == 1


def test_what_was_given_back_belongs_to_nobody_and_can_be_claimed() -> None:
    model = stream(ONE)
    model.create_group(b"g", (0, 0))
    model.read_new(b"g", b"ann", None, noack=False)
    assert model.give_back(b"g", [(1, 2)], mode="FAIL", force=False, times=None, native=True) == 1
    assert model.claimable(b"g", only_old=True) == [ONE]
    model.take_over(b"g", b"bob", [ONE])
    assert model.groups[b"g"].own(b"bob") == [ONE]
    assert model.groups[b"g"].held[ONE].times == 2
