"""Check of reads from a part of the log that no start has checked: the records must match the queue.

A start checks only the end of the log, so earlier damage is found when it is read. Such a read fails with the
offset and the repair command: otherwise a skipped or wrong message would stay unnoticed.
"""

from __future__ import annotations

import logging
import os

from kerolox.protocol.record import record_crc_ok
from kerolox.protocol.record_scan import (
    CHECK_BODY,
    PHYSICAL_OFFSET,
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    TOPIC,
    scan,
)
from kerolox.store.errors import CorruptRecord
from kerolox.store.log.readable_log import ReadableLog
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.entry import HOLE_TAGS

log = logging.getLogger(__name__)

_LIGHT_QUEUE_PREFIX = "%LMQ%"
_CRC_MARK = b"__CRC32#\x01"
_PHYSICAL_AT = 28  # offset in a record
_REPORTED_MAX = 1000


class DamagedMessage(CorruptRecord):
    """Message that is damaged, or not the one its queue entry means. Retrying does not help."""


class ReadCheck:
    """Checker of reads from one log."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._reported: set[int] = set()

    def check(self, queue: ConsumeQueue, first_offset: int, entries: bytes, count: int, data: bytes) -> None:
        """Raise unless these bytes are ``count`` messages that these entries of a queue name."""
        places = [
            (offset, physical, size)
            for offset, (physical, size, code) in enumerate(queue.format.each(entries), first_offset)
            if code != HOLE_TAGS
        ]
        if self._all_right(queue, places, data):
            return
        at = 0
        for offset, physical, size in places:
            says = int.from_bytes(data[at + _PHYSICAL_AT : at + _PHYSICAL_AT + 8], "big")
            if says != physical and count < len(places):
                continue  # a filter rejected it
            why = self._what_is_wrong(queue, offset, physical, data[at : at + size])
            if why:
                raise self._damaged(queue, offset, physical, why)
            at += size
        if at != len(data):
            raise self._damaged(queue, *places[0][:2], "its entries do not match the messages in the log")

    def _all_right(self, queue: ConsumeQueue, places: list[tuple[int, int, int]], data: bytes) -> bool:
        """Return True in the usual case: all messages are present and valid. Otherwise they are checked one
        by one."""
        topic, queue_id = queue.topic.encode(), queue.queue_id
        found = scan(data, check=CHECK_BODY).entries
        if [(entry[QUEUE_OFFSET], entry[PHYSICAL_OFFSET], entry[SIZE]) for entry in found] != places:
            return False
        return all(
            entry[TOPIC] == topic and entry[QUEUE_ID] == queue_id and entry[PROPERTIES][-20:-11] != _CRC_MARK
            for entry in found
        )

    def _what_is_wrong(self, queue: ConsumeQueue, offset: int, physical: int, record: bytes) -> str:
        found = scan(record, check=CHECK_BODY, count_max=1)
        if not found.entries or found.position != len(record):
            return found.what or "no record of this size is there"
        entry = found.entries[0]
        if entry[PHYSICAL_OFFSET] != physical:
            return f"the record names log offset {entry[PHYSICAL_OFFSET]}"
        if entry[PROPERTIES][-20:-11] == _CRC_MARK and not record_crc_ok(record):
            return "the record does not match its own CRC"
        says = (entry[TOPIC].decode("utf-8", "replace"), entry[QUEUE_ID], entry[QUEUE_OFFSET])
        if says != (queue.topic, queue.queue_id, offset) and not queue.topic.startswith(_LIGHT_QUEUE_PREFIX):
            return f"the record names offset {says[2]} in queue {says[1]} of {says[0]!r}"
        return ""

    def _damaged(self, queue: ConsumeQueue, offset: int, physical: int, what: str) -> DamagedMessage:
        segments = self._log.segments
        segment = segments.segment_at(physical)
        root = os.path.dirname(segments.directories[0])
        path, start = (root, 0) if segment is None else (segment.path, segment.start)
        error = DamagedMessage(
            f"message {offset} of queue {queue.queue_id} of {queue.topic!r} is damaged: {what}. Its place is "
            f"{path} at byte {physical - start} (log offset {physical}). Stop the broker and run: kerolox "
            f"store verify {root}. If the log is damaged: kerolox store repair {root} --skip {physical} "
            f"(keeps the later records). If the queue is damaged: kerolox store repair {root} --queues.",
            path=path,
            offset=physical,
        )
        if physical not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(physical)
            log.error("message_damaged error=%r", str(error))
        return error
