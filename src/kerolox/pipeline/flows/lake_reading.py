"""The files of a Delta or Iceberg table as it is now, for Spark to read as Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.definition import ArchiveSource
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableFiles:
    """What a table consists of."""

    files: list[str]
    columns: pa.Schema
    base: str = ""  # folders below it tell values of columns

    @property
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.columns)


def files_of(source: ArchiveSource) -> TableFiles:
    """Raises KeroloxError for a table that is not there, or that deletes rows without writing files anew."""
    return _delta(source) if source.format == "delta" else _iceberg(source)


def _delta(source: ArchiveSource) -> TableFiles:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    storage = open_storage(source.archive)
    try:
        table = DeltaTable(storage.address, storage_options=delta_options(storage))
    except DeltaError as error:
        raise KeroloxError(f"{storage} is no Delta table: {error}") from error
    base = storage.address if table.metadata().partition_columns else ""
    return TableFiles(list(table.file_uris()), pa.schema(table.schema()), base)


def _iceberg(source: ArchiveSource) -> TableFiles:
    from kerolox.pipeline.flows.lake_tables import catalog_place
    from kerolox.pipeline.lake.iceberg_table import IcebergTable

    table = IcebergTable(catalog_place(source.catalog, ""), source.archive)
    if not table.load():
        raise KeroloxError(f"there is no table {table.text}")
    tasks = list(table.table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise KeroloxError(f"{table.text} has rows that are deleted by other files; compact it first")
    return TableFiles([str(task.file.file_path) for task in tasks], table.table.schema().as_arrow())
