"""What Spark 4.0 and 4.1 lack.

Each feature is looked for by itself, because vendors bring features of later versions into earlier ones.

    since   feature                                           without it
    4.1     filters of a Python source                        Spark filters after the read
    4.1     DataSourceStreamArrowWriter                       the Arrow writer of batches
    4.1     repartitionById                                   by range, which takes a job more
    4.2     latestOffset(start, limit), getDefaultReadLimit   the reader remembers (source/planning.py)
    4.2     SupportsTriggerAvailableNow                       such a run is one batch: see `available_now`
    4.2     to_arrow_schema(timezone=...)                     its timestamps are in UTC anyway
"""

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

try:
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
except ImportError:

    @dataclass(frozen=True)
    class Filter:  # type: ignore[no-redef]
        attribute: tuple[str, ...]
        value: Any

    class EqualTo(Filter): ...  # type: ignore[no-redef]

    class GreaterThan(Filter): ...  # type: ignore[no-redef]

    class GreaterThanOrEqual(Filter): ...  # type: ignore[no-redef]

    class In(Filter): ...  # type: ignore[no-redef]

    class LessThan(Filter): ...  # type: ignore[no-redef]

    class LessThanOrEqual(Filter): ...  # type: ignore[no-redef]


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Spark 4.0 gives record batches to every DataSourceArrowWriter, of streaming queries too."""


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS_BATCHES = True
except ImportError:
    LIMITS_BATCHES = False

    class ReadLimit: ...  # type: ignore[no-redef]

    class ReadAllAvailable(ReadLimit): ...  # type: ignore[no-redef]

    @dataclass(frozen=True)
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        min_rows: int

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        max_bytes: int

    class SupportsTriggerAvailableNow: ...  # type: ignore[no-redef]


_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's to_arrow_schema, with timestamps in UTC."""
    return to_arrow_schema(schema, **_UTC)


def spread(frame: "DataFrame", tasks: int, column: str) -> "DataFrame":
    """Rows in partitions by a column of numbers from 0 on, in their order."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(tasks, column)
    return frame.repartitionByRange(tasks, column)


def available_now(writer: "DataStreamWriter") -> "StreamingQuery":
    """Run a query until it has read what there is, whatever Spark and whatever limits: the last run of it.

    Before 4.2 a run with the trigger availableNow is one batch: the one that a killed run has left,
    or one to which the limits of the source apply. So it is started again until a run gets no further.
    """
    while True:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        steps = [source for each in query.recentProgress for source in each.sources]
        if LIMITS_BATCHES or all(step.startOffset == step.endOffset for step in steps):
            return query


__all__ = [
    "DataSourceStreamArrowWriter",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "available_now",
    "spread",
]
