"""docs/tutorial-spark.md, typed as printed, in the Spark session of these tests."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.matrix import installed
from tests.support.reader import Reader
from tests.support.servers import UP_ABOVE, free_port


@pytest.mark.timeout(600)
def test_the_tutorial_runs_as_printed(spark: SparkSession, tmp_path: Path) -> None:
    first = free_port(*UP_ABOVE)
    reader = Reader(tmp_path, installed("redis-8.10"), {7001: first, 7002: first + 1})
    reader.types("docs/tutorial-spark.md")
