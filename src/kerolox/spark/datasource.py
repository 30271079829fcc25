"""The format ``rocketmq``: topics read and written as tables, in batch and streaming queries."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from kerolox.spark.bodies.options import find_declared
from kerolox.spark.columns import spark_schema
from kerolox.spark.short_errors import RefusedStream, tells_shortly
from kerolox.spark.source.options import SOURCE


@tells_shortly
class RocketMQ(DataSource):
    """``spark.read.format("rocketmq").option("nameserver", ...).option("topic", ...).load()``.

    Spark creates and calls it in several processes; it opens nothing.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str | StructType:
        # Options of a batch or a streaming query: Spark does not tell which.
        values = SOURCE.parse(self.options)
        bodies = find_declared(values, values["topic"] or ())
        if bodies is None:
            return spark_schema(properties=values["properties"])
        from kerolox.spark.bodies.table import whole_schema

        return whole_schema(bodies, properties=values["properties"])

    def reader(self, schema: StructType) -> DataSourceReader:
        from kerolox.spark.source.batch import BatchSource

        return BatchSource(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kerolox.spark.source.stream import StreamSource

        try:
            return StreamSource(dict(self.options), schema)
        except Exception as error:  # any error: Spark would lose it
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kerolox.spark.sink.sink import BatchSink

        return BatchSink(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from kerolox.spark.sink.sink import StreamSink

        return StreamSink(dict(self.options), schema, overwrite)
