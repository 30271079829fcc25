"""Parquet files at an address as a Spark table, read by its tasks.

Spark itself needs additional jars to read from S3 and other stores. Here tasks read with Arrow through the
drivers that also write archives, so one set of options is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kerolox.pipeline.archive.folders import NO_VALUE
from kerolox.pipeline.lake.storage import Storage
from kerolox.spark.columns import TIMESTAMP
from kerolox.spark.session import local_cores
from kerolox.spark.shipping import check_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 16_384
TASKS_PER_CORE = 4
_TOLD = {"date": pa.date32(), "hour": pa.int32()}  # types of columns in folder names; all others are text


FolderValues = dict[str, str | None]


class LakeFiles:
    """Files below an address that form one table. Pickled to tasks."""

    def __init__(
        self,
        storage: Storage,
        files: Sequence[tuple[str, FolderValues]],
        columns: pa.Schema,
        folders: Sequence[str],
    ) -> None:
        self.storage = storage
        self.files = tuple(files)
        self.folders = tuple(folders)  # columns whose values are in folder names
        told = [pa.field(name, _TOLD.get(name, pa.string())) for name in folders]
        self.schema = pa.schema([*told, *(field for field in columns if field.name not in folders)])

    def only(self, names: Sequence[str]) -> LakeFiles:
        """Return the table with only these columns; others are not read."""
        kept = pa.schema([field for field in self.schema if field.name in names])
        folders = [name for name in self.folders if name in names]
        return LakeFiles(self.storage, self.files, kept, folders)

    def table(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame. Each task reads whole files."""
        from pyspark.sql.pandas.types import from_arrow_schema

        context = spark.sparkContext
        if self.storage.driver is not None and local_cores(context.master or "") is None:
            check_driver(context, self.storage.address, *self.storage.driver)
        tasks = max(1, min(len(self.files), spark.sparkContext.defaultParallelism * TASKS_PER_CORE))
        rows = [(path, json.dumps(told), number % tasks) for number, (path, told) in enumerate(self.files)]
        files = spark.createDataFrame(rows, "path string, told string, task int")
        files = files.repartitionById(tasks, "task").select("path", "told")
        reader = LakeFiles(self.storage, (), self.schema, self.folders)  # names are passed as rows
        return files.mapInArrow(reader.read_all, from_arrow_schema(self.schema))

    def read_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, told in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                yield from self.read(path, json.loads(told))

    def read(self, path: str, told: FolderValues) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file. Missing columns are null."""
        names = [name for name in self.schema.names if name not in self.folders]
        with self.storage.reader(path) as opened, pq.ParquetFile(opened) as file:
            there = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=there):
                yield self._fitted(batch, told)

    def _fitted(self, batch: pa.RecordBatch, told: FolderValues) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            if field.name in self.folders:
                value = pa.scalar(told.get(field.name), pa.string()).cast(field.type)
                columns.append(pa.repeat(value, batch.num_rows))
            elif field.name in batch.schema.names:
                column = batch.column(field.name)
                columns.append(column if column.type == field.type else column.cast(field.type))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def folder_values(path: str) -> FolderValues:
    """Return the column values in the folder names of a path: ``topic=a/date=2026-11-16``."""
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {name: None if value == NO_VALUE else unquote(value) for name, value in pairs}


def columns_of(storage: Storage, path: str) -> pa.Schema:
    """Return the columns of a file, with types that Spark accepts from Arrow."""
    with storage.reader(path) as opened, pq.ParquetFile(opened) as file:
        found = file.schema_arrow
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in found])


def _plain(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return TIMESTAMP
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)
