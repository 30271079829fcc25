"""Sources of a replay: archives, Delta and Iceberg tables and store directories, all read as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from posixpath import basename
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from kerolox.errors import OptionError
from kerolox.pipeline.archive.folders import PROPERTY
from kerolox.pipeline.archive.log import Head, ParquetArchive, read_head
from kerolox.pipeline.audit.plan import known_topics, plan_stores
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.staging import HEAD
from kerolox.pipeline.lake.storage import Storage, open_storage
from kerolox.pipeline.replay.iceberg_source import PREFIX, iceberg_files
from kerolox.pipeline.replay.lake_files import FolderValues, LakeFiles, columns_of, folder_values
from kerolox.pipeline.replay.plan import ReplayChoice, ReplayError
from kerolox.spark.columns import COLUMNS, SPARK_TYPES, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KINDS = "an archive, a Delta table or a store directory"
PLACES = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp", "tags", "keys")
NEEDED = ("topic", "queue_id", "queue_offset", "body")


class ReplaySource(msgspec.Struct, frozen=True):
    """Archive, Delta table or store at an address, identified without Spark."""

    path: str
    kind: str  # store, files, or any (as Spark reads it)
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # columns whose values are in folder names
    properties: str = "map"
    topics: frozenset[str] | None = None  # None: unknown
    lake: LakeFiles | None = None  # files at an address that Spark cannot read itself

    def table(self, spark: SparkSession, choice: ReplayChoice, *, places_only: bool = False) -> DataFrame:
        """Return the messages as a DataFrame. ``places_only``: only places and the columns of the choice."""
        if self.lake is not None:
            # A condition may name any column.
            return (self.lake.only(PLACES) if places_only and not choice.where else self.lake).table(spark)
        if self.kind == "store":
            store = spark.read.format("rocketmq-store")
            if choice.topics:
                store = store.option("topic", ",".join(choice.topics))
            return store.load(self.path)
        table = _read_parquet(spark, self) if self.kind == "files" else spark.read.parquet(self.path)
        check_columns(table.columns)
        return table


def find_source(
    source: str, options: Mapping[str, Any] | None = None, catalog: CatalogPlace | None = None
) -> ReplaySource:
    """Identify the source at a path or address. Raises an error if it is empty or of no known kind."""
    if source.startswith(PREFIX):
        lake = iceberg_files(source.removeprefix(PREFIX), catalog or CatalogPlace(), options)
        check_columns(lake.schema.names)
        return ReplaySource(source, "files", tuple(path for path, _ in lake.files), lake=lake)
    storage = open_storage(source, options)
    if not isinstance(storage, LocalFolder):
        return _find_remote(storage)
    path, source = storage.root, str(storage.root)
    if (path / "commitlog").is_dir():
        (store,) = plan_stores([path])
        return ReplaySource(source, "store", topics=known_topics([store]))
    if (path / "_delta_log").is_dir():
        table = _delta_table(storage)
        fields = table.schema().fields
        properties = next((field.type for field in fields if field.name == "properties"), None)
        text = "string" if str(getattr(properties, "type", "")) == "string" else "map"
        files, names = tuple(table.file_uris()), tuple(field.name for field in fields)
        folders = tuple(table.metadata().partition_columns)
        return _filled(ReplaySource(source, "files", files, names, folders, text))
    if storage.exists(HEAD):
        head = read_head(storage)
        written = ParquetArchive(storage).files()
        topics = frozenset(file.topic for file in written.values())
        files = tuple(str(path / file) for file in written)
        names = tuple(head.columns)
        return _filled(ReplaySource(source, "files", files, names, _folders(head), head.properties, topics))
    if not path.exists():
        raise OptionError("SOURCE", source, "an archive, a Delta table or a store directory")
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise OptionError("SOURCE", source, f"{KINDS}; this folder has none")
    return ReplaySource(source, "any")


def _find_remote(storage: Storage) -> ReplaySource:
    """Identify the source at an address that Spark cannot read itself; tasks read it with Arrow."""
    topics: frozenset[str] | None = None
    if storage.files("_delta_log"):
        files, folders = _delta_files(storage)
    elif storage.exists(HEAD):
        head = read_head(storage)
        written = ParquetArchive(storage).files()
        topics = frozenset(file.topic for file in written.values())
        files, folders = [(path, folder_values(path)) for path in written], _folders(head)
    elif storage.files("commitlog"):
        raise OptionError("SOURCE", storage.address, "a store on disk. Copy it to a disk first, or mount it")
    else:
        listed = [file.path for file in storage.files() if _is_data(file.path)]
        files = [(path, folder_values(path)) for path in listed]
        folders = tuple(dict.fromkeys(name for _, told in files for name in told))
        if not files:
            raise OptionError("SOURCE", storage.address, f"{KINDS}; found none at this address")
    found = ReplaySource(storage.address, "files", tuple(path for path, _ in files), topics=topics)
    _filled(found)
    lake = LakeFiles(storage, files, columns_of(storage, files[0][0]), folders)
    check_columns(lake.schema.names)
    return msgspec.structs.replace(found, lake=lake)


def _delta_table(storage: Storage) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise ReplayError(f"{storage} is a Delta table: pip install 'kerolox[delta]'") from None
    from kerolox.pipeline.lake.delta_table import delta_errors

    with delta_errors(storage):
        return DeltaTable(storage.address, storage_options=delta_options(storage))


def _delta_files(storage: Storage) -> tuple[list[tuple[str, FolderValues]], tuple[str, ...]]:
    """Return the files with their partition values from the log: paths of other writers may lack them."""
    table = _delta_table(storage)
    folders = tuple(table.metadata().partition_columns)
    told: dict[str, FolderValues] = {}
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        values = {name: action.get(f"partition.{name}") for name in folders}
        told[basename(action["path"])] = {n: None if v is None else str(v) for n, v in values.items()}
    paths = [str(uri).removeprefix(f"{storage.address}/") for uri in table.file_uris()]
    return [(path, told[basename(path)]) for path in paths], folders


def _folders(head: Head) -> tuple[str, ...]:
    return tuple(each.removeprefix(PROPERTY) for each in head.partitions)


def _is_data(path: str) -> bool:
    """Return True for data files of a table; hidden files are none."""
    return path.endswith(".parquet") and not any(part[0] in "_." for part in path.split("/"))


def _filled(found: ReplaySource) -> ReplaySource:
    if not found.files:
        raise ReplayError(f"{found.path} is empty: nothing was archived yet")
    return found


def check_topics(found: ReplaySource, choice: ReplayChoice) -> None:
    """Raise an error for topics that the source does not have: an empty replay would look like success."""
    strange = [topic for topic in choice.topics if found.topics is not None and topic not in found.topics]
    if strange:
        there = ", ".join(sorted(found.topics or ())[:8]) or "none"
        raise OptionError("--topic", ", ".join(strange), f"topics of {found.path}: {there}")


def _read_parquet(spark: SparkSession, found: ReplaySource) -> DataFrame:
    """Read files below a folder, with explicit types: Spark would read a topic folder ``007`` as a number."""
    names = found.columns
    known = [name for name in names if name in COLUMNS]
    columns = arrow_schema(known, properties="string" if found.properties == "string" else "map")
    kinds = [f"{field.name} {SPARK_TYPES[field.type]}" for field in columns]
    told = {"date": "date", "hour": "int"}  # types of columns in folder names; all others are text
    kinds += [
        f"`{name}` {told.get(name, 'string')}"
        for name in names
        if name not in COLUMNS and name in found.folders
    ]
    reader = spark.read.option("basePath", found.path)
    if len(kinds) == len(names):  # tables of other writers may have more columns
        reader = reader.schema(", ".join(kinds))
    return reader.parquet(*found.files)


def check_columns(columns: Sequence[str]) -> None:
    """Raise an error if the table does not have the columns of messages."""
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise ReplayError(f"the source has no column {', '.join(missing)}. Its columns: {', '.join(columns)}")


def chosen(table: DataFrame, choice: ReplayChoice) -> DataFrame:
    """Return the chosen rows."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

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
