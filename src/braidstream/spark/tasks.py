"""Groups work into tasks, and runs it in Spark: a large piece has a task of its own, small ones share a task.

    10,000 strands with a few new entries each    a task for each core
    ten strands with millions                     a task for each strand

A task costs Spark and its Python worker more than a small piece costs a task.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappush, heapreplace
from itertools import chain
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructType

from braidstream.spark.compat import spread

T = TypeVar("T")

TASK_ROWS: Final = 500_000  # entries per task, approximately
RANGE_ROWS: Final = 200  # a range takes a task as long as this many entries


def cores() -> int:
    """The cores of this machine: Spark does not tell a Python source how many it has."""
    return len(os.sched_getaffinity(0))


def tasks_for(rows: int, least: int | None, most_rows: int | None) -> int:
    """How many tasks read this number of entries. least: of the user; most_rows: entries per task."""
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


# ----------------------------------------------------------------------------------------------------
#
#     pieces -> groups -> tasks: work(pieces) -> facts (rows), collected by the driver
#
# Without a session the same function runs in this process: a lake of a few files needs no cluster.

Work = Callable[[Iterator[T]], Iterator[pa.RecordBatch]]
# A function starts it for the first work that needs it.
Session = SparkSession | Callable[[], SparkSession] | None

_GROUP: Final = StructType().add("task", IntegerType()).add("pieces", BinaryType())


def run(
    spark: Session,
    pieces: Sequence[T],
    work: Work[T],
    facts: StructType,
    weights: Sequence[int] | None = None,
    *,
    local: int = 0,
) -> list[dict[str, Any]]:
    """Run work on all pieces; returns the rows of all tasks. weights: as for `frame`. local: up to this many
    entries are worked on in this process, because a Spark job takes longer."""
    if not pieces:
        return []
    if spark is None or (weights is not None and sum(weights) <= local):
        return [row for made in work(iter(pieces)) for row in made.to_pylist()]
    session = spark() if callable(spark) else spark
    return [row.asDict() for row in frame(session, pieces, work, facts, weights).collect()]


def frame(
    spark: SparkSession,
    pieces: Sequence[T],
    work: Work[T],
    schema: StructType,
    weights: Sequence[int] | None = None,
) -> DataFrame:
    """The rows of all tasks, in the order of the tasks. weights: the entries of each piece; without them
    each piece has a task of its own."""
    if not pieces:
        return spark.createDataFrame([], schema)
    groups = [[each] for each in pieces]
    if weights is not None:
        groups = grouped(pieces, weights, tasks_for(sum(weights), slots(spark), None))
    rows = [(at, pickle.dumps(group)) for at, group in enumerate(groups)]
    tasks = spread(spark.createDataFrame(rows, _GROUP), len(groups), "task")
    return tasks.mapInArrow(partial(_work, work), schema)


def slots(spark: SparkSession) -> int:
    """How many tasks run at once."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect does not tell
        return cores()


def _work(work: Work[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    groups = (pickle.loads(each) for batch in batches for each in batch.column("pieces").to_pylist())
    yield from work(chain.from_iterable(groups))
