"""Which ranges share a task."""

import pytest

from braidstream.spark.tasks import TASK_ROWS, cores, grouped, tasks_for


def test_few_ranges_have_a_task_each() -> None:
    assert grouped(["a", "b"], [1, 9_000_000], 2) == [["a"], ["b"]]
    assert grouped([], [], 2) == []


def test_many_small_ranges_share_as_many_tasks_as_wanted() -> None:
    groups = grouped(range(10_000), [3] * 10_000, 4)
    assert sorted(map(len, groups)) == [2500] * 4
    assert sorted(each for group in groups for each in group) == list(range(10_000))


def test_a_large_range_is_not_joined_by_small_ones_that_fit_elsewhere() -> None:
    groups = grouped(["large", *map(str, range(30))], [1_000_000, *[10] * 30], 3)
    assert ["large"] in groups
    assert sorted(map(len, groups)) == [1, 15, 15]


@pytest.mark.parametrize("tasks", [1, 3])
def test_no_task_has_more_entries_than_the_most(tasks: int) -> None:
    rows = [60, 60, 60, 40, 5, 5, 1]
    groups = grouped(rows, rows, tasks, 100)
    assert sorted(each for group in groups for each in group) == sorted(rows)
    assert max(map(sum, groups)) <= 100


def test_there_are_more_tasks_for_more_entries() -> None:
    assert tasks_for(10, None, None) == cores()
    assert tasks_for(10, 7, None) == 7
    assert tasks_for(100 * TASK_ROWS, 7, None) == 100
    assert tasks_for(1000, 2, 100) == 10
