"""What Spark's bridge from Python costs by itself: a source that does nothing but hand over.

One batch of the store's own rows, made once in each worker and handed over again and again: the least a
source in Python can cost, with as many columns and bytes as the real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS = 8192  # of the batch, as the store's pieces have them at 128 B
BYTES = 2 << 20


class Share(InputPartition):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class FinishedRows(DataSource):
    """The rows of a Parquet file of one batch, many times."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "finished-rows"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FinishedReader(json.loads(self.options["task"]))


class FinishedReader(DataSourceReader):
    def __init__(self, task: Mapping[str, object]) -> None:
        self.task = task

    def partitions(self) -> Sequence[InputPartition]:
        shares, rows = int(str(self.task["shares"])), int(str(self.task["rows"]))
        return [Share(rows // shares) for _ in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow.ipc

        assert isinstance(partition, Share)
        with pyarrow.ipc.open_file(str(self.task["file"])) as file:
            batch = file.get_batch(0)
        left = partition.rows
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def finished_rows(spark: SparkSession, sample: DataFrame, file: str, rows: int, shares: int) -> DataFrame:
    """As many rows as that, made of the first few of ``sample``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    import bench.spark_limit as here

    cloudpickle.register_pickle_by_value(here)  # workers do not know this folder
    spark.dataSource.register(FinishedRows)
    schema = to_arrow_schema(sample.schema, timezone="UTC")
    first = sample.limit(64).toArrow()
    each = max(64, min(ROWS, BYTES * first.num_rows // first.nbytes))
    (batch,) = sample.limit(each).toArrow().combine_chunks().cast(schema).to_batches()
    with pa.ipc.new_file(file, schema) as sink:
        sink.write_batch(batch)
    task = {"file": file, "rows": rows, "shares": shares}
    reader = spark.read.format("finished-rows").schema(sample.schema).option("task", json.dumps(task))
    return reader.load()
