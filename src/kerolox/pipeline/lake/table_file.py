"""Parquet files of tables: one writer for archives, flows and compaction.

A row group has 131,072 rows or 64 MiB, whichever comes first. With the 10,000 rows of Spark's batches, a file
of a million JSON texts was 11 % larger and a scan took 1.5 times the CPU, because columns compress and decode
worse in small pieces. With a million, a task would hold all rows of a file in memory, and readers could
neither skip groups nor share them between threads. The writer returns the bounds of each column, so a commit
need not read the footer again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from kerolox.errors import KeroloxError
from kerolox.pipeline.lake.storage import Storage

ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 64 << 20
TEXT_MAX: Final = 128  # characters, or bytes, of a bound; longer ones are left out
WHOLE_DAY: Final = -1  # instead of an hour


class Bounds(NamedTuple):
    """Least and greatest value of a column, None if it has none or they are unknown, and its nulls."""

    least: Any
    greatest: Any
    nulls: int


@dataclass(frozen=True, kw_only=True)
class LakeFile:
    """File of a table."""

    path: str  # below the table's folder
    staged: str  # path until it is committed
    rows: int
    bytes: int
    date: str  # 2026-11-16, of the hour that upkeep sees it in
    hour: int  # WHOLE_DAY if files are kept by days
    values: tuple[str | None, ...] = ()  # of the partition columns
    columns: str = ""  # digest of the schema: only files with the same one are joined
    bounds: dict[str, Bounds] = field(default_factory=dict, compare=False)

    @property
    def group(self) -> tuple[object, ...]:
        """Files of one group may be joined."""
        return self.date, self.hour, self.values, self.columns

    @property
    def end_ms(self) -> int:
        """End of the file's hour, or of its day."""
        began = datetime.fromisoformat(self.date).replace(hour=max(self.hour, 0), tzinfo=UTC)
        return round(began.timestamp()) * 1000 + 3_600_000 * (24 if self.hour == WHOLE_DAY else 1)

    def described(self, files: Sequence[Any]) -> Self:
        """Return the file with the description of the files whose rows it has."""
        return self


class Content(NamedTuple):
    """Contents of a written file."""

    rows: int
    bytes: int
    columns: str
    bounds: dict[str, Bounds]


class TableFileWriter:
    """One Parquet file that is being written. Rows are buffered until a row group is full."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        *,
        compression: str = "zstd",
        statistics: Sequence[str] | None = None,
        dictionary: Sequence[str] | None = None,
        constant: Iterable[str] = (),
    ) -> None:
        """``statistics``, ``dictionary``: columns that have them, by default all. ``constant``: columns that
        have one value, whose bounds are exact however long it is.
        """
        self.path = path
        self.rows = 0
        self.buffered = 0  # bytes
        self._schema = schema
        self._constant = dict.fromkeys(constant)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._footers: list[Any] = []
        self._file = storage.writer(path)
        self._parquet = pq.ParquetWriter(
            self._file,
            schema,
            compression=compression if compression != "none" else "NONE",
            use_dictionary=True if dictionary is None else list(dictionary),
            write_statistics=True if statistics is None else list(statistics),
            metadata_collector=self._footers,
        )

    def add(self, batch: pa.RecordBatch) -> int:
        """Add rows. Returns the change of buffered bytes, which is negative after a flush."""
        before = self.buffered
        if not self.rows:
            for name in self._constant:
                self._constant[name] = batch.column(name)[0].as_py()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.rows += batch.num_rows
        self.buffered += batch.get_total_buffer_size()
        if self._waiting_rows >= ROW_GROUP_ROWS or self.buffered >= ROW_GROUP_BYTES:
            self.flush()
        return self.buffered - before

    def flush(self) -> int:
        """Write the buffered rows as a row group and return the bytes of memory freed."""
        freed = self.buffered
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting.clear()
        self._waiting_rows = self.buffered = 0
        return freed

    def size(self) -> int:
        """Return the bytes written so far."""
        return self._file.tell()

    def close(self) -> Content:
        self.flush()
        self._parquet.close()
        size = self._file.tell()
        self._file.close()
        digest = hashlib.sha256(self._schema.to_string(show_field_metadata=False).encode()).hexdigest()[:8]
        bounds = _bounds(self._footers[0]) | {
            name: Bounds(value, value, self.rows if value is None else 0)
            for name, value in self._constant.items()
        }
        return Content(self.rows, size, digest, bounds)

    def discard(self) -> None:
        """Abandon the file and delete it."""
        self._waiting.clear()
        try:
            self._parquet.close()
        except (OSError, KeroloxError, pa.ArrowException):
            pass  # the disk may be the reason for discarding
        self._file.discard()


def _bounds(footer: Any) -> dict[str, Bounds]:
    """Return the bounds of the columns, by the statistics of all row groups."""
    found: dict[str, Bounds] = {}
    for at in range(footer.num_columns):
        if "." in (name := footer.row_group(0).column(at).path_in_schema if footer.num_row_groups else "."):
            continue  # parts of structs, lists and maps
        parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        if any(part is None or not part.has_null_count for part in parts):
            continue
        filled = [part for part in parts if part.num_values]
        nulls = sum(part.null_count for part in parts)
        if filled and all(part.has_min_max for part in filled):
            least, greatest = min(part.min for part in filled), max(part.max for part in filled)
            if not isinstance(least, str | bytes) or max(len(least), len(greatest)) <= TEXT_MAX:
                found[name] = Bounds(least, greatest, nulls)
                continue
        found[name] = Bounds(None, None, nulls)
    return found
