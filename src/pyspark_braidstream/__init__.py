"""Spark imports every top-level module named `pyspark_*` and registers its DefaultSource: no code needed."""

from braidstream.spark.datasource import DefaultSource

__all__ = ["DefaultSource"]
