"""The format ``rocketmq``: topics read and written as tables, in batch and streaming queries."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from kerolox.spark.columns import spark_schema


class RocketMQ(DataSource):
    """``spark.read.format("rocketmq").option("nameserver", ...).option("topic", ...).load()``.

    Spark makes and calls it in several processes; nothing is opened here.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return spark_schema(properties=self.options.get("properties", "map"))

    def reader(self, schema: StructType) -> DataSourceReader:
        from kerolox.spark.batch_source import BatchSource

        return BatchSource(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kerolox.spark.stream_source import StreamSource

        return StreamSource(dict(self.options), schema)
