"""Answers of regions are compared as a reader would: what differs is named, what does not is silent."""

from collections import Counter

from tests.oracle.answers import ascends, difference, times_over


def test_equal_answers_have_no_difference() -> None:
    assert difference({1: ["1-1"], 2: ["1-1"], 3: ["1-1"]}) == ""
    assert difference({2: 5}) == ""


def test_a_difference_names_the_regions_and_what_only_one_has() -> None:
    found = difference({1: ["1-1", "2-1"], 2: ["1-1"]})
    assert found == "only region 1 has ['2-1'], only region 2 has []"
    assert difference({1: 3, 2: 3, 3: 4}) == "region 1 answers 3, region 3 4"
    many = difference({1: [f"{n}-1" for n in range(9)], 2: []})
    assert "and 4 more" in many


def test_the_same_items_in_another_order_are_a_difference() -> None:
    assert difference({1: ["1-1", "2-1"], 2: ["2-1", "1-1"]}) != ""


def test_ids_ascend_by_number_and_one_may_stand_twice() -> None:
    assert ascends(["9-1", "10-0", "10-0"])
    assert not ascends(["10-0", "9-1"])


def test_what_stands_more_often_than_allowed_is_found() -> None:
    assert times_over(["a", "a", "b", "c"], Counter({"a": 1, "b": 1})) == {"a": 2, "c": 1}
