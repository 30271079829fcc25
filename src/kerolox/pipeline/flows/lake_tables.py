"""Tables that batches are written to, each batch once.

Tasks write Parquet files that readers do not see yet; then the driver commits them together with the number
of the batch, its mark in the table (lake/shared_table.py, shared_delta.py, shared_iceberg.py). If Spark
repeats a batch, the mark is already there, and nothing is added.

Batch numbers belong to one checkpoint: its id is part of the name they are stored under. If a checkpoint is
deleted, the flow starts again and its rows are added again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kerolox.errors import OptionError
from kerolox.pipeline.flows.definition import LakeTable
from kerolox.pipeline.flows.lake_files import (
    TOO_LONG,
    Division,
    WriteFiles,
    arrow_columns,
    divisions,
    too_long_for_folders,
    write_files,
)
from kerolox.pipeline.flows.probing import SQLITE, check_catalog_file, check_writable, make_catalog_folder
from kerolox.pipeline.flows.writers import AllFit, Unfit
from kerolox.pipeline.lake.shared_delta import SharedDelta
from kerolox.pipeline.lake.shared_table import SharedTable
from kerolox.pipeline.lake.staging import OWN_FOLDER, STAGING
from kerolox.pipeline.lake.storage import open_storage
from kerolox.pipeline.lake.table_file import LakeFile
from kerolox.pipeline.lake.upkeep import SharedFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kerolox.pipeline.lake.shared_iceberg import SharedIceberg


class LakeWriter(AllFit, ABC):
    """Writer of the batches of one flow to one table."""

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        self.definition = definition
        self.name = f"{pipeline}.{flow}"
        self.parts: tuple[Division, ...] = ()
        self.counts_repeated = True  # count rows of an already committed batch as written

    def work_name(self, query: str) -> str:
        """Return the name under which batch numbers are stored."""
        return f"{self.name}.{query}"

    def write(self, batch: DataFrame, number: int, query: str) -> int:
        """Write a batch unless it is committed already, and return the number of rows."""
        columns = arrow_columns(batch)
        self.parts = divisions(
            self.definition.partition_by, columns.names, transforms=self.definition.format == "iceberg"
        )
        table = self.open(columns)
        name = self.work_name(query)
        done = table.mark(name)
        if done is not None and done >= number:
            return batch.count() if self.counts_repeated else 0
        files = write_files(batch, self.work(columns, name, number), self.parts, self.definition.files)
        if files:
            self.commit(table, files, name, number)
        return sum(file.rows for file in files)

    def commit(self, table: SharedFiles, files: Sequence[LakeFile], name: str, number: int) -> None:
        table.add(files, name, number)

    @abstractmethod
    def check(self) -> None:
        """Raise the errors now that would occur later, such as for an address that is not writable."""

    @abstractmethod
    def open(self, columns: pa.Schema) -> SharedFiles:
        """Return the table. Creates it, or checks the existing one."""

    @abstractmethod
    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles: ...

    def _hive(self, columns: pa.Schema, folder: str, stem: str, *, logs_values: bool = False) -> WriteFiles:
        """Return a task that puts partition values into folder names instead of the files."""
        told = tuple(each.column for each in self.parts)
        kept = [at for at, column in enumerate(columns.names) if column not in told]
        return WriteFiles(
            open_storage(self.definition.path, self.definition.options), folder, stem, told, len(told),
            tuple(kept), pa.schema([columns.field(at) for at in kept]), self.definition.compression,
            logs_values=logs_values,
        )  # fmt: skip


class ParquetWriter(LakeWriter):
    """Writer to a folder of Parquet files, in Hive's layout if it is partitioned."""

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        super().__init__(definition, pipeline, flow)
        self._storage = open_storage(definition.path, definition.options)
        self._table: SharedTable | None = None
        # Only file systems limit the length of folder names.
        self.may_refuse_rows = bool(definition.partition_by) and self._storage.is_local

    def unfit(self, error: BaseException) -> Unfit | None:
        if not self.may_refuse_rows or TOO_LONG not in str(error):
            return None
        columns = [each.column for each in self.parts]
        reason = f"partition_by: a value of {', '.join(columns)} is too long for a folder's name"
        return Unfit(too_long_for_folders(columns), reason)

    def check(self) -> None:
        check_writable(self._storage)

    def open(self, columns: pa.Schema) -> SharedTable:
        if self._table is None:
            table = SharedTable(self._storage)
            table.check()
            self._table = table
        return self._table

    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles:
        staging = f"{STAGING}/{name}"
        self._storage.clear(staging)  # files of attempts that were not committed
        return self._hive(columns, staging, f"{name}-{number:010d}")


class DeltaWriter(LakeWriter):
    """Writer to a Delta table."""

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        super().__init__(definition, pipeline, flow)
        self._table = SharedDelta(open_storage(definition.path, definition.options))

    def check(self) -> None:
        check_writable(self._table.storage)

    def open(self, columns: pa.Schema) -> SharedDelta:
        told = [each.column for each in self.parts]
        self._table.make(columns, told, f"written by the kerolox pipeline {self.name}")
        return self._table

    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles:
        return self._hive(columns, "", f"{name}-{number:010d}", logs_values=True)


class IcebergWriter(LakeWriter):
    """Writer to an Iceberg table."""

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        super().__init__(definition, pipeline, flow)
        self._place = catalog_place(definition.catalog, definition.path)
        self._table: SharedIceberg | None = None

    def _opened(self) -> SharedIceberg:
        from kerolox.pipeline.lake.shared_iceberg import SharedIceberg

        if self._table is None:
            make_catalog_folder(self._place.uri)
            self._table = SharedIceberg(self.definition.table, self._place, self.definition.options)
        return self._table

    def check(self) -> None:
        if check_catalog_file(self._place.uri):
            self._opened().table.load()
        elif self._place.warehouse:
            check_writable(open_storage(self._place.warehouse, self.definition.options))

    def open(self, columns: pa.Schema) -> SharedIceberg:
        self._opened().make(columns, [(each.column, each.transform) for each in self.parts])
        return self._opened()

    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles:
        table = self._opened()
        return WriteFiles(
            table.storage, "", f"{name}-{number:010d}", (), len(self.parts), tuple(range(len(columns))),
            table.table.file_schema(columns), self.definition.compression,
            tuple(each.column for each in self.parts if each.transform == "identity"),
        )  # fmt: skip


def catalog_place(catalog: dict[str, str], path: str) -> Any:
    """Return the catalog that a pipeline names by ``uri`` or ``name``, with ``warehouse``.

    Without either, it is a SQLite file beside the tables.
    """
    from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace

    rest = {key: value for key, value in catalog.items() if key not in ("uri", "name", "warehouse")}
    uri, name = catalog.get("uri", ""), catalog.get("name", "")
    if not uri and not name:
        storage = open_storage(path)
        if not storage.is_local:
            raise OptionError(
                "catalog", path, "uri or name of a catalog: only a folder on disk can contain a catalog file"
            )
        uri = f"{SQLITE}{storage.address}/{OWN_FOLDER}/catalog.db"
    return CatalogPlace(uri, name, catalog.get("warehouse", "") or path, rest)


KINDS: Final[dict[str, type[LakeWriter]]] = {
    "parquet": ParquetWriter,
    "delta": DeltaWriter,
    "iceberg": IcebergWriter,
}


def open_lake(definition: LakeTable, pipeline: str, flow: str) -> LakeWriter:
    return KINDS[definition.format](definition, pipeline, flow)
