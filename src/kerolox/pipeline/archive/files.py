"""Task of the archive: read ranges of one topic and write them as Parquet, one file per hour.

Runs on executors. Rows never pass through Spark: blocks of records become Arrow columns and go to
``pyarrow.parquet`` in the same process, which is more than twice as fast as Spark's own writer. Each task
returns one line per file to the driver.

Files are written under names that readers skip, and forced to disk; the driver publishes them. Each try of a
task uses its own names, so tries do not collide.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.folders import (
    FOLDERS_MAX,
    PARTITIONS,
    PROPERTY,
    WHOLE_DAY,
    FolderPlace,
    check_partitions,
    folder_of,
    places_of,
)
from kerolox.pipeline.lake.storage import Storage
from kerolox.spark.columns import COLUMNS, arrow_schema
from kerolox.spark.source.options import Wanted
from kerolox.spark.source.ranges import Range
from kerolox.spark.source.reading import read_range

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 << 20
BUFFERED_BYTES = 192 << 20  # of all open files of a task
OPEN_FILES = 48  # two days of hours; beyond, the least recently used file is closed
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")
# Columns of few distinct values, which a dictionary makes tiny. For the others a dictionary only costs time.
_DICTIONARY = [
    "broker", "queue_id", "tags", "born_host", "store_host", "reconsume_times", "sys_flag", "flag",
    "properties.key_value.key",
]  # fmt: skip
# Columns by which readers skip row groups. Statistics of bodies are useless and may be large.
_STATISTICS = ["broker", "queue_id", "queue_offset", "keys", "tags", "born_timestamp", "store_timestamp"]


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

    def schema(self) -> pa.Schema:
        """Return the columns of a file: those of the source except ``topic``, which is in the folder name."""
        names = [name for name in COLUMNS if name != "topic"]
        if self.properties == "none":
            names.remove("properties")
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


class ArchiveTask(Protocol):
    """Fields that write tasks and join tasks share."""

    @property
    def topic(self) -> str: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def staging(self) -> str: ...
    @property
    def stem(self) -> str: ...
    @property
    def format(self) -> Format: ...


@dataclass(frozen=True)
class QueuePart:
    """The rows of one queue in a file."""

    broker: str
    queue_id: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class WrittenFile:
    """Report of a task about one file it wrote."""

    path: str  # final path below the archive's folder
    staged: str  # path until it is committed
    topic: str
    date: str  # 2026-11-16
    hour: int  # WHOLE_DAY if folders have no hour
    rows: int
    bytes: int
    first_ms: int  # store times
    last_ms: int
    parts: tuple[QueuePart, ...]
    values: tuple[str | None, ...] = ()  # of the chosen partitions


@dataclass
class TaskResult:
    """Result of a task: the files it wrote, or the error."""

    files: list[WrittenFile] = field(default_factory=list)
    error: str = ""
    retriable: bool = False  # a later try may succeed


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
    """One Parquet file. A row group is written when enough rows are buffered."""

    def __init__(self, work: ArchiveTask, schema: pa.Schema, place: FolderPlace, number: int) -> None:
        began = datetime.fromtimestamp(place.hour * 3600, UTC)
        format = work.format
        self._work = work
        self._schema = schema
        self._values = place.values
        self._date = began.strftime("%Y-%m-%d")
        self._hour = began.hour if format.by_hour else WHOLE_DAY
        unique = uuid.uuid4().hex[:12]
        names = [each.removeprefix(PROPERTY) for each in format.chosen]
        folder = folder_of(work.topic, self._date, self._hour, names, place.values)
        self._path = f"{folder}/{work.stem}-{number:03d}.parquet"
        self._staged = f"{work.staging}/{work.stem}-{number:03d}-{unique}.parquet"
        self._file = work.storage.writer(self._staged)
        compression = work.format.compression
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression=compression if compression != "none" else "NONE",
            use_dictionary=[name for name in _DICTIONARY if name.split(".")[0] in schema.names],
            write_statistics=[name for name in _STATISTICS if name in schema.names],
            store_decimal_as_integer=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._parts: dict[Queue, QueuePart] = {}
        self._first_us = 1 << 62
        self._last_us = -(1 << 62)
        self.rows = 0
        self.buffered = 0

    def add(self, queue: Queue, batch: pa.RecordBatch) -> int:
        """Add rows. Returns the change of buffered bytes, which is negative after a flush."""
        before = self.buffered
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.rows += batch.num_rows
        self.buffered += batch.get_total_buffer_size()
        self._note(queue, batch)
        if self._waiting_rows >= ROW_GROUP_ROWS or self.buffered >= ROW_GROUP_BYTES:
            self.flush()
        return self.buffered - before

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
        freed = self.buffered
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting.clear()
        self._waiting_rows = self.buffered = 0
        return freed

    def size(self) -> int:
        """Return the bytes written to the file so far."""
        return self._file.tell()

    def close(self) -> WrittenFile:
        self.flush()
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        return WrittenFile(
            path=self._path,
            staged=self._staged,
            topic=self._work.topic,
            date=self._date,
            hour=self._hour,
            rows=self.rows,
            bytes=size,
            first_ms=self._first_us // 1000,
            last_ms=self._last_us // 1000,
            parts=tuple(self._parts.values()),
            values=self._values,
        )

    def discard(self) -> None:
        self._waiting.clear()
        try:
            self._writer.close()
        except (OSError, KeroloxError, pa.ArrowException):
            pass  # the disk may be the reason for discarding
        self._file.discard()
