"""Queues as the broker sees them: their bounds, their messages, and offsets by time.

The broker asks nothing else for what a queue holds, so a queue may begin in another place than the files of
``consumequeue``: only :meth:`Queues.find` and the reader below know where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, Unpack

from kerolox.store.disk.readers import Readers
from kerolox.store.errors import Cold, CorruptRecord
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.queue.entry import QueueEntry
from kerolox.store.queue.extension import Unit
from kerolox.store.queue.reading import (
    PULL_BYTES_MAX,
    QueueFilter,
    QueueRead,
    QueueReader,
    ReadFilters,
    ReadLimits,
    RecordFilter,
    UnitFilter,
)


class Queue(Protocol):
    """One queue: its bounds, and the places of its messages."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    @property
    def min_offset(self) -> int:
        """Return the offset of the first message that can be read."""

    @property
    def max_offset(self) -> int:
        """Return the offset after the last message."""

    def entry(self, offset: int, *, may_wait: bool = True) -> QueueEntry | None:
        """Return one entry; None outside of the queue, or if it is not in memory and ``may_wait`` is
        false."""

    def entries(self, offset: int, count: int, *, may_wait: bool) -> Iterable[QueueEntry] | None:
        """Return up to ``count`` entries from ``offset`` on, none outside of the queue. None: they are not in
        memory, and ``may_wait`` is false."""


class Bounds(NamedTuple):
    """First offset of a queue, and the offset after its last message."""

    min_offset: int
    max_offset: int


NO_BOUNDS = Bounds(0, 0)


class Queues:
    """All queues of a store."""

    def __init__(
        self, files: ConsumeQueues, reader: QueueReader, log: CommitLog, readers: Readers, root: str
    ) -> None:
        self._files = files
        self._reader = reader
        self._log = log
        self._readers = readers
        self._root = root

    # After a cut of the log

    def cut(self, offset: int) -> None:
        """Repeat reads under way, and check messages after ``offset`` that are read later."""
        self.repeat_reads()
        self._reader.cut(offset)

    def repeat_reads(self) -> None:
        self._readers.repeat()

    # Which there are

    @property
    def by_topic(self) -> Mapping[str, Mapping[int, Queue]]:
        """Return the queues of each topic, by queue id."""
        return self._files.by_topic

    def find(self, topic: str, queue_id: int) -> Queue | None:
        return self._files.find(topic, queue_id)

    def last_place(self, topic: str) -> int:
        """Return the end of a topic's last message in the log; -1 if its queues hold none."""
        return self._files.last_place(topic)

    # Bounds

    def bounds(self, topic: str, queue_id: int) -> Bounds:
        """Return the bounds of a queue, 0 and 0 if it does not exist."""
        queue = self._files.find(topic, queue_id)
        return NO_BOUNDS if queue is None else Bounds(queue.min_offset, queue.max_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._files.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._files.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    # Messages

    def read_hot(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int = 32,
        *,
        bytes_max: int = PULL_BYTES_MAX,
        limits: ReadLimits | None = None,
        queue_filter: QueueFilter | None = None,
        unit_filter: UnitFilter | None = None,
        record_filter: RecordFilter | None = None,
    ) -> QueueRead:
        """Return messages of a queue from an offset on. Raise :class:`Cold` if some are not in memory: then
        call :meth:`read`."""
        return self._reader.read(
            self._files.find(topic, queue_id),
            offset,
            count_max,
            bytes_max=bytes_max,
            queue_filter=queue_filter,
            unit_filter=unit_filter,
            record_filter=record_filter,
            limits=limits,
        )

    async def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int = 32,
        *,
        bytes_max: int = PULL_BYTES_MAX,
        limits: ReadLimits | None = None,
        limited: bool = False,
        **filters: Unpack[ReadFilters],
    ) -> QueueRead:
        """Return messages of a queue from an offset on. A thread is used only when they are not in memory.

        ``limited``: a client asked for them. Raise Overloaded if too many reads wait for the disk.
        """
        queue = self._files.find(topic, queue_id)

        def attempt(may_wait: bool) -> QueueRead:
            return self._reader.read(
                queue, offset, count_max, bytes_max=bytes_max, may_wait=may_wait, limits=limits, **filters
            )

        try:
            return attempt(False)
        except Cold:
            return await self._readers.read(lambda: attempt(True), limited=limited)

    async def entries(
        self, queue: Queue, offset: int, count: int
    ) -> tuple[list[QueueEntry], dict[int, Unit]]:
        """Return entries of a queue, and the units of those with an extension, by tags code."""

        def look() -> tuple[list[QueueEntry], dict[int, Unit]]:
            found = list(queue.entries(offset, count, may_wait=True) or ())
            files = self._files.find(queue.topic, queue.queue_id)
            return found, {} if files is None else files.units([code for _, _, code in found], may_wait=True)

        return await self._readers.read(look)

    def is_in_memory(self, queue: Queue, offset: int, *, may_wait: bool = False) -> bool:
        """Return True if the message at an offset counts as being in memory. Raise :class:`Cold` if its entry
        is not, unless ``may_wait``."""
        entry = queue.entry(offset, may_wait=may_wait)
        if entry is None and not may_wait:
            raise Cold
        return entry is not None and entry[0] >= self._reader.hot_from

    # Times

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at this time or later; ``upper``: the last one at or before it."""
        queue = self._files.find(topic, queue_id)
        if queue is None:
            return 0
        log = self._log
        return await self._readers.read(
            lambda: queue.offset_by_time(time_ms, self._time_of, log_min=log.min_offset, upper=upper),
            limited=True,
        )

    def _time_of(self, physical: int) -> int:
        """Return the store time of the message that a queue entry names; -1 if it was deleted meanwhile."""
        log = self._log
        stored_ms = log.store_timestamp_at(physical)
        if stored_ms < 0 and log.min_offset <= physical < log.segments.committed:
            raise CorruptRecord(
                f"no record starts at log offset {physical}, which a queue entry names. Run: kerolox "
                f"store verify {self._root}",
                offset=physical,
            )
        return stored_ms

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of the message at an offset; -1 if it does not exist. Raise Unreadable if it
        cannot be read now. May wait, so call it in a thread."""
        queue = self._files.find(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        return -1 if entry is None else self._log.store_timestamp_at(entry[0])

    async def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the oldest message of a queue; -1 if it has none."""
        return await self._readers.read(
            lambda: self.store_time_at(topic, queue_id, self.min_offset(topic, queue_id)), limited=True
        )
