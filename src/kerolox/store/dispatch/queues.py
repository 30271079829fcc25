"""Filling of the consume queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kerolox.compiled import compiled
from kerolox.protocol import properties as names
from kerolox.protocol.record import RECORD_BYTES_MIN
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.protocol.subscription import tag_hash
from kerolox.store.delay_table import due_ms
from kerolox.store.errors import DiskError, QueueGap, StoreError
from kerolox.store.log.cursors import fit_for_directory, names_light_queues
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE

log = logging.getLogger(__name__)

_TRANSACTION_BITS = 0xC
_IN_NO_QUEUE = (0x4, 0xC)  # prepared and rolled back, as old brokers stored them
_INNER_BATCH = 0x80
FLAGS_QUEUED = 0x73B  # flags that do not affect the queue entry
_RUNS_MAX = 64
_SCHEDULE = SCHEDULE_TOPIC.encode()
_LIGHT_QUEUE_PREFIX = "%LMQ%"
_AT_INNER_NUM = names.marker(names.INNER_NUM)


# Entries of one queue: topic, queue id, first offset, packed entries.
QueueRun: TypeAlias = tuple[bytes, int, int, bytes]


def _queue_runs(entries: list[Entry], stops: tuple[bytes, ...]) -> list[QueueRun] | None:
    """Return the queue entries of log entries, queue by queue. None if there are too many queues, or entries
    need special treatment: offsets that do not follow each other, flags, properties with one of the
    ``stops``."""
    runs: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    pack = SIMPLE.pack
    find = names.find
    for size, _, queue_id, queue_offset, physical, sys_flag, _, topic, properties in entries:
        run = runs.get((topic, queue_id))
        if sys_flag & ~FLAGS_QUEUED or any(word in properties for word in stops):
            return None
        if run is None:
            if len(runs) == _RUNS_MAX:
                return None
            run = runs[topic, queue_id] = (queue_offset, [])
        elif queue_offset != run[0] + len(run[1]):
            return None
        # names.find, inlined for the usual place of a tag: between two others.
        at = properties.rfind(b"\x02TAGS\x01") + 6
        stop = properties.find(b"\x02", at)
        tag = properties[at:stop] if 5 < at < stop else find(properties, b"\x02TAGS\x01")
        run[1].append(pack(physical, size, 0 if tag is None else tag_hash(tag)))
    return [(topic, queue_id, first, b"".join(packed)) for (topic, queue_id), (first, packed) in runs.items()]


queue_runs = compiled("queue_runs", _queue_runs)


def begins_anew(queue: ConsumeQueue, queue_offset: int, physical: int) -> bool:
    """Return True if the topic had been deleted before this message: the queue of a follower, or a rebuilt
    one, then holds messages that must not be delivered any more."""
    return queue_offset == 0 and queue.next_offset > 0 and physical >= queue.max_physical >= 0


class QueueFiller:
    """Filler of consume queues from log entries. Entries that a queue has already are skipped."""

    def __init__(
        self, queues: ConsumeQueues, delay_levels: tuple[int, ...], *, multi_dispatch: bool = False
    ) -> None:
        self._queues = queues
        self._delay_levels = delay_levels
        self._multi_dispatch = multi_dispatch
        self._stops = (names.AT_INNER_MULTI_DISPATCH[1:],) if multi_dispatch else ()
        self._known: dict[tuple[bytes, int], ConsumeQueue | None] = {}
        self.fill_gaps = False  # the whole log is read: messages missing in a queue are missing in the log
        self.wanted: Callable[[Entry], bool] | None = None  # at a start: entries that their queue may lack
        # While the log is read again: topic → its messages before this offset belong to a deleted topic.
        self.deleted: Mapping[bytes, int] = {}

    def fill(self, entries: list[Entry]) -> None:
        if self.wanted is not None:
            entries = list(filter(self.wanted, entries))
        runs = None if self.deleted else queue_runs(entries, self._stops)
        if runs is None or not self._extend(runs):
            self._fill_each(entries)

    def _extend(self, runs: list[QueueRun]) -> bool:
        """Add runs that continue their queues; return False if one does not: some may have been added."""
        known = self._known
        for topic, queue_id, first_offset, packed in runs:
            try:
                queue = known[topic, queue_id]
            except KeyError:
                queue = known[topic, queue_id] = self._queue(topic, queue_id, SIMPLE.at(packed)[0])
            if queue is None:
                continue
            if topic == _SCHEDULE or queue.next_offset != first_offset:
                return False
            queue.extend(packed, first_offset)
        return True

    def _fill_each(self, entries: list[Entry]) -> None:
        known = self._known
        find = names.find
        multi_dispatch = self._multi_dispatch
        deleted = self.deleted
        for size, _, queue_id, queue_offset, physical, sys_flag, stored_ms, topic, properties in entries:
            if sys_flag and sys_flag & _TRANSACTION_BITS in _IN_NO_QUEUE:
                continue
            if deleted and physical < deleted.get(topic, 0):
                if multi_dispatch:  # light queues are not deleted with the topic
                    tag = find(properties, b"\x02TAGS\x01")
                    code = 0 if tag is None else tag_hash(tag)
                    self._fill_light(topic, properties, physical, size, code)
                continue
            try:
                queue = known[topic, queue_id]
            except KeyError:
                queue = known[topic, queue_id] = self._queue(topic, queue_id, physical)
            if queue is None:
                continue
            # names.find, inlined for the usual place of a tag: between two others.
            at = properties.rfind(b"\x02TAGS\x01") + 6
            stop = properties.find(b"\x02", at)
            tag = properties[at:stop] if 5 < at < stop else find(properties, b"\x02TAGS\x01")
            code = 0 if tag is None else tag_hash(tag)
            if topic == _SCHEDULE:
                code = self._due(properties, stored_ms, code)
            if begins_anew(queue, queue_offset, physical):
                self._queues.begin_anew(queue)
            if sys_flag & _INNER_BATCH or queue.next_offset < queue_offset:
                self._append_with_care(queue, physical, size, code, queue_offset, sys_flag, properties)
            else:
                queue.append(physical, size, code, queue_offset)
            if multi_dispatch and names.AT_INNER_MULTI_DISPATCH[1:] in properties:
                self._fill_light(topic, properties, physical, size, code)

    def forget(self, topic: str) -> None:
        """Forget a topic whose queues were deleted."""
        name = topic.encode()
        for key in [key for key in self._known if key[0] == name]:
            del self._known[key]

    def _due(self, properties: bytes, stored_ms: int, code: int) -> int:
        """Return the due time of a delayed message, which its entry holds in place of the tag hash."""
        text = names.find(properties, names.AT_DELAY)
        try:
            level = int(text or b"")
        except ValueError:
            return code
        return due_ms(self._delay_levels, level, stored_ms) if level > 0 else code

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

    def _append_with_care(
        self,
        queue: ConsumeQueue,
        physical: int,
        size: int,
        code: int,
        queue_offset: int,
        sys_flag: int,
        properties: bytes,
    ) -> None:
        """Append a message that takes more than one offset: a batch kept as one record, or a message after
        lost ones."""
        missing = queue_offset - queue.next_offset
        if missing > 0 and queue.max_physical >= 0:
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
                return
            log.warning(
                "messages_lost topic=%r queue=%d first=%d count=%d next='send them again if they are "
                "known: they are not in the log'",
                queue.topic,
                queue.queue_id,
                queue.next_offset,
                missing,
            )
            # Entries of delayed messages hold the due time in place of the tag hash; it must stay.
            mark = code if queue.topic == SCHEDULE_TOPIC else HOLE_TAGS
            queue.extend(queue.format.pack(physical, size, mark) * missing, queue.next_offset)
            queue.max_physical = physical  # the entry of the message itself follows
        if not queue.append(physical, size, code, queue_offset) or not sys_flag & _INNER_BATCH:
            return
        more = names.find(properties, _AT_INNER_NUM)
        if more is not None and more.isdigit() and 1 < int(more) <= size:
            # The other messages of the batch have offsets too: a reader at one of these gets the next
            # message.
            queue.max_physical = physical
            queue.extend(queue.format.pack(physical, size, HOLE_TAGS) * (int(more) - 1), queue.next_offset)

    def _fill_light(self, topic: bytes, properties: bytes, physical: int, size: int, code: int) -> None:
        if not names_light_queues(topic.decode("utf-8", "replace")):
            return
        wanted = (names.find(properties, names.AT_INNER_MULTI_DISPATCH) or b"").split(b",")
        offsets = (names.find(properties, names.AT_INNER_MULTI_QUEUE_OFFSET) or b"").split(b",")
        if len(wanted) != len(offsets):
            return
        for name, offset in zip(wanted, offsets, strict=True):
            light = name.decode("utf-8", "replace")
            if (
                not light.startswith(_LIGHT_QUEUE_PREFIX)
                or not fit_for_directory(light, 0)
                or not offset.isdigit()
            ):
                continue
            self._append_with_care(self._queues.queue(light, 0), physical, size, code, int(offset), 0, b"")
