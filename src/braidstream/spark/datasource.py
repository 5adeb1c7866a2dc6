"""The data source as Spark finds it: `format("braidstream")`. It parses options and hands on."""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from braidstream.spark.options import SourceOptions, source_options
from braidstream.spark.rows import META, Shape
from braidstream.spark.source import BatchReader, FilteringReader, StreamReader


class DefaultSource(DataSource):
    """Streams of braidstream, and plain Redis Streams."""

    @classmethod
    def name(cls) -> str:
        return "braidstream"

    def schema(self) -> StructType:
        return META

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options)
        kind = FilteringReader if options.push_filters else BatchReader
        return kind(options, _shape(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options(self.options)
        return StreamReader(options, _shape(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from braidstream.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from braidstream.spark.sink import stream_writer

        return stream_writer(self.options, schema)


def _shape(options: SourceOptions, schema: StructType) -> Shape:
    return Shape.of(schema, options.mode, options.corrupt_column)
