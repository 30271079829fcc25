"""What tasks left behind and may be as much as there are messages: joined and added up by Spark."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kerolox.pipeline.audit_checks import TABLES
from kerolox.pipeline.audit_plan import StorePlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACES_MAX = 20  # told of one message that is there many times
_GLOB = re.compile(r"([\\*?\[\]{}])")

Row = dict[str, Any]


class Scratch:
    """The files of all tasks as tables."""

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
    """A path as Spark reads it: of a local file, and no pattern."""
    return "file://" + _GLOB.sub(r"\\\1", str(directory))


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def duplicates(scratch: Scratch, rows_max: int) -> tuple[list[Row], int]:
    """Messages that are in a topic more than once, and how many there are.

    A replica's copy is the same record at the same place of the same broker: that is no duplicate. Nor is one
    that was made on purpose, by ``kerolox dlq resend`` or a replay.
    """
    from pyspark.sql import functions as f

    same = ("topic", "msg_id", "reconsume_times", "copy_of")
    keys = scratch.table("keys").withColumn("hash", f.xxhash64(*same))
    # Numbers first: hardly any key is there twice, and texts are slow to sort and send.
    again = keys.groupBy("hash").count().where("count > 1").select("hash").cache()
    try:
        if again.isEmpty():
            return [], 0
        place = f.struct("stored_ms", "store", "physical_offset", "queue_id", "queue_offset")
        found = (
            keys.join(again, "hash", "left_semi")
            .groupBy(*same)
            .agg(
                f.countDistinct("store_host", "physical_offset").alias("copies"),
                f.slice(f.array_sort(f.collect_list(place)), 1, _PLACES_MAX).alias("places"),
            )
            .where("copies > 1")
        )
        rows = _rows(found.limit(rows_max))
        rows.sort(key=lambda row: (row["topic"], row["places"][0]["stored_ms"], row["msg_id"]))
        return rows, found.count() if len(rows) == rows_max else len(rows)
    finally:
        again.unpersist()


def open_halves(
    scratch: Scratch, stores: Sequence[StorePlan], topics: Collection[str], rows_max: int
) -> list[Row]:
    """Half messages nobody has ended. A half message may have been put back as a copy: the newest counts."""
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
    # Apache's broker leaves the first one be when it puts a copy, so a note about the first ends the copy.
    theirs = [store.number for store in stores if not store.is_ours]
    firsts = ended.where(f.col("store").isin(theirs)).select("store", f.col("queue_offset").alias("first"))
    open_ = open_.withColumn("first", f.col("first_offset").cast("bigint"))
    open_ = open_.join(firsts, ["store", "first"], "left_anti")
    if topics:
        open_ = open_.where(f.col("real_topic").isin(sorted(topics)))
    return _rows(open_.orderBy("stored_ms").limit(rows_max))


def volume(scratch: Scratch) -> pa.Table:
    """Messages and bytes by store, topic, tag and minute."""
    if not scratch.has("volume"):
        return TABLES["volume"].empty_table()
    from pyspark.sql import functions as f

    sums = (f.sum(name).alias(name) for name in ("messages", "bytes", "body_bytes"))
    by = ("minute", "store", "topic", "tag")
    found = scratch.table("volume").groupBy(*by).agg(*sums).toArrow()
    return found.sort_by([(name, "ascending") for name in by])
