"""Upkeep of tables: joining small files of past hours into large ones, and removing old hours.

A flow or an archive that follows writes a file per interval: sixty an hour, if the interval is a minute.
Readers are faster with few large files. Only past hours are changed, so readers of recent rows are not
disturbed; a reader of a past hour of plain Parquet files that listed them just before may miss one and has to
list them again. The hour is that of storage in an archive, and that of writing in the table of a flow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kerolox.errors import KeroloxError
from kerolox.pipeline.lake.iceberg_schema import FIELD_ID
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.table_file import LakeFile, TableFileWriter

FILES_MIN: Final = 8  # an hour with fewer small files is not joined
OVER_FOR_MS: Final = (
    300_000  # clocks of brokers differ; the last messages of an hour are written a round later
)
BATCH_ROWS: Final = 65_536
ROWS_MAX: Final = 1_000_000
BYTES_MAX: Final = 512 << 20


class OthersCameFirst(KeroloxError):
    """Another run changed the same files or marks first. The work is repeated."""

    retriable = True


class JoinRule(NamedTuple):
    """Rule that selects the hours whose files are joined, and the size at which a file is large."""

    over_for_ms: int
    files_min: int
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX


def usual_rule(rows_max: int, bytes_max: int) -> JoinRule:
    """Return the rule used while archiving."""
    return JoinRule(OVER_FOR_MS, FILES_MIN, rows_max, bytes_max)


@dataclass(frozen=True)
class JoinTask:
    """Task that joins several files of one hour into one."""

    files: tuple[LakeFile, ...]
    storage: Storage
    path: str
    staged: str
    schema: pa.Schema | None = None  # None: that of the first file
    compression: str = "zstd"
    statistics: tuple[str, ...] | None = None
    dictionary: tuple[str, ...] | None = None
    constant: tuple[str, ...] = ()


@dataclass
class TaskResult:
    """Result of a task: the files it wrote, or the error."""

    files: list[Any] = field(default_factory=list)
    error: str = ""
    retriable: bool = False  # a later try may succeed


class Expired(NamedTuple):
    """Counts of expired files, with their rows and bytes, and of files that no commit named."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    orphans: int = 0

    @classmethod
    def of(cls, files: Sequence[LakeFile], orphans: int) -> Expired:
        return cls(len(files), sum(file.rows for file in files), sum(file.bytes for file in files), orphans)


class KeptTable(Protocol):
    """Table whose files can be joined and removed."""

    def known(self) -> Mapping[str, LakeFile]:
        """Return the current files that kerolox wrote, by their paths."""

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]: ...
    def replace(self, gone: Sequence[LakeFile], made: Sequence[Any]) -> None:
        """Remove files and add others by one commit. Raises OthersCameFirst if a file is gone already."""

    def discard(self, files: Sequence[Any]) -> None: ...


class SharedFiles(KeptTable, Protocol):
    """Table that several flows write to, with the last batch of each."""

    def mark(self, name: str) -> int | None: ...
    def add(self, files: Sequence[LakeFile], name: str, batch: int) -> bool: ...
    def remove_orphans(self, keep_ms: int) -> int: ...


Runner = Callable[[Sequence[JoinTask]], Sequence[TaskResult]]


def join(table: KeptTable, run: Runner, now_ms: int, rule: JoinRule) -> int:
    """Join small files of past hours and return how many there were."""
    sets = small_files(table.known().values(), now_ms, rule)
    if not sets:
        return 0
    results = run(table.join_tasks(sets))
    made = [file for done in results for file in done.files]
    failed = [done.error for done in results if done.error]
    if failed:
        table.discard(made)
        raise KeroloxError(f"small files could not be joined: {failed[0]}")
    gone = [file for files in sets for file in files]
    table.replace(gone, made)
    return len(gone)


def remove_old(table: KeptTable, before_ms: int) -> list[LakeFile]:
    """Remove the hours that ended before a time, by one commit, and return their files."""
    old = [file for file in table.known().values() if file.end_ms <= before_ms]
    if old:
        table.replace(old, ())
    return old


def small_files(files: Iterable[LakeFile], now_ms: int, rule: JoinRule) -> list[list[LakeFile]]:
    """Return the sets of files to be joined, each into one file."""
    groups: dict[tuple[object, ...], list[LakeFile]] = {}
    for file in files:
        small = file.rows * 2 <= rule.rows_max and file.bytes * 2 <= rule.bytes_max
        if small and file.end_ms + rule.over_for_ms <= now_ms:
            groups.setdefault(file.group, []).append(file)
    sets: list[list[LakeFile]] = []
    for found in groups.values():
        if len(found) >= rule.files_min:
            sets += [each for each in _packed(found, rule) if len(each) > 1]
    return sets


def _packed(files: Sequence[LakeFile], rule: JoinRule) -> list[list[LakeFile]]:
    sets: list[list[LakeFile]] = [[]]
    rows = size = 0
    for file in sorted(files, key=lambda file: file.path):
        rows += file.rows
        size += file.bytes
        if sets[-1] and (rows > rule.rows_max or size > rule.bytes_max):
            sets.append([])
            rows, size = file.rows, file.bytes
        sets[-1].append(file)
    return sets


# --- the task -----------------------------------------------------------------------------------------


def on_threads(works: Sequence[JoinTask]) -> list[TaskResult]:
    """Run the tasks on threads of this process: Arrow reads and writes without Python's lock."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(join_files, works))


def join_files(work: JoinTask) -> TaskResult:
    """Run the task. Errors of kerolox are returned as text: a retry by Spark would not help."""
    file: TableFileWriter | None = None
    try:
        for batch in _batches(work):
            if file is None:
                file = TableFileWriter(
                    work.storage, work.staged, batch.schema, compression=work.compression,
                    statistics=work.statistics, dictionary=work.dictionary, constant=work.constant,
                )  # fmt: skip
            file.add(batch)
        expected = sum(small.rows for small in work.files)
        if file is None or file.rows != expected:
            raise KeroloxError(
                f"{work.staged} has {file.rows if file else 0} rows; its parts have {expected}"
            )
        rows, size, columns, bounds = file.close()
    except (KeroloxError, OSError, pa.ArrowException) as error:
        if file is not None:
            file.discard()
        return TaskResult(error=" ".join(str(error).split()))
    except BaseException:
        if file is not None:
            file.discard()
        raise
    written = replace(
        work.files[0],
        path=work.path,
        staged=work.staged,
        rows=rows,
        bytes=size,
        columns=columns,
        bounds=bounds,
    )
    return TaskResult(files=[written.described(work.files)])


def _batches(work: JoinTask) -> Iterator[pa.RecordBatch]:
    schema = work.schema
    for small in work.files:
        with work.storage.reader(small.path) as opened, pq.ParquetFile(opened) as source:
            schema = schema or source.schema_arrow
            for batch in source.iter_batches(BATCH_ROWS):
                if batch.num_rows:
                    yield from _fitted(batch, schema).to_batches()


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, found by Iceberg's ids if it has them; missing ones are null."""
    ids = {_id(field): at for at, field in enumerate(batch.schema)}
    has_ids = ids.keys() != {None}
    columns = []
    for wanted in schema:
        at = ids.get(_id(wanted), -1) if has_ids else batch.schema.get_field_index(wanted.name)
        column = pa.nulls(batch.num_rows, wanted.type) if at < 0 else batch.column(at)
        columns.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _id(wanted: pa.Field) -> bytes | None:
    return (wanted.metadata or {}).get(FIELD_ID)
