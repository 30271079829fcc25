"""Files of the current version of a Delta or Iceberg table, which Spark reads as Parquet.

Spark reads the files without the table's metadata. So a table is rejected if its rows need metadata: rows
deleted by other files, columns with another name in old files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.definition import ArchiveSource
from kerolox.pipeline.flows.probing import sqlite_file
from kerolox.pipeline.lake.delta_table import LakeDelta
from kerolox.pipeline.lake.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableFiles:
    """Files and columns of a table."""

    files: list[str]
    columns: pa.Schema
    base: str = ""  # root of the folders whose names have column values

    @property
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.columns)


def files_of(source: ArchiveSource) -> TableFiles:
    """Return the files of a table. Raises KeroloxError if it does not exist or needs its metadata to be
    read.
    """
    return _delta(source) if source.format == "delta" else _iceberg(source)


def _delta(source: ArchiveSource) -> TableFiles:
    table = LakeDelta(open_storage(source.archive))
    if not table.load():
        raise KeroloxError(f"{table.storage} is not a Delta table")
    table.check_plain()
    base = table.storage.address if table.partitions else ""
    return TableFiles(list(table.table.file_uris()), pa.schema(table.table.schema()), base)


def _iceberg(source: ArchiveSource) -> TableFiles:
    from kerolox.pipeline.flows.lake_tables import catalog_place
    from kerolox.pipeline.lake.iceberg_table import IcebergTable

    place = catalog_place(source.catalog, source.path)
    file = sqlite_file(place.uri)
    if file is not None and not file.exists():  # opening it would create one
        raise KeroloxError(f"the catalog {file} does not exist")
    table = IcebergTable(place, source.archive)
    if not table.load():
        raise KeroloxError(f"the table {table.text} does not exist")
    renamed = sorted(_renamed(table.table.metadata.schemas, table.table.schema()))
    if renamed:
        raise KeroloxError(
            f"{table.text} has renamed columns: {', '.join(renamed)}. A pipeline cannot read the files from "
            "before the renaming. Rewrite the table"
        )
    tasks = list(table.table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise KeroloxError(f"{table.text} has rows that delete files mark as deleted. Compact it first")
    return TableFiles([str(task.file.file_path) for task in tasks], table.table.schema().as_arrow())


def _renamed(schemas: Iterable[Any], now: Any) -> set[str]:
    """Return columns whose name was different, or meant another column, in an older schema."""
    ids = {field.field_id: field.name for field in now.fields}
    names = {field.name: field.field_id for field in now.fields}
    return {
        ids.get(field.field_id, field.name)
        for schema in schemas
        for field in schema.fields
        if ids.get(field.field_id, field.name) != field.name
        or names.get(field.name, field.field_id) != field.field_id
    }
