"""Runs work on a lake as Spark jobs: a row for each piece of work, a function that does it in a task.

    pieces (rows) -> tasks: function(record batches) -> facts (rows), collected by the driver

Without a session the same function runs in this process: a lake of a few files needs no cluster.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def run(
    spark: SparkSession | None,
    pieces: Sequence[tuple[Any, ...]],
    schema: StructType,
    function: Function,
    facts: StructType,
) -> list[dict[str, Any]]:
    """Run one task per piece; returns the rows of all tasks, in any order."""
    if not pieces:
        return []
    if spark is not None:
        frame = spark.createDataFrame(list(pieces), schema).repartition(len(pieces), *schema.names)
        return [row.asDict() for row in frame.mapInArrow(function, facts).collect()]
    columns = [list(column) for column in zip(*pieces, strict=True)]
    arrow = to_arrow_schema(schema, timezone="UTC")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(each, f.type) for each, f in zip(columns, arrow, strict=True)], schema=arrow
    )
    return [row for made in function(iter([batch])) for row in made.to_pylist()]
