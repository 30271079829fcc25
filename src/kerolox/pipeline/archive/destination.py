"""What an archive needs of a place it writes to, be it Parquet files, a Delta table or an Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kerolox.client.messages import Queue
from kerolox.pipeline.archive.files import Format, TaskResult, WriteTask, WrittenFile
from kerolox.pipeline.archive.joining import JoinTask
from kerolox.pipeline.archive.log import OffsetRanges
from kerolox.pipeline.archive.staging import Expired, Swept
from kerolox.pipeline.lake.storage import Storage
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import QueueOffsets

Runner = Callable[[Sequence[WriteTask | JoinTask]], Sequence[TaskResult]]


class Destination(Protocol):
    """Where the files go, and what keeps the count of them."""

    places: QueueOffsets
    last_read: LastReads  # the message before each place, where it is known
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
    def discard(self, files: Sequence[WrittenFile]) -> None: ...
    def find_places(self, queues: Iterable[Queue]) -> None:
        """Called before each look, for those that learn late how far they are."""

    def join(self, run: Runner, format: Format) -> int: ...
    def expire(self, before_ms: int) -> Expired: ...
