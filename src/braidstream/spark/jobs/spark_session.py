"""The Spark session of `braid spark`: the one of spark-submit, or one on this machine."""

import os
import sys

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

JOB_ERRORS = (PySparkException, Py4JError)


def open_session(name: str) -> SparkSession:
    """A quiet session in UTC, with our Python for its workers. The master comes from spark-submit or its
    files."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"braid spark {name}")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
