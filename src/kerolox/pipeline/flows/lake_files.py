"""Parquet files that the tasks of a batch write and report to the driver.

A task gets its rows sorted by the partition columns and writes one file after the other, so only one is open
at a time.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from kerolox.errors import OptionError
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.table_file import LakeFile, TableFileWriter
from kerolox.pipeline.lake.written_names import hour_of, written_name
from kerolox.spark.short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX: Final = 1_000_000  # rows of a file
PART: Final = "_kerolox_part_"  # prefix of the partition columns added for the task
NONE: Final = "__HIVE_DEFAULT_PARTITION__"  # folder name for null in Spark and Hive
FOLDER_BYTES_MAX: Final = 255
TOO_LONG: Final = "makes a folder's name"  # the driver recognises the error of a task by this text
HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
MANIFEST: Final = "file binary"  # a pickled LakeFile
_MANIFEST: Final = pa.schema([("file", pa.binary())])
_TRANSFORM: Final = re.compile(r"(year|month|day|hour)\((\w+)\)")


@dataclass(frozen=True)
class Division:
    """Partition of a table: a column, or a part of a time."""

    column: str
    transform: str = "identity"

    @classmethod
    def read(cls, text: str) -> Division:
        found = _TRANSFORM.fullmatch(text.strip())
        return cls(found[2], found[1]) if found else cls(text.strip())


def divisions(texts: Sequence[str], columns: Sequence[str], *, transforms: bool) -> tuple[Division, ...]:
    """Parse the partitions. Raises OptionError for columns that do not exist."""
    found = tuple(map(Division.read, texts))
    for each, text in zip(found, texts, strict=True):
        if each.column not in columns:
            raise OptionError("partition_by", text, f"some of the columns {', '.join(columns)}")
        if each.transform != "identity" and not transforms:
            raise OptionError("partition_by", text, "a column; only Iceberg partitions by parts of times")
    return found


@dataclass(frozen=True)
class WriteFiles:
    """Task that writes its rows to files and returns one row per file."""

    storage: Storage
    folder: str  # below which files are staged; empty: they are written at their places
    stem: str  # prefix of the file names, with flow and batch
    names: tuple[str, ...] = ()  # columns in folder names; empty: no folders
    division: int = 0  # number of partition columns, which are the last columns
    keep: tuple[int, ...] = ()  # indexes of the columns written to the file
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))  # of the file
    compression: str = "zstd"
    constant: tuple[str, ...] = ()  # columns that have one value in each file
    logs_values: bool = False  # the table's log has the values, so folder names need not

    def folder_of(self, key: str, value: str | None) -> str:
        """Return the folder of a value. Raises OptionError if the name is too long for the file system."""
        name = f"{quote(key)}={folder_text(value)}"
        size = len(name.encode())
        if not self.storage.is_local or size <= FOLDER_BYTES_MAX:
            return name
        if self.logs_values:
            return f"{quote(key)}={hashlib.sha256(name.encode()).hexdigest()}"
        raise OptionError(
            "partition_by", key,
            f"a column of shorter values: {str(value)[:40]!r}... of {len(str(value))} characters "
            f"{TOO_LONG} of {size} bytes; the limit is {FOLDER_BYTES_MAX}. Add bad_rows to the pipeline to "
            "set such rows aside",
        )  # fmt: skip

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            yield from self._write(batches)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        number = 0 if task is None else task.partitionId()
        stem = f"{self.stem}-{number:05d}-{os.urandom(4).hex()}"
        files: list[LakeFile] = []
        opened: _OpenFile | None = None
        try:
            for batch in batches:
                for part, rows in self._parts(batch):
                    if opened is None or opened.part != part or opened.rows >= ROWS_MAX:
                        if opened is not None:
                            files.append(opened.close())
                        opened = _OpenFile(self, part, f"{stem}-{len(files):04d}")
                    opened.add(rows)
            if opened is not None:
                files.append(opened.close())
        except BaseException:
            if opened is not None:
                opened.discard()
            self.storage.delete([file.staged for file in files])
            raise
        yield pa.RecordBatch.from_arrays(
            [pa.array([pickle.dumps(file) for file in files], pa.binary())], schema=_MANIFEST
        )

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """Yield runs of rows of the same partition. The rows are sorted by it."""
        if not batch.num_rows:
            return
        if not self.division:
            yield (), batch
            return
        columns = [batch.column(batch.num_columns - self.division + at) for at in range(self.division)]
        starts = {0}
        for column in columns:
            same = pc.fill_null(pc.equal(column[1:], column[:-1]), False)
            both = pc.and_(pc.is_null(column[1:]), pc.is_null(column[:-1]))
            changes = pc.invert(pc.or_(same, both)).to_pylist()
            starts.update(at + 1 for at, change in enumerate(changes) if change)
        edges = [*sorted(starts), batch.num_rows]
        for start, end in pairwise(edges):
            part = tuple(part_text(column[start].as_py(), in_utc=self.logs_values) for column in columns)
            yield part, batch.slice(start, end - start)


class _OpenFile:
    """File of one partition that is being written."""

    def __init__(self, work: WriteFiles, part: tuple[str | None, ...], stem: str) -> None:
        self.part = part
        self._work = work
        self._now_ms = time.time_ns() // 1_000_000
        folders = [work.folder_of(key, value) for key, value in zip(work.names, part, strict=False)]
        self._path = "/".join((*folders, written_name(self._now_ms, stem)))
        staged = f"{work.folder}/{self._path}" if work.folder else self._path
        self._file = TableFileWriter(
            work.storage, staged, work.schema, compression=work.compression, constant=work.constant
        )

    @property
    def rows(self) -> int:
        return self._file.rows

    def add(self, rows: pa.RecordBatch) -> None:
        self._file.add(rows.select(list(self._work.keep)).cast(self._work.schema))

    def close(self) -> LakeFile:
        rows, size, columns, bounds = self._file.close()
        return LakeFile(
            path=self._path, staged=self._file.path, rows=rows, bytes=size, values=self.part,
            columns=columns, bounds=bounds, **hour_of(self._now_ms),
        )  # fmt: skip

    def discard(self) -> None:
        self._file.discard()


def part_text(value: Any, *, in_utc: bool = False) -> str | None:
    """Return a partition value as text for folder names and Delta's log.

    Readers of folders interpret times in the zone of their session, as Spark writes them; readers of a Delta
    table interpret them in UTC.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if in_utc and value.tzinfo is not None else value
        return at.strftime("%Y-%m-%d %H:%M:%S.%f").removesuffix(".000000")
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def folder_text(value: str | None) -> str:
    return NONE if value is None or value == "" else quote(value, safe=" -_.,@+()")


# --- at the driver ------------------------------------------------------------------------------------


def arrow_columns(batch: DataFrame) -> pa.Schema:
    """Return the columns of a DataFrame for files, all nullable, because later batches may have nulls."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(batch.schema, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in schema])


def part_expression(part: Division, kind: str) -> str:
    """Return the SQL expression of a partition value, which all rows of a file share.

    Iceberg partitions times by days and hours of UTC. ``date_trunc`` uses the zone of the session, in which
    an hour may even occur twice, so timestamps are divided as numbers.
    """
    column = f"`{part.column.replace('`', '``')}`"
    if part.transform == "identity":
        return column
    if part.transform == "hour":
        if kind == "timestamp_ntz":
            return f"concat(cast({column} AS DATE), ' ', hour({column}))"
        return _from_start(column, HOUR_US)
    if kind == "timestamp":
        column = f"date_from_unix_date(cast(({_from_start(column, DAY_US)}) / {DAY_US} AS INT))"
    day = f"cast({column} AS DATE)"
    return day if part.transform == "day" else f"trunc({day}, '{part.transform}')"


def too_long_for_folders(columns: Sequence[str]) -> str:
    """Return an SQL condition for rows with a value that :meth:`WriteFiles.folder_of` rejects."""
    said = []
    for column in columns:
        value = f"cast(`{column.replace('`', '``')}` AS STRING)"
        escaped = f"regexp_replace({value}, '[A-Za-z0-9_.~ ,@+()-]', '')"
        room = FOLDER_BYTES_MAX - len(quote(column)) - 1
        said.append(f"coalesce(octet_length({value}) + 2 * octet_length({escaped}) > {room}, false)")
    return " OR ".join(said)


def _from_start(column: str, step_us: int) -> str:
    """Return SQL for the start of the UTC hour or day, in microseconds since 1970."""
    return f"unix_micros({column}) - pmod(unix_micros({column}), {step_us})"


def write_files(batch: DataFrame, work: WriteFiles, parts: Sequence[Division], tasks: int) -> list[LakeFile]:
    """Write a batch with tasks. Returns the files of the successful attempts."""
    from pyspark.sql import functions as f

    rows = batch
    kinds = dict(batch.dtypes)
    for number, each in enumerate(parts):
        rows = rows.withColumn(f"{PART}{number}", f.expr(part_expression(each, kinds[each.column])))
    if parts:
        rows = rows.sortWithinPartitions(*(f"{PART}{number}" for number in range(len(parts))))
    if tasks:
        rows = rows.coalesce(tasks)
    found = rows.mapInArrow(work, MANIFEST).collect()
    return [pickle.loads(row.file) for row in found]
