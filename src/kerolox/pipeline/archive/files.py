"""Task of the archive: read ranges of one topic and write them as Parquet, one file per hour.

Runs on executors. Rows never pass through Spark: blocks of records become Arrow columns and go to
``pyarrow.parquet`` in the same process, which is more than twice as fast as Spark's own writer. Each task
returns one line per file to the driver.

Files are written under names that readers skip, and forced to disk; the driver publishes them. Each try of a
task uses its own names, so tries do not collide.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.folders import (
    FOLDERS_MAX,
    PARTITIONS,
    PROPERTY,
    FolderPlace,
    check_partitions,
    folder_of,
    places_of,
)
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.table_file import WHOLE_DAY, LakeFile, TableFileWriter
from kerolox.pipeline.lake.upkeep import JoinTask, TaskResult, join_files
from kerolox.spark.columns import COLUMNS, MAP, arrow_schema, column_names
from kerolox.spark.source.options import Wanted
from kerolox.spark.source.ranges import Range
from kerolox.spark.source.reading import read_range

BUFFERED_BYTES = 192 << 20  # of all open files of a task
OPEN_FILES = 48  # two days of hours; beyond, the least recently used file is closed
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")


@dataclass(frozen=True)
class Format:
    """Format of the files of an archive."""

    properties: str = "map"  # map, string (as the record holds them) or none
    compression: str = "zstd"
    rows_max: int = 1_000_000  # rows at which a file is closed
    bytes_max: int = 512 << 20  # size at which a file is closed
    partitions: tuple[str, ...] = ()  # empty: as the archive began, by default topic, date, hour

    def __post_init__(self) -> None:
        if self.properties not in ("map", "string", "none"):
            raise OptionError("properties", self.properties, "map, string or none")
        if self.compression not in COMPRESSIONS:
            raise OptionError("compression", self.compression, f"one of {', '.join(COMPRESSIONS)}")
        if self.rows_max < 1:
            raise OptionError("max-rows-per-file", self.rows_max, "1 or more")
        check_partitions(self.partitions, self.properties)

    @property
    def folders(self) -> tuple[str, ...]:
        """Columns whose values are in folder names, the outermost first."""
        return tuple(each.removeprefix(PROPERTY) for each in self.partitions or PARTITIONS)

    @property
    def by_hour(self) -> bool:
        return "hour" in self.folders

    @property
    def chosen(self) -> tuple[str, ...]:
        """Partitions other than topic and time: tag and properties."""
        return tuple(each for each in self.partitions if each not in PARTITIONS)

    @property
    def dictionary(self) -> tuple[str, ...]:
        """Columns whose values repeat. For the others a dictionary only costs time."""
        schema = self.schema()
        keys = ["properties.key_value.key" for field in schema if field.type == MAP]
        return (*keys, *(name for name in schema.names if COLUMNS[name].repeats))

    @property
    def statistics(self) -> tuple[str, ...]:
        return tuple(name for name in self.schema().names if COLUMNS[name].skips)

    def schema(self) -> pa.Schema:
        """Return the columns of a file: those of the source except ``topic``, which is in the folder name."""
        names = column_names(self.properties)
        names.remove("topic")
        return arrow_schema(names, properties=self.properties)


@dataclass(frozen=True)
class WriteTask:
    """Task that writes ranges of one topic."""

    topic: str
    ranges: tuple[Range, ...]
    wanted: Wanted
    storage: Storage  # the archive's folder, which driver and executors share
    staging: str  # folder below it for files that are not committed yet
    stem: str  # prefix of the file names
    format: Format


@dataclass(frozen=True)
class QueuePart:
    """The rows of one queue in a file."""

    broker: str
    queue_id: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class WrittenFile(LakeFile):
    """File of messages: of one topic and one hour of storage."""

    topic: str
    first_ms: int  # store times
    last_ms: int
    parts: tuple[QueuePart, ...]

    @property
    def group(self) -> tuple[object, ...]:
        return self.topic, *super().group

    def described(self, files: Sequence[Any]) -> WrittenFile:
        first_ms, last_ms = min(file.first_ms for file in files), max(file.last_ms for file in files)
        return replace(self, first_ms=first_ms, last_ms=last_ms, parts=_joined_parts(files))


def _joined_parts(files: Iterable[WrittenFile]) -> tuple[QueuePart, ...]:
    found: dict[tuple[str, int], QueuePart] = {}
    for part in (part for file in files for part in file.parts):
        known = found.get((part.broker, part.queue_id), part)
        rows = part.rows if known is part else known.rows + part.rows
        found[part.broker, part.queue_id] = replace(
            part, first=min(known.first, part.first), last=max(known.last, part.last), rows=rows
        )
    return tuple(found.values())


def carry_out(work: WriteTask | JoinTask) -> TaskResult:
    """Run a task of either kind."""
    return write(work) if isinstance(work, WriteTask) else join_files(work)


def join_tasks(archive: Any, sets: Sequence[Sequence[LakeFile]], format: Format, stem: str) -> list[JoinTask]:
    """Return the tasks that join files of an archive; the new files have names of the next commit."""
    tasks = []
    for number, files in enumerate(sets):
        name = f"{stem}-{number:03d}-001"
        tasks.append(
            JoinTask(
                tuple(files), archive.storage, f"{files[0].path.rpartition('/')[0]}/{name}.parquet",
                f"{archive.staging}/{name}-{uuid.uuid4().hex[:12]}.parquet", format.schema(),
                format.compression, format.statistics, format.dictionary,
            )
        )  # fmt: skip
    return tasks


def write(work: WriteTask) -> TaskResult:
    """Run a write task. Errors of kerolox are returned as text: a retry by Spark would not help."""
    done = TaskResult()
    files = HourFiles(work)
    try:
        for wanted in work.ranges:
            for batch in read_range(work.wanted, files.schema, wanted):
                if batch.num_rows:
                    files.add(wanted.queue, batch)
        done.files = files.close()
    except (KeroloxError, OSError) as error:
        files.discard()
        done.error = " ".join(str(error).split())
        done.retriable = isinstance(error, KeroloxError) and error.retriable
    except BaseException:
        files.discard()
        raise
    return done


class HourFiles:
    """Open files of a task, by the hour in which rows were stored and by the chosen partitions."""

    def __init__(self, work: WriteTask) -> None:
        self.work = work
        self.schema = work.format.schema()
        self._open: dict[FolderPlace, HourFile] = {}  # the last used comes last
        self._places: set[FolderPlace] = set()
        self._closed: list[WrittenFile] = []
        self._count = 0
        self._buffered = 0

    def add(self, queue: Queue, batch: pa.RecordBatch) -> None:
        places, numbers = places_of(batch, self.work.format.chosen, by_hour=self.work.format.by_hour)
        for number, place in enumerate(places):
            whole = len(places) == 1
            self._add(place, queue, batch if whole else batch.filter(pa.array(numbers == number)))

    def _add(self, place: FolderPlace, queue: Queue, batch: pa.RecordBatch) -> None:
        limit = self.work.format.rows_max
        while batch.num_rows:
            file = self._open.pop(place, None) or self._new(place)
            self._open[place] = file
            piece = batch.slice(0, limit - file.rows)
            batch = batch.slice(piece.num_rows)
            self._buffered += file.add(queue, piece)
            if file.rows >= limit or file.size() >= self.work.format.bytes_max:
                self._close(place)
        if self._buffered > BUFFERED_BYTES:
            fullest = max(self._open.values(), key=lambda file: file.buffered)
            self._buffered -= fullest.flush()

    def _new(self, place: FolderPlace) -> HourFile:
        self._places.add(place)
        if len(self._places) > FOLDERS_MAX and self.work.format.chosen:
            raise OptionError(
                "partition-by", ",".join(self.work.format.partitions),
                f"columns of few values: one task's messages would go to more than {FOLDERS_MAX} folders",
            )  # fmt: skip
        if len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        self._count += 1
        return HourFile(self.work, self.schema, place, self._count)

    def _close(self, place: FolderPlace) -> None:
        file = self._open[place]
        self._buffered -= file.buffered
        self._closed.append(file.close())
        del self._open[place]  # after close(): if that fails, discard() must still find the file

    def close(self) -> list[WrittenFile]:
        for place in list(self._open):
            self._close(place)
        return self._closed

    def discard(self) -> None:
        """Delete all files of a failed try."""
        for file in self._open.values():
            file.discard()
        self.work.storage.delete([written.staged for written in self._closed])


class HourFile:
    """File of one topic and hour that is being written."""

    def __init__(self, work: WriteTask, schema: pa.Schema, place: FolderPlace, number: int) -> None:
        began = datetime.fromtimestamp(place.hour * 3600, UTC)
        format = work.format
        self._topic = work.topic
        self._schema = schema
        self._values = place.values
        self._date = began.strftime("%Y-%m-%d")
        self._hour = began.hour if format.by_hour else WHOLE_DAY
        names = [each.removeprefix(PROPERTY) for each in format.chosen]
        folder = folder_of(work.topic, self._date, self._hour, names, place.values)
        self._path = f"{folder}/{work.stem}-{number:03d}.parquet"
        self._file = TableFileWriter(
            work.storage,
            f"{work.staging}/{work.stem}-{number:03d}-{uuid.uuid4().hex[:12]}.parquet",
            schema,
            compression=format.compression,
            statistics=format.statistics,
            dictionary=format.dictionary,
        )
        self._parts: dict[Queue, QueuePart] = {}
        self._first_us = 1 << 62
        self._last_us = -(1 << 62)

    @property
    def rows(self) -> int:
        return self._file.rows

    @property
    def buffered(self) -> int:
        return self._file.buffered

    def add(self, queue: Queue, batch: pa.RecordBatch) -> int:
        """Add rows. Returns the change of buffered bytes, which is negative after a flush."""
        self._note(queue, batch)
        return self._file.add(batch)

    def _note(self, queue: Queue, batch: pa.RecordBatch) -> None:
        offsets = batch.column(self._schema.get_field_index("queue_offset"))
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        known = self._parts.get(queue)
        if known is None:
            self._parts[queue] = QueuePart(queue.broker, queue.queue_id, first, last, batch.num_rows)
        else:
            first = min(known.first, first)
            rows = known.rows + batch.num_rows
            self._parts[queue] = QueuePart(queue.broker, queue.queue_id, first, max(known.last, last), rows)
        times = batch.column(self._schema.get_field_index("store_timestamp")).view(pa.int64())
        least = pc.min_max(times)
        self._first_us = min(self._first_us, least["min"].as_py())
        self._last_us = max(self._last_us, least["max"].as_py())

    def flush(self) -> int:
        """Write the buffered rows as a row group and return the bytes of memory freed."""
        return self._file.flush()

    def size(self) -> int:
        """Return the bytes written to the file so far."""
        return self._file.size()

    def close(self) -> WrittenFile:
        rows, size, columns, bounds = self._file.close()
        return WrittenFile(
            path=self._path,
            staged=self._file.path,
            topic=self._topic,
            date=self._date,
            hour=self._hour,
            rows=rows,
            bytes=size,
            first_ms=self._first_us // 1000,
            last_ms=self._last_us // 1000,
            parts=tuple(self._parts.values()),
            values=self._values,
            columns=columns,
            bounds=bounds,
        )

    def discard(self) -> None:
        self._file.discard()
