"""The data source as Spark finds it: `format("braidstream")`, without registration.

Spark imports every top-level module named `pyspark_*` and takes its `DefaultSource`. It does so in every
session, whether or not it reads a stream, so everything heavy is imported where it is used.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from braidstream.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from braidstream.spark.sink.writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Streams of braidstream, and plain Redis Streams."""

    @classmethod
    def name(cls) -> str:
        return "braidstream"

    @plain_errors
    def schema(self) -> StructType:
        from braidstream.spark.options import source_options
        from braidstream.spark.source.rows import LOG_META, LOG_META_TEXT, META, META_TEXT

        options = source_options(self.options)  # Spark asks at load()
        is_text = options.value_type == "string"
        if options.logs:
            return LOG_META_TEXT if is_text else LOG_META
        return META_TEXT if is_text else META

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from braidstream.spark.view import batch_reader

        return batch_reader(self.options, schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.options.get("lake"):
            from braidstream.spark.lake_stream import lake_stream_reader

            return lake_stream_reader(self.options, schema)
        from braidstream.spark.source.planning import stream_reader

        return stream_reader(self.options, schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from braidstream.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from braidstream.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)
