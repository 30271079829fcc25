"""Reader of the timer's queue in order: from entries that were just dispatched, or from the files."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from kerolox.errors import ProtocolError
from kerolox.protocol import reserved
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import Entry
from kerolox.store.errors import StoreError, Unreadable
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.queues import Queue

log = logging.getLogger(__name__)

HANDED_MAX = 20_000  # entries kept in memory; more are read from the files again
_TOPIC = reserved.TIMER_TOPIC.encode()


class Arrival(NamedTuple):
    """One entry of the queue. Without properties: there is no message."""

    queue_offset: int
    physical: int
    size: int
    properties: bytes | None
    stored_ms: int = 0


class Arrivals:
    """Reader of the timer's queue from ``offset`` on."""

    def __init__(self, store: MessageStore) -> None:
        self.offset = 0
        self._store = store
        self._handed: deque[Arrival] = deque()
        self._known_end = 0

    @property
    def queue(self) -> Queue | None:
        return self._store.queues.find(reserved.TIMER_TOPIC, 0)

    @property
    def behind(self) -> int:
        """Number of messages not read yet."""
        queue = self.queue
        return 0 if queue is None else max(0, queue.max_offset - self.offset)

    def hand_over(self, entries: list[Entry]) -> bool:
        """Keep dispatched entries. Return whether some were for the timer. The queues are filled before."""
        queue = self.queue
        if queue is None or queue.max_offset == self._known_end:
            return False
        self._known_end = queue.max_offset
        handed = self._handed
        for size, _, queue_id, queue_offset, physical, _, stored_ms, topic, properties in entries:
            if topic == _TOPIC and not queue_id:
                handed.append(Arrival(queue_offset, physical, size, properties, stored_ms))
        if len(handed) > HANDED_MAX:
            handed.clear()
        return True

    def forget_handed(self) -> None:
        """Forget the entries in memory, because the queue may have changed; the next read uses the files."""
        self._handed.clear()

    async def read(self, count_max: int, end: int) -> list[Arrival]:
        """Return the next entries before ``end``. The caller must set ``offset`` when they are processed.
        Raises Unreadable if the next one cannot be read now."""
        queue = self.queue
        if queue is None:
            return []
        if self.offset < queue.min_offset:
            log.warning("timer_messages_gone from=%d to=%d", self.offset, queue.min_offset)
            self.offset = queue.min_offset
        count = min(count_max, min(end, queue.max_offset) - self.offset)
        if count <= 0:
            return []
        handed = self._handed
        while handed and handed[0].queue_offset < self.offset:
            handed.popleft()
        if handed and handed[0].queue_offset == self.offset:
            return [handed[i] for i in range(min(count, len(handed)))]
        found = self._read(queue, count, may_wait=False)
        if found is None:
            found = await self._store.readers.read(lambda: self._read(queue, count, may_wait=True))
        return found or []

    def _read(self, queue: Queue, count: int, *, may_wait: bool) -> list[Arrival] | None:
        """Return the entries; None if some are not in memory and waiting is not allowed."""
        offset = self.offset
        entries = queue.entries(offset, count, may_wait=may_wait)
        if entries is None:
            return None
        log_ = self._store.log
        found: list[Arrival] = []
        for number, (physical, size, _) in enumerate(entries, offset):
            try:
                record = log_.read(physical, size) if may_wait else log_.read_hot(physical, size)
                if record is None:
                    return found or None
                message = decode_record(record)
            except Unreadable:
                if found:
                    return found
                raise  # read again later: nothing is known about it
            except (StoreError, ProtocolError) as error:
                log.warning("timer_message_gone offset=%d at=%d error=%r", number, physical, str(error))
                found.append(Arrival(number, physical, size, None))
                continue
            whole = message.topic == reserved.TIMER_TOPIC and message.physical_offset == physical
            found.append(
                Arrival(
                    number,
                    physical,
                    size,
                    message.packed_properties if whole else None,
                    message.store_timestamp,
                )
            )
        return found
