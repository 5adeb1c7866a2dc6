"""Spark's source and sink: `spark.read.format("braidstream")` and its siblings. See docs/guides/spark.md."""
