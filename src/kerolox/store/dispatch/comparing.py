"""Comparison of consume queues with the log, without changes: find the entries that differ.

For queues without sums: another broker wrote them, or the note of the sums is lost.
"""

from __future__ import annotations

from kerolox.protocol.record_scan import QUEUE_ID, QUEUE_OFFSET, SIZE, TOPIC, scan
from kerolox.store.dispatch.queues import QueueFiller
from kerolox.store.errors import CorruptRecord, DiskError, OffsetOutOfRange, StoreError
from kerolox.store.log.readable_log import ReadableLog
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.queue.entry import BLANK_SIZE
from kerolox.store.queue.extended_queue import ExtendedQueue
from kerolox.store.queue.extension import is_address


class _Compared(ConsumeQueue):
    """Shadow of a queue that gets the expected entries, and finds the first one that the queue lacks."""

    __slots__ = ("begins", "queue", "unlike")

    def __init__(self, queue: ConsumeQueue, begins: int) -> None:
        super().__init__(queue.topic, queue.queue_id, queue._segments, [])
        self.queue = queue
        self.begins = begins  # messages before this log offset belong to a deleted topic
        self.unlike: tuple[int, int] | None = None  # queue offset, and log offset of its message

    def append(self, physical: int, size: int, tags_code: int, queue_offset: int) -> bool:
        return bool(self.extend(self.format.pack(physical, size, tags_code), queue_offset))

    def extend(self, entries: bytes, first_offset: int) -> int:
        count = self.format.count(entries)
        physical, size, _ = self.format.last(entries)
        self.next_offset = first_offset + count
        self.max_physical = physical + size
        if self.unlike is None and self.format.at(entries)[0] >= self.begins:
            there = ConsumeQueue.read(self.queue, first_offset, count)
            if there != entries:
                self._find(entries, there, first_offset)
        return count

    def _find(self, entries: bytes, there: bytes, first_offset: int) -> None:
        for number, expected in enumerate(self.format.each(entries)):
            entry = self.format.part(there, number, number + 1)
            if not entry or not self._alike(expected, self.format.at(entry)):
                self.unlike = (first_offset + number, expected[0])
                return

    def _alike(self, expected: tuple[int, int, int], entry: tuple[int, int, int]) -> bool:
        code = entry[2]
        if is_address(code) and isinstance(self.queue, ExtendedQueue):
            unit = self.queue.extension.units([code]).get(code)
            code = expected[2] if unit is None else unit.tags_code
        return (entry[0], entry[1], code) == expected


class _Comparer(QueueFiller):
    """Filler that skips messages of queues that do not exist: they were deleted, or are rebuilt anyway."""

    def _queue(self, topic: bytes, queue_id: int, physical: int) -> ConsumeQueue | None:
        try:
            return self._queues.queue(topic.decode(), queue_id)
        except DiskError:
            raise  # the queue is unknown
        except (UnicodeDecodeError, StoreError):
            return None


class Comparison(ConsumeQueues):
    """Shadows of all queues of a store, filled like the real ones."""

    def __init__(self, queues: ConsumeQueues, log: ReadableLog) -> None:
        self.by_topic = {}
        self._real = queues
        self._log = log
        self._shadows: dict[tuple[str, int], _Compared] = {}

    def filler(self, delay_levels: tuple[int, ...], *, multi_dispatch: bool) -> QueueFiller:
        filler = _Comparer(self, delay_levels, multi_dispatch=multi_dispatch)
        filler.fill_gaps = True
        return filler

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        shadow = self._shadows.get((topic, queue_id))
        if shadow is None:
            real = self._real.find(topic, queue_id)
            if real is None:
                raise StoreError(f"queue {queue_id} of topic {topic!r} does not exist: it was deleted")
            shadow = self._shadows[topic, queue_id] = _Compared(real, self._begins(real))
        return shadow

    def begin_anew(self, queue: ConsumeQueue) -> None:
        """Let the shadow begin anew; the files belong to the real queue."""
        queue.next_offset, queue.max_physical = 0, -1

    @property
    def unlike(self) -> list[tuple[ConsumeQueue, int, int]]:
        """Return the queues that the log contradicts: the first wrong offset, and the log offset of its
        message."""
        return [(of.queue, *of.unlike) for of in self._shadows.values() if of.unlike is not None]

    def _begins(self, queue: ConsumeQueue) -> int:
        """Return the log offset of a queue's first message, if the log confirms it; else 0."""
        entry = queue.entry(queue.min_offset)
        if entry is None or entry[1] == BLANK_SIZE:
            return 0
        try:
            found = scan(self._log.record_at(entry[0]), count_max=1).entries[0]
        except (CorruptRecord, OffsetOutOfRange):
            return 0
        says = (found[TOPIC], found[QUEUE_ID], found[QUEUE_OFFSET], found[SIZE])
        return entry[0] if says == (queue.topic.encode(), queue.queue_id, queue.min_offset, entry[1]) else 0
