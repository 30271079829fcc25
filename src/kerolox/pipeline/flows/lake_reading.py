"""The files of a Delta or Iceberg table as it is now, for Spark to read as Parquet.

Spark then knows the files, and nothing of the table. So tables are refused whose files do not tell the whole
truth: rows that are deleted by other files, columns that have another name in old files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.definition import ArchiveSource
from kerolox.pipeline.flows.probing import sqlite_file
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# What a Delta table may have that its files do not show.
HIDDEN: Final = ("deletionVectors", "columnMapping")


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
    """Raises KeroloxError for a table that is not there, or whose files are not all there is to it."""
    return _delta(source) if source.format == "delta" else _iceberg(source)


def _delta(source: ArchiveSource) -> TableFiles:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    storage = open_storage(source.archive)
    try:
        table = DeltaTable(storage.address, storage_options=delta_options(storage))
    except DeltaError as error:
        raise KeroloxError(f"{storage} is no Delta table: {error}") from error
    hidden = sorted(set(table.protocol().reader_features or ()) & set(HIDDEN))
    if hidden:
        raise KeroloxError(
            f"the Delta table {storage} uses {', '.join(hidden)}, which cannot be read here. Write it anew "
            "without (by Spark with Delta: REORG TABLE ... APPLY (PURGE), and drop the feature)"
        )
    base = storage.address if table.metadata().partition_columns else ""
    return TableFiles(list(table.file_uris()), pa.schema(table.schema()), base)


def _iceberg(source: ArchiveSource) -> TableFiles:
    from kerolox.pipeline.flows.lake_tables import catalog_place
    from kerolox.pipeline.lake.iceberg_table import IcebergTable

    place = catalog_place(source.catalog, source.path)
    file = sqlite_file(place.uri)
    if file is not None and not file.exists():  # opening it would make one
        raise KeroloxError(f"there is no catalog {file}")
    table = IcebergTable(place, source.archive)
    if not table.load():
        raise KeroloxError(f"there is no table {table.text}")
    renamed = sorted(_renamed(table.table.metadata.schemas, table.table.schema()))
    if renamed:
        raise KeroloxError(
            f"{table.text} has columns that had other names: {', '.join(renamed)}. Files from before cannot "
            "be read here. Write the table anew"
        )
    tasks = list(table.table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise KeroloxError(f"{table.text} has rows that are deleted by other files; compact it first")
    return TableFiles([str(task.file.file_path) for task in tasks], table.table.schema().as_arrow())


def _renamed(schemas: Iterable[Any], now: Any) -> set[str]:
    """Columns of now that some older schema has under another name, or whose name meant another column."""
    ids = {field.field_id: field.name for field in now.fields}
    names = {field.name: field.field_id for field in now.fields}
    return {
        ids.get(field.field_id, field.name)
        for schema in schemas
        for field in schema.fields
        if ids.get(field.field_id, field.name) != field.name
        or names.get(field.name, field.field_id) != field.field_id
    }
