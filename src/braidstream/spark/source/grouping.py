"""Groups work into tasks: a large range has a task of its own, many small ones share a task.

    10,000 strands with a few new entries each    a task for each core
    ten strands with millions                     a task for each strand

A task costs Spark and its Python worker more than a small range costs a task.
"""

import os
from collections.abc import Sequence
from heapq import heappush, heapreplace
from typing import Final, TypeVar

T = TypeVar("T")

TASK_ROWS: Final = 500_000  # entries per task, approximately
RANGE_ROWS: Final = 200  # a range takes a task as long as so many entries more


def cores() -> int:
    """The cores of this machine: Spark does not tell a Python source how many it has."""
    return len(os.sched_getaffinity(0))


def tasks_for(rows: int, least: int | None, most_rows: int | None) -> int:
    """How many tasks read so many entries. least: of the user; most_rows: entries per task."""
    return max(least or cores(), -(-rows // (most_rows or TASK_ROWS)))


def grouped(
    items: Sequence[T], rows: Sequence[int], tasks: int, most_rows: int | None = None
) -> list[list[T]]:
    """Items in groups that take about equally long: one for each task, more if most_rows demands it.

    rows: the entries of each item.
    """
    if len(items) <= tasks:
        return [[item] for item in items]
    groups, totals = [list[int]() for _ in range(tasks)], [0] * tasks
    loads = [(0, at) for at in range(tasks)]  # a heap: the lightest group first
    for item in sorted(range(len(items)), key=lambda each: -rows[each]):
        load, at = loads[0]
        if most_rows is not None and groups[at] and totals[at] + rows[item] > most_rows:
            load, at = 0, len(groups)
            groups.append([])
            totals.append(0)
            heappush(loads, (rows[item] + RANGE_ROWS, at))
        else:
            heapreplace(loads, (load + rows[item] + RANGE_ROWS, at))
        groups[at].append(item)
        totals[at] += rows[item]
    return [[items[each] for each in sorted(group)] for group in groups if group]
