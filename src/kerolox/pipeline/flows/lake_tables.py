"""Tables that batches are written to, each batch once.

Tasks write Parquet files that readers do not see yet; then the driver commits them together with the number
of the batch: in the snapshot of an Iceberg table, in a transaction of a Delta table, or in a record beside
plain Parquet files. If Spark repeats a batch, the number is already there, and nothing is added.

Batch numbers belong to one checkpoint: its id is part of the name they are stored under. If a checkpoint is
deleted, the flow starts again and its rows are added again.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa

from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.flows.definition import LakeTable
from kerolox.pipeline.flows.lake_files import (
    TOO_LONG,
    Division,
    LakeFile,
    WriteFiles,
    arrow_columns,
    divisions,
    too_long_for_folders,
    write_files,
)
from kerolox.pipeline.flows.probing import (
    OWN_FOLDER,
    SQLITE,
    check_catalog_file,
    check_writable,
    sqlite_file,
)
from kerolox.pipeline.flows.writers import AllFit, Unfit
from kerolox.pipeline.lake.storage import Storage, open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        self.open(columns)
        name = self.work_name(query)
        if self.is_done(name, number):
            return batch.count() if self.counts_repeated else 0
        work = self.work(columns, name, number)
        files = write_files(batch, work, self.parts, self.definition.files)
        if files:
            self.commit(name, number, files)
        return sum(file.rows for file in files)

    @abstractmethod
    def check(self) -> None:
        """Raise the errors now that would occur later, such as for an address that is not writable."""

    @abstractmethod
    def open(self, columns: pa.Schema) -> None:
        """Create the table, or check the existing one."""

    @abstractmethod
    def is_done(self, name: str, number: int) -> bool: ...

    @abstractmethod
    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles: ...

    @abstractmethod
    def commit(self, name: str, number: int, files: Sequence[LakeFile]) -> None: ...

    def _hive(
        self,
        columns: pa.Schema,
        storage: Storage,
        folder: str,
        name: str,
        number: int,
        *,
        logs_values: bool = False,
    ) -> WriteFiles:
        """Return a task that puts partition values into folder names instead of the files."""
        told = [each.column for each in self.parts]
        kept = [at for at, column in enumerate(columns.names) if column not in told]
        return WriteFiles(
            storage, folder, f"{name}-{number:010d}", tuple(told), len(told), tuple(kept),
            pa.schema([columns.field(at) for at in kept]), self.definition.compression, logs_values,
        )  # fmt: skip


# --- plain Parquet ------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True):
    """Record of the last batch of a flow, with the moves of its files."""

    batch: int
    moves: list[tuple[str, str]]


class ParquetWriter(LakeWriter):
    """Writer to a folder of Parquet files, in Hive's layout if it is partitioned.

    The record of a batch is written in one atomic step, which is the commit. Then the files are moved to
    their places; a repeated batch finds the record and moves the remaining files. Spark repeats at most the
    last batch, so one record per flow is enough.
    """

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        super().__init__(definition, pipeline, flow)
        self._storage = open_storage(definition.path, definition.options)

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

    def open(self, columns: pa.Schema) -> None:
        pass

    def _record(self, name: str) -> str:
        return f"{OWN_FOLDER}/flows/{name}.json"

    def _staging(self, name: str) -> str:
        return f"{OWN_FOLDER}/staging/{name}"

    def is_done(self, name: str, number: int) -> bool:
        try:
            record = msgspec.json.decode(self._storage.read(self._record(name)), type=Record)
        except FileNotFoundError:
            record = Record(-1, [])
        done = record.batch >= number
        if done:
            self._publish(record)
        self._storage.clear(self._staging(name))  # files of attempts that were not committed
        return done

    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles:
        return self._hive(columns, self._storage, self._staging(name), name, number)

    def commit(self, name: str, number: int, files: Sequence[LakeFile]) -> None:
        before = f"{self._staging(name)}/"
        record = Record(number, [(file.path, file.path.removeprefix(before)) for file in files])
        self._storage.put(self._record(name), msgspec.json.encode(record))
        self._publish(record)

    def _publish(self, record: Record) -> None:
        lost = self._storage.publish(record.moves)
        if lost:
            raise KeroloxError(
                f"{self._storage.name(lost[0])} of the committed batch {record.batch} does not exist. "
                "Was it deleted? If so, delete the flow's record too: "
                f"{self._storage.name(OWN_FOLDER + '/flows')}"
            )


# --- Delta --------------------------------------------------------------------------------------------


class DeltaWriter(LakeWriter):
    """Writer to a Delta table. The batch number is the version of an application transaction."""

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        super().__init__(definition, pipeline, flow)
        if find_spec("deltalake") is None:
            raise KeroloxError("deltalake is not installed. Install it: pip install 'kerolox[spark,delta]'")
        from kerolox.pipeline.lake.delta_options import delta_options

        self._storage = open_storage(definition.path, definition.options)
        self._options = delta_options(self._storage)
        self._table: Any = None

    def check(self) -> None:
        check_writable(self._storage)

    def open(self, columns: pa.Schema) -> None:
        from deltalake import DeltaTable

        told = [each.column for each in self.parts]
        if self._table is None:
            address = self._storage.address
            if not DeltaTable.is_deltatable(address, self._options):
                DeltaTable.create(
                    address, columns, partition_by=told, storage_options=self._options, mode="ignore",
                    description=f"written by the kerolox pipeline {self.name}",
                )  # fmt: skip
            self._table = DeltaTable(address, storage_options=self._options)
        else:
            self._table.update_incremental()
        there = [field.name for field in self._table.schema().fields]
        if set(there) != set(columns.names):
            more = ", ".join(sorted(set(columns.names) ^ set(there)))
            raise OptionError(
                "path",
                self._storage.address,
                f"a table with the columns of the sink; different columns: {more}",
            )
        if list(self._table.metadata().partition_columns) != told:
            raise OptionError(
                "partition_by", ", ".join(told),
                f"the table's partition columns: {', '.join(self._table.metadata().partition_columns)}",
            )  # fmt: skip

    def is_done(self, name: str, number: int) -> bool:
        done = self._table.transaction_version(name)
        return done is not None and done >= number

    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles:
        return self._hive(columns, self._storage, "", name, number, logs_values=True)

    def commit(self, name: str, number: int, files: Sequence[LakeFile]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        now_ms = int(time.time() * 1000)
        told = [each.column for each in self.parts]
        added = [
            AddAction(
                quote(file.path, safe="/=-_.,@+() "), file.bytes, dict(zip(told, file.parts, strict=True)),
                now_ms, True, json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]  # fmt: skip
        try:
            self._table.create_write_transaction(
                added, mode="append", schema=self._table.schema(), partition_by=told,
                commit_properties=CommitProperties(
                    custom_metadata={"flow": self.name, "batch": str(number)},
                    app_transactions=[Transaction(name, number, now_ms)],
                ),
            )  # fmt: skip
        except DeltaError as error:
            self._table.update_incremental()
            if self.is_done(name, number):  # committed by another run, which seemed dead
                return
            raise KeroloxError(f"the Delta table {self._storage} rejected the commit: {error}") from error


# --- Iceberg ------------------------------------------------------------------------------------------


class IcebergWriter(LakeWriter):
    """Writer to an Iceberg table. The batch number is in the summary of the snapshot."""

    def __init__(self, definition: LakeTable, pipeline: str, flow: str) -> None:
        super().__init__(definition, pipeline, flow)
        from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace

        self._place = catalog_place(definition.catalog, definition.path)
        assert isinstance(self._place, CatalogPlace)
        self._table: Any = None
        self._storage: Storage | None = None

    def _opened(self) -> Any:
        from kerolox.pipeline.lake.iceberg_table import IcebergTable

        if self._table is None:
            file = sqlite_file(self._place.uri)
            if file is not None:  # SQLite creates the file, but not its folder
                file.parent.mkdir(parents=True, exist_ok=True)
            self._table = IcebergTable(self._place, self.definition.table)
        return self._table

    def check(self) -> None:
        if check_catalog_file(self._place.uri):
            self._opened().load()
        elif self._place.warehouse:
            check_writable(open_storage(self._place.warehouse, self.definition.options))

    def open(self, columns: pa.Schema) -> None:
        from kerolox.pipeline.lake.iceberg_storage import table_storage

        table = self._opened()
        table.make(columns, [(each.column, each.transform) for each in self.parts])
        self._storage = table_storage(table, self.definition.options)

    def is_done(self, name: str, number: int) -> bool:
        done = self._opened().mark(name)
        return done is not None and int(done) >= number

    def work(self, columns: pa.Schema, name: str, number: int) -> WriteFiles:
        assert self._storage is not None
        return WriteFiles(
            self._storage, "", f"{name}-{number:010d}", (), len(self.parts), tuple(range(len(columns))),
            self._opened().file_schema(columns), self.definition.compression,
        )  # fmt: skip

    def commit(self, name: str, number: int, files: Sequence[LakeFile]) -> None:
        assert self._storage is not None
        address = self._opened().data_folder.rstrip("/")
        self._opened().append_once([f"{address}/{file.path}" for file in files], name, number)


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
