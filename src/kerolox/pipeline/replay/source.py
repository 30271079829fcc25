"""What a replay reads: archives, Delta tables and store directories as one kind of table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kerolox.errors import OptionError
from kerolox.pipeline.archive.folders import PROPERTY
from kerolox.pipeline.archive.log import Head, ParquetArchive
from kerolox.pipeline.archive.staging import OWN_FOLDER
from kerolox.pipeline.audit.plan import known_topics, plan_stores
from kerolox.pipeline.replay.plan import ReplayChoice, ReplayError
from kerolox.spark.columns import COLUMNS, SPARK_TYPES, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED = ("topic", "queue_id", "queue_offset", "body")


class ReplaySource(msgspec.Struct, frozen=True):
    """What lies at a path: an archive, a Delta table or a store. Found out without Spark."""

    path: str
    kind: str  # store, files, or any: whatever Spark makes of it
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # those of the columns that folders tell
    properties: str = "map"
    topics: frozenset[str] | None = None  # None: not known

    def table(self, spark: SparkSession, choice: ReplayChoice) -> DataFrame:
        """The messages, as a table."""
        if self.kind == "store":
            store = spark.read.format("rocketmq-store")
            if choice.topics:
                store = store.option("topic", ",".join(choice.topics))
            return store.load(self.path)
        if self.kind == "files":
            return _read_parquet(spark, self)
        return spark.read.parquet(self.path)


def find_source(source: str) -> ReplaySource:
    """An archive, a Delta table or a store directory. Refuses what is none of them, or empty."""
    path = Path(source)
    if (path / "commitlog").is_dir():
        (store,) = plan_stores([path])
        return ReplaySource(source, "store", topics=known_topics([store]))
    if (path / "_delta_log").is_dir():
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise ReplayError(f"{source} is a Delta table: pip install 'kerolox[delta]'") from None
        table = DeltaTable(source)
        fields = table.schema().fields
        properties = next((field.type for field in fields if field.name == "properties"), None)
        text = "string" if str(getattr(properties, "type", "")) == "string" else "map"
        files, names = tuple(table.file_uris()), tuple(field.name for field in fields)
        folders = tuple(table.metadata().partition_columns)
        return _filled(ReplaySource(source, "files", files, names, folders, text))
    if (path / OWN_FOLDER / "archive.json").is_file():
        head = msgspec.json.decode((path / OWN_FOLDER / "archive.json").read_bytes(), type=Head)
        written = ParquetArchive(path).files()
        topics = frozenset(file.topic for file in written.values())
        files = tuple(str(path / file) for file in written)
        folders = tuple(each.removeprefix(PROPERTY) for each in head.partitions)
        names = tuple(head.columns)
        return _filled(ReplaySource(source, "files", files, names, folders, head.properties, topics))
    if "://" not in source and not path.exists():
        raise OptionError("SOURCE", source, "an archive, a Delta table or a store directory")
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise OptionError(
            "SOURCE", source, "an archive, a Delta table or a store directory; this folder has no such files"
        )
    return ReplaySource(source, "any")


def _filled(found: ReplaySource) -> ReplaySource:
    if not found.files:
        raise ReplayError(f"{found.path} is empty: nothing was archived yet")
    return found


def check_topics(found: ReplaySource, choice: ReplayChoice) -> None:
    """Refuse topics that the source does not have: replaying none of them would look like success."""
    strange = [topic for topic in choice.topics if found.topics is not None and topic not in found.topics]
    if strange:
        there = ", ".join(sorted(found.topics or ())[:8]) or "none"
        raise OptionError("--topic", ", ".join(strange), f"topics of {found.path}: {there}")


def _read_parquet(spark: SparkSession, found: ReplaySource) -> DataFrame:
    """Files below a folder. Topics may be told by folders, where Spark would take ``007`` for a number."""
    names = found.columns
    known = [name for name in names if name in COLUMNS]
    columns = arrow_schema(known, properties="string" if found.properties == "string" else "map")
    kinds = [f"{field.name} {SPARK_TYPES[field.type]}" for field in columns]
    told = {"date": "date", "hour": "int"}  # by folders; of whatever else they tell, it is text
    kinds += [
        f"`{name}` {told.get(name, 'string')}"
        for name in names
        if name not in COLUMNS and name in found.folders
    ]
    reader = spark.read.option("basePath", found.path)
    if len(kinds) == len(names):  # a table of somebody else may have columns of its own
        reader = reader.schema(", ".join(kinds))
    return reader.parquet(*found.files)


def chosen(table: DataFrame, choice: ReplayChoice) -> DataFrame:
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
