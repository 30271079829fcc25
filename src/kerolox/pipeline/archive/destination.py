"""Interface between an archive and its destination: Parquet files, a Delta table or an Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kerolox.client.messages import Queue
from kerolox.pipeline.archive.files import Format, WriteTask, WrittenFile
from kerolox.pipeline.archive.log import OffsetRanges
from kerolox.pipeline.lake.staging import Swept
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.upkeep import Expired, JoinTask, KeptTable, TaskResult
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import QueueOffsets

Runner = Callable[[Sequence[WriteTask | JoinTask]], Sequence[TaskResult]]


class Destination(KeptTable, Protocol):
    """A destination of files, with the log that commits them together with the offsets."""

    places: QueueOffsets
    last_read: LastReads  # identity of the message before each offset, where known
    swept: Swept

    @property
    def storage(self) -> Storage: ...
    @property
    def staging(self) -> str: ...

    def open(self, format: Format) -> Format: ...
    def close(self) -> None: ...
    def stem(self) -> str: ...
    def commit(
        self,
        group: str,
        ranges: OffsetRanges,
        places: QueueOffsets,
        files: Sequence[WrittenFile],
        *,
        missing: dict[str, int] | None = None,
        last: LastReads | None = None,
    ) -> object: ...
    def find_places(self, queues: Iterable[Queue]) -> None:
        """Read the offsets of these queues; called before each look, for tables that read them on demand."""

    def expire(self, before_ms: int) -> Expired: ...
