"""Joining of small files of past hours into large ones.

A run that follows writes a file per topic and interval: sixty an hour, if the interval is a minute. Readers
are faster with few large files. Only past hours are changed, so readers of recent messages are not
disturbed; a reader of a past hour that listed the files just before may miss one and has to list them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError
from kerolox.pipeline.archive.files import (
    Format,
    HourFile,
    QueuePart,
    TaskResult,
    WriteTask,
    WrittenFile,
    write,
)
from kerolox.pipeline.archive.folders import WHOLE_DAY, FolderPlace
from kerolox.pipeline.lake.storage import Storage

FILES_MIN = 8  # an hour with fewer small files is not joined
OVER_FOR_MS = 300_000  # clocks of brokers differ; the last messages of an hour are written a round later
BATCH_ROWS = 65_536


@dataclass(frozen=True)
class JoinTask:
    """Task that joins several files of the same hour into one."""

    topic: str
    files: tuple[WrittenFile, ...]
    storage: Storage
    staging: str
    stem: str
    format: Format

    @property
    def place(self) -> FolderPlace:
        """Folder of the files, which all of them share."""
        date, hour, values = self.files[0].date, self.files[0].hour, self.files[0].values
        return FolderPlace(begin_ms(date, hour) // 3_600_000, values)


def carry_out(work: WriteTask | JoinTask) -> TaskResult:
    """Run a task of either kind."""
    return write(work) if isinstance(work, WriteTask) else join(work)


def join(work: JoinTask) -> TaskResult:
    schema = work.format.schema()
    file = HourFile(work, schema, work.place, 1)
    nobody = Queue("", "", 0)
    try:
        for small in work.files:
            with work.storage.reader(small.path) as opened, pq.ParquetFile(opened) as source:
                for batch in source.iter_batches(BATCH_ROWS):
                    for fitting in pa.Table.from_batches([batch]).cast(schema).to_batches():
                        file.add(nobody, fitting)
        written = replace(file.close(), parts=_parts(work.files))
        expected = sum(small.rows for small in work.files)
        if written.rows != expected:
            raise KeroloxError(f"{written.staged} has {written.rows} rows; its parts have {expected}")
    except (KeroloxError, OSError) as error:
        file.discard()
        return TaskResult(error=" ".join(str(error).split()))
    except BaseException:
        file.discard()
        raise
    return TaskResult(files=[written])


class JoinRule(NamedTuple):
    """Rule that selects the hours whose files are joined."""

    over_for_ms: int
    files_min: int


def usual_rule() -> JoinRule:
    """Return the rule used while archiving."""
    return JoinRule(OVER_FOR_MS, FILES_MIN)


def small_files(
    files: Iterable[WrittenFile], now_ms: int, format: Format, rule: JoinRule | None = None
) -> list[list[WrittenFile]]:
    """Return the sets of files to be joined, each into one file."""
    rule = rule or usual_rule()
    folders: dict[tuple[object, ...], list[WrittenFile]] = {}
    for file in files:
        small = file.rows * 2 <= format.rows_max and file.bytes * 2 <= format.bytes_max
        if small and end_ms(file.date, file.hour) + rule.over_for_ms <= now_ms:
            folders.setdefault((file.topic, file.date, file.hour, file.values), []).append(file)
    sets: list[list[WrittenFile]] = []
    for found in folders.values():
        if len(found) >= rule.files_min:
            sets += [each for each in _packed(found, format) if len(each) > 1]
    return sets


def _packed(files: Sequence[WrittenFile], format: Format) -> list[list[WrittenFile]]:
    sets: list[list[WrittenFile]] = [[]]
    rows = size = 0
    for file in sorted(files, key=lambda file: file.path):
        rows += file.rows
        size += file.bytes
        if sets[-1] and (rows > format.rows_max or size > format.bytes_max):
            sets.append([])
            rows, size = file.rows, file.bytes
        sets[-1].append(file)
    return sets


def _parts(files: Iterable[WrittenFile]) -> tuple[QueuePart, ...]:
    found: dict[tuple[str, int], QueuePart] = {}
    for part in (part for file in files for part in file.parts):
        known = found.get((part.broker, part.queue_id), part)
        rows = part.rows if known is part else known.rows + part.rows
        found[part.broker, part.queue_id] = replace(
            part, first=min(known.first, part.first), last=max(known.last, part.last), rows=rows
        )
    return tuple(found.values())


def begin_ms(date: str, hour: int) -> int:
    began = datetime.fromisoformat(date).replace(hour=max(hour, 0), tzinfo=UTC)
    return round(began.timestamp()) * 1000


def end_ms(date: str, hour: int) -> int:
    """Return the end of an hour, or of the whole day."""
    return begin_ms(date, hour) + 3_600_000 * (24 if hour == WHOLE_DAY else 1)
