"""Open transactions, found by a join in Spark, because there may be as many as messages.

Spark's SQL engine takes seconds to start, more than the audit of a million messages. So it is used only
here, and only if there are half messages that the broker has not finished.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.pipeline.audit.checks import TABLES
from kerolox.pipeline.audit.finding_kinds import TableRow
from kerolox.pipeline.audit.plan import StorePlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_GLOB = re.compile(r"([\\*?\[\]{}])")


class Scratch:
    """Files of all tasks as tables."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory

    def has(self, name: str) -> bool:
        return any((self.directory / name).glob("*.parquet"))

    def table(self, name: str) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(TABLES[name])
        if not self.has(name):
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(_location(self.directory / name))


def _location(directory: Path) -> str:
    """Return a path as Spark reads it: as a local file, with pattern characters escaped."""
    return "file://" + _GLOB.sub(r"\\\1", str(directory))


def _rows(frame: DataFrame) -> list[TableRow]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def open_halves(
    scratch: Scratch, stores: Sequence[StorePlan], topics: Collection[str], rows_max: int
) -> list[TableRow]:
    """Return half messages of open transactions; of copies that the broker wrote, only the newest."""
    if not scratch.has("halves"):
        return []
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    halves, ended = scratch.table("halves"), scratch.table("ended_halves").distinct()
    copy = f.col("first_offset").isNotNull() | (f.col("checks").cast("int") > 0)
    same = Window.partitionBy("store", "msg_id")
    newest = f.max(f.when(copy, f.col("queue_offset"))).over(same)
    progress: Column = f.lit(0)
    for store in stores:
        progress = f.when(f.col("store") == store.number, f.lit(store.half_progress)).otherwise(progress)
    open_ = (
        halves.withColumn("newest", newest)
        .where(
            f.col("msg_id").isNull() | f.col("newest").isNull() | (f.col("newest") <= f.col("queue_offset"))
        )
        .where(f.col("queue_offset") >= progress)
        .join(ended, ["store", "queue_offset"], "left_anti")
        .join(scratch.table("commits").distinct(), ["store", "msg_id"], "left_anti")
    )
    # Apache's broker keeps the first half message when it writes a copy, so a note on the first ends the
    # copy.
    theirs = [store.number for store in stores if not store.is_ours]
    firsts = ended.where(f.col("store").isin(theirs)).select("store", f.col("queue_offset").alias("first"))
    open_ = open_.withColumn("first", f.col("first_offset").cast("bigint"))
    open_ = open_.join(firsts, ["store", "first"], "left_anti")
    if topics:
        open_ = open_.where(f.col("real_topic").isin(sorted(topics)))
    return _rows(open_.orderBy("stored_ms").limit(rows_max))
