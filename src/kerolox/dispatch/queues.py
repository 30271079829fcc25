"""Fill the consume queues."""

from __future__ import annotations

import logging

from kerolox.protocol import properties as names
from kerolox.protocol.java import java_hash
from kerolox.protocol.record_scan import Entry
from kerolox.store.consume_queue import ConsumeQueue
from kerolox.store.consume_queues import ConsumeQueues
from kerolox.store.delay_table import SCHEDULE_TOPIC, due_ms

log = logging.getLogger(__name__)

TAGS_CACHED_MAX = 8192
_TRANSACTION_BITS = 0xC
_IN_NO_QUEUE = (0x4, 0xC)  # prepared and rolled back, as old brokers stored them
_INNER_BATCH = 0x80
_SCHEDULE = SCHEDULE_TOPIC.encode()
_LIGHT_QUEUE_PREFIX = "%LMQ%"


class QueueFiller:
    """Makes queue entries of log entries. Entries that are there already are passed over."""

    def __init__(
        self, queues: ConsumeQueues, delay_levels: tuple[int, ...], *, multi_dispatch: bool = False
    ) -> None:
        self._queues = queues
        self._delay_levels = delay_levels
        self._multi_dispatch = multi_dispatch
        self._known: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._tags: dict[bytes, int] = {}
        self._told_of_batches = False

    def fill(self, entries: list[Entry]) -> None:
        known = self._known
        tags = self._tags
        find = names.find
        for size, _, queue_id, queue_offset, physical, sys_flag, stored_ms, topic, properties in entries:
            if sys_flag & _TRANSACTION_BITS in _IN_NO_QUEUE:
                continue
            queue = known.get((topic, queue_id))
            if queue is None:
                queue = known[topic, queue_id] = self._queues.queue(topic.decode(), queue_id)
            tag = find(properties, b"\x02TAGS\x01")
            if tag is None:
                code = 0
            else:
                found = tags.get(tag)
                code = self._hash(tag) if found is None else found
            if topic == _SCHEDULE:
                code = self._due(properties, stored_ms, code)
            if sys_flag & _INNER_BATCH:
                self._tell_of_batches(topic)
            queue.append(physical, size, code, queue_offset)
            if self._multi_dispatch and names.AT_INNER_MULTI_DISPATCH[1:] in properties:
                self._fill_light(properties, physical, size, code)

    def forget(self, topic: str) -> None:
        """The topic's queues were deleted."""
        name = topic.encode()
        for key in [key for key in self._known if key[0] == name]:
            del self._known[key]

    def _hash(self, tag: bytes) -> int:
        if len(self._tags) >= TAGS_CACHED_MAX:
            self._tags.clear()
        code = self._tags[tag] = java_hash(tag.decode("utf-8", "replace"))
        return code

    def _due(self, properties: bytes, stored_ms: int, code: int) -> int:
        """Delayed messages carry the time they are due where others carry their tag."""
        text = names.find(properties, names.AT_DELAY)
        try:
            level = int(text or b"")
        except ValueError:
            return code
        return due_ms(self._delay_levels, level, stored_ms) if level > 0 else code

    def _fill_light(self, properties: bytes, physical: int, size: int, code: int) -> None:
        wanted = (names.find(properties, names.AT_INNER_MULTI_DISPATCH) or b"").split(b",")
        offsets = (names.find(properties, names.AT_INNER_MULTI_QUEUE_OFFSET) or b"").split(b",")
        if len(wanted) != len(offsets):
            return
        for name, offset in zip(wanted, offsets, strict=True):
            topic = name.decode("utf-8", "replace")
            if not topic.startswith(_LIGHT_QUEUE_PREFIX) or "/" in topic or not offset.isdigit():
                continue
            self._queues.queue(topic, 0).append(physical, size, code, int(offset))

    def _tell_of_batches(self, topic: bytes) -> None:
        if not self._told_of_batches:
            self._told_of_batches = True
            log.warning(
                "inner_batch_in_plain_queue topic=%s next='batch consume queues (queue.type=BatchCQ) are not "
                "kept here: the batch counts as one message'",
                topic.decode("utf-8", "replace"),
            )
