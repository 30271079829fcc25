"""Filling of the consume queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kerolox.protocol.record import RECORD_BYTES_MIN
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.dispatch.entries import LogEntries, QueueRun
from kerolox.store.errors import DiskError, QueueGap, StoreError
from kerolox.store.log.cursors import fit_for_directory
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE

log = logging.getLogger(__name__)

_LIGHT_QUEUE_PREFIX = b"%LMQ%"


def begins_anew(queue: ConsumeQueue, queue_offset: int, physical: int) -> bool:
    """Return True if the topic had been deleted before this message: the queue of a follower, or a rebuilt
    one, then holds messages that must not be delivered any more."""
    return queue_offset == 0 and queue.next_offset > 0 and physical >= queue.max_physical >= 0


class QueueFiller:
    """Filler of consume queues from log entries. Entries that a queue has already are skipped."""

    def __init__(
        self, queues: ConsumeQueues, delay_levels: tuple[int, ...], *, multi_dispatch: bool = False
    ) -> None:
        self.rule = LogEntries(delay_levels, light_queues=multi_dispatch)
        self._queues = queues
        self._known: dict[tuple[bytes, int], ConsumeQueue | None] = {}
        self.fill_gaps = False  # the whole log is read: messages missing in a queue are missing in the log
        self.wanted: Callable[[Entry], bool] | None = None  # at a start: entries that their queue may lack
        self.watched: dict[bytes, Callable[[], None]] = {}  # by topic: called after new entries of its queues

    @contextmanager
    def refilling(self, wanted: Callable[[Entry], bool] | None, *, fill_gaps: bool) -> Iterator[None]:
        """Fill only with ``wanted`` entries while the block runs, at a start. ``fill_gaps``: the whole log is
        read."""
        self.wanted, self.fill_gaps = wanted, fill_gaps
        try:
            yield
        finally:
            self.wanted, self.fill_gaps = None, False

    def fill(self, entries: list[Entry]) -> None:
        if self.wanted is not None:
            entries = list(filter(self.wanted, entries))
        runs = self.rule.runs(entries)
        if runs is None or not self._extend(runs):
            self._fill_each(entries)

    def _extend(self, runs: list[QueueRun]) -> bool:
        """Add runs that continue their queues; return False if one does not: some may have been added."""
        known, watched = self._known, self.watched
        for topic, queue_id, first_offset, packed in runs:
            try:
                queue = known[topic, queue_id]
            except KeyError:
                queue = known[topic, queue_id] = self._queue(topic, queue_id, SIMPLE.at(packed)[0])
            if queue is None:
                continue
            if queue.next_offset != first_offset:
                return False
            queue.extend(packed, first_offset)
            if topic in watched:
                watched[topic]()
        return True

    def _fill_each(self, entries: list[Entry]) -> None:
        known, watched = self._known, self.watched
        for topic, queue_id, queue_offset, physical, size, code, taken in self.rule.each(entries):
            try:
                queue = known[topic, queue_id]
            except KeyError:
                queue = known[topic, queue_id] = self._queue(topic, queue_id, physical)
            if queue is None:
                continue
            if begins_anew(queue, queue_offset, physical) and not topic.startswith(_LIGHT_QUEUE_PREFIX):
                self._queues.begin_anew(queue)
            self.enter(queue, physical, size, code, queue_offset, taken)
            if topic in watched:
                watched[topic]()

    def enter(
        self, queue: ConsumeQueue, physical: int, size: int, code: int, queue_offset: int, taken: int
    ) -> None:
        """Add one entry: after a hole, to a queue that begins anew, or not at all if the queue has it."""
        if queue.next_offset < queue_offset and not self._fill_gap(queue, physical, size, code, queue_offset):
            return
        if queue.append(physical, size, code, queue_offset) and taken > 1:
            # The other messages of the batch have offsets too: a reader at one of these gets the next
            # message.
            queue.max_physical = physical
            queue.extend(queue.format.pack(physical, size, HOLE_TAGS) * (taken - 1), queue.next_offset)

    def forget(self, topic: str) -> None:
        """Forget a topic whose queues were deleted."""
        name = topic.encode()
        for key in [key for key in self._known if key[0] == name]:
            del self._known[key]

    def _queue(self, topic: bytes, queue_id: int, physical: int) -> ConsumeQueue | None:
        """Return the queue of a record; None if it is invalid, as for a record damaged where no CRC covers
        it."""
        try:
            name = topic.decode()
            if fit_for_directory(name, queue_id):
                return self._queues.queue(name, queue_id)
        except DiskError:
            raise  # an error of the disk, not of the record: it is dispatched when the disk works again
        except (UnicodeDecodeError, StoreError):
            pass
        log.warning(
            "record_without_queue topic=%r queue=%d offset=%d next='send the message again if it is known: "
            "the record is damaged and cannot be consumed'",
            topic,
            queue_id,
            physical,
        )
        return None

    def _fill_gap(self, queue: ConsumeQueue, physical: int, size: int, code: int, queue_offset: int) -> bool:
        """Fill the offsets of lost messages before this one. Return False if its own offset is wrong."""
        missing = queue_offset - queue.next_offset
        if queue.max_physical < 0:
            return True  # a queue may begin at any offset
        if not self.fill_gaps:
            raise QueueGap(queue.topic, queue.queue_id, queue.next_offset, queue_offset, queue.path)
        if missing > (physical - queue.max_physical) // RECORD_BYTES_MIN:
            log.warning(
                "record_misnumbered topic=%r queue=%d offset=%d number=%d expected=%d next='send the "
                "message again if it is known: the record is damaged, since the log has no room for "
                "that many before it, and cannot be consumed'",
                queue.topic,
                queue.queue_id,
                physical,
                queue_offset,
                queue.next_offset,
            )
            return False
        log.warning(
            "messages_lost topic=%r queue=%d first=%d count=%d next='send them again if they are "
            "known: they are not in the log'",
            queue.topic,
            queue.queue_id,
            queue.next_offset,
            missing,
        )
        add_holes(queue, physical, size, code, missing)
        return True


def add_holes(queue: ConsumeQueue, physical: int, size: int, code: int, count: int) -> None:
    """Add the entries of lost messages before one: they lead to its place, and its own entry follows."""
    # Entries of delayed messages hold the due time in place of the tag hash; it must stay.
    mark = code if queue.topic == SCHEDULE_TOPIC else HOLE_TAGS
    queue.extend(queue.format.pack(physical, size, mark) * count, queue.next_offset)
    queue.max_physical = physical
