"""Work in Spark's tasks: every piece of it in one task, as evenly as there are tasks."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructType

from braidstream.spark.tasks import run, slots

FACTS = StructType().add("task", IntegerType()).add("piece", IntegerType())


def where(pieces: Iterator[int]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    rows = [{"task": context.partitionId(), "piece": each} for each in pieces]
    yield pa.RecordBatch.from_pylist(rows, pa.schema([("task", pa.int32()), ("piece", pa.int32())]))


def test_each_piece_has_a_task_of_its_own_and_facts_are_in_order(spark: SparkSession) -> None:
    found = run(spark, range(40), where, FACTS)
    assert [(each["task"], each["piece"]) for each in found] == [(n, n) for n in range(40)]


def test_small_pieces_share_a_task_for_each_core(spark: SparkSession) -> None:
    found = run(spark, range(40), where, FACTS, [1] * 40)
    assert sorted(each["piece"] for each in found) == list(range(40))
    assert len({each["task"] for each in found}) == slots(spark) == 2
    assert run(spark, [], where, FACTS) == []
