"""The data source as Spark finds it: `format("braidstream")`, without registration.

Spark imports every top-level module named `pyspark_*` and takes its `DefaultSource`. It does so in every
session, whether or not it reads a stream, so everything heavy is imported where it is used.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from braidstream.spark.sink.writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Streams of braidstream, and plain Redis Streams."""

    @classmethod
    def name(cls) -> str:
        return "braidstream"

    def schema(self) -> StructType:
        from braidstream.spark.source.rows import LOG_META, META

        return LOG_META if "logs" in self.options else META

    def reader(self, schema: StructType) -> DataSourceReader:
        from braidstream.spark.view import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from braidstream.spark.source.reader import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from braidstream.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from braidstream.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema)
