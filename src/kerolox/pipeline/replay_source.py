"""What a replay reads: archives, Delta tables and store directories as one kind of table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kerolox.errors import OptionError
from kerolox.pipeline.archive_log import OWN_FOLDER, Head, ParquetArchive
from kerolox.pipeline.replay_plan import Choice, ReplayError
from kerolox.spark.columns import COLUMNS, SPARK_TYPES, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED = ("topic", "queue_id", "queue_offset", "body")


def open_source(spark: SparkSession, source: str, choice: Choice) -> DataFrame:
    """The messages of an archive, a Delta table or a store directory, as a table."""
    path = Path(source)
    if (path / "commitlog").is_dir():
        store = spark.read.format("rocketmq-store")
        if choice.topics:
            store = store.option("topic", ",".join(choice.topics))
        return store.load(str(path))
    if (path / "_delta_log").is_dir():
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise ReplayError(f"{source} is a Delta table: pip install 'kerolox[delta]'") from None
        table = DeltaTable(source)
        names = [field.name for field in table.schema().fields]
        properties = next((f.type for f in table.schema().fields if f.name == "properties"), None)
        text = "string" if str(getattr(properties, "type", "")) == "string" else "map"
        return _read_parquet(spark, source, table.file_uris(), names, text)
    if (path / OWN_FOLDER / "archive.json").is_file():
        head = msgspec.json.decode((path / OWN_FOLDER / "archive.json").read_bytes(), type=Head)
        files = [str(path / file) for file in ParquetArchive(path).files()]
        return _read_parquet(spark, source, files, head.columns, head.properties)
    if "://" not in source and not path.exists():
        raise OptionError("SOURCE", source, "an archive, a Delta table or a store directory")
    return spark.read.parquet(source)


def _read_parquet(
    spark: SparkSession, root: str, files: Sequence[str], names: Sequence[str], properties: str
) -> DataFrame:
    """Files below a folder. Topics may be told by folders, where Spark would take ``007`` for a number."""
    if not files:
        raise ReplayError(f"{root} is empty: nothing was archived yet")
    known = [name for name in names if name in COLUMNS]
    columns = arrow_schema(known, properties="string" if properties == "string" else "map")
    kinds = [f"{field.name} {SPARK_TYPES[field.type]}" for field in columns]
    kinds += [f"{name} {kind}" for name, kind in (("date", "date"), ("hour", "int")) if name in names]
    reader = spark.read.option("basePath", root)
    if len(kinds) == len(names):
        reader = reader.schema(", ".join(kinds))
    return reader.parquet(*files)


def chosen(table: DataFrame, choice: Choice) -> DataFrame:
    """The rows that are wanted."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise ReplayError(f"the source has no column {', '.join(missing)}: {', '.join(table.columns)}")
    if "broker" not in table.columns:
        table = table.withColumn("broker", f.lit(""))
    wanted: list[Column] = []
    if choice.topics:
        wanted.append(f.col("topic").isin(list(choice.topics)))
    if choice.since_ms is not None:
        wanted.append(f.col("store_timestamp") >= f.timestamp_millis(f.lit(choice.since_ms)))
    if choice.until_ms is not None:
        wanted.append(f.col("store_timestamp") < f.timestamp_millis(f.lit(choice.until_ms)))
    if choice.tags:
        wanted.append(f.col("tags").isin(list(choice.tags)))
    if choice.keys:
        keys = f.array(*(f.lit(key) for key in choice.keys))
        wanted.append(f.arrays_overlap(f.split("keys", r"\s+"), keys))
    try:
        if choice.where:
            wanted.append(f.expr(choice.where))
        for condition in wanted:
            table = table.filter(condition)
    except (AnalysisException, ParseException) as error:
        what = str(error).split("\n", 1)[0]
        expected = f"a condition over the columns {', '.join(table.columns)}: {what}"
        raise OptionError("--where", choice.where, expected) from None
    return table
