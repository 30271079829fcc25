"""Reading of records that a peer names by their log offset.

The bytes at an offset prove nothing: a body may contain the bytes of a record, with that very offset in them.
An offset counts only if the queue entry at the record's topic, queue id and queue offset points to it and has
its size, because only the store writes queue entries. A record that is written and not yet dispatched has no
entry; the log's list of these proves it instead.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from kerolox.errors import Overloaded
from kerolox.protocol.record import MAGIC_V2
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SIZE
from kerolox.store.disk.readers import Readers
from kerolox.store.errors import CorruptRecord, OffsetOutOfRange, StoreError
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.framing import head_bytes
from kerolox.store.queue.entry import QueueEntry
from kerolox.store.queue.queues import Queues

WALKS_MAX = 16  # requests that may wait for a scan of a log file; more are rejected

_HEAD_BYTES = 112  # up to the length field of the body, with both hosts in IPv6
_BORN_IPV6, _STORE_IPV6 = 0x10, 0x20
_by_offset = itemgetter(PHYSICAL_OFFSET)


class NoRecordThere(CorruptRecord):
    """Offset at which no record begins, as far as the store can prove."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"no message is stored at {offset}: {why}", offset=offset)


class _Claim(NamedTuple):
    """Content that the bytes at an offset claim to have."""

    size: int
    topic: str
    queue_id: int
    queue_offset: int


class NamedRecords:
    """Reader of records at offsets that peers name, if the store proves that a record lies there."""

    def __init__(self, log: CommitLog, queues: Queues, readers: Readers) -> None:
        self._log = log
        self._queues = queues
        self._readers = readers
        self._walks = 0
        self._walking = asyncio.Lock()

    async def record(self, offset: int) -> bytes:
        """Return the record that begins at ``offset``. Raise NoRecordThere if no queue entry proves it, and
        other errors of the store if it cannot be read now."""
        waits = self._size_waiting(offset)
        return await self._readers.read(lambda: self._read(offset, waits), limited=True)

    def hot(self, offset: int) -> bytes | None:
        """Return the record if it and its queue entry are in memory; None: call :meth:`record`."""
        try:
            size = self._size_waiting(offset)
            if size is None:
                claim = self._claim(offset, self._log.read_hot)
                queue = None if claim is None else self._queues.find(claim.topic, claim.queue_id)
                if claim is None or queue is None:
                    return None
                size = _proven(claim, offset, queue.entry(claim.queue_offset, may_wait=False))
            return None if size is None else self._log.read_hot(offset, size)
        except StoreError:
            return None

    async def framed_record(self, offset: int) -> bytes:
        """Return the record that begins at ``offset``, even if it is in no queue, as for a deleted topic.

        Scans the log file from its beginning: only for peers with rights on the whole cluster, such as
        followers that compare logs. One scan at a time; raise Overloaded if too many wait.
        """
        if self._walks >= WALKS_MAX:
            raise Overloaded(f"{WALKS_MAX} requests wait for records that are in no queue: retry later")
        self._walks += 1
        try:
            async with self._walking:
                return await self._readers.read(lambda: self._walk_to(offset))
        finally:
            self._walks -= 1

    def _size_waiting(self, offset: int) -> int | None:
        """Return the size of a record that is written and not yet dispatched; None if none begins there. Runs
        on the loop."""
        waiting = self._log.undispatched
        at = bisect_left(waiting, offset, key=_by_offset)
        if at == len(waiting) or waiting[at][PHYSICAL_OFFSET] != offset:
            return None
        return int(waiting[at][SIZE])

    def _read(self, offset: int, size: int | None) -> bytes:
        try:
            return self._log.read(offset, self._proven_size(offset) if size is None else size)
        except OffsetOutOfRange as error:
            raise NoRecordThere(offset, str(error)) from error  # deleted meanwhile

    def _proven_size(self, offset: int) -> int:
        log = self._log
        claim = self._claim(offset, log.read)
        if claim is None:
            raise NoRecordThere(
                offset, f"the log holds {log.min_offset} to {log.max_offset}, and no record begins there"
            )
        queue = self._queues.find(claim.topic, claim.queue_id)
        size = _proven(claim, offset, None if queue is None else queue.entry(claim.queue_offset))
        if size is None:
            raise NoRecordThere(
                offset,
                f"offset {claim.queue_offset} of queue {claim.queue_id} of topic {claim.topic[:80]!r} is "
                "another message",
            )
        return size

    def _claim(self, offset: int, read: Callable[[int, int], bytes | None]) -> _Claim | None:
        """Return the content that the bytes at the offset claim; None if they cannot be a record, or are not
        in memory.

        Reads only the head and the topic: the size is unproven, and may come from a peer.
        """
        log = self._log
        if offset < log.min_offset:
            return None
        readable = log.segments.readable(offset)
        head = read(offset, min(readable, _HEAD_BYTES)) if readable > 0 else None
        if head is None or len(head) < 48:
            return None
        size = int.from_bytes(head[:4], "big", signed=True)
        flags = int.from_bytes(head[36:40], "big")
        at = 76 + (12 if flags & _BORN_IPV6 else 0) + (12 if flags & _STORE_IPV6 else 0)
        body_bytes = int.from_bytes(head[at + 8 : at + 12], "big", signed=True)
        topic_at = at + 12 + body_bytes
        length_bytes = 2 if head[4:8] == MAGIC_V2.to_bytes(4, "big") else 1
        if body_bytes < 0 or not topic_at + length_bytes <= size <= readable:
            return None
        field = read(offset + topic_at, min(size - topic_at, length_bytes + 255))
        if field is None:
            return None
        topic_bytes = int.from_bytes(field[:length_bytes], "big")
        name = field[length_bytes : length_bytes + topic_bytes]
        if len(name) < topic_bytes:
            return None
        return _Claim(
            size,
            name.decode("utf-8", "replace"),
            int.from_bytes(head[12:16], "big", signed=True),
            int.from_bytes(head[20:28], "big", signed=True),
        )

    def _walk_to(self, offset: int) -> bytes:
        log = self._log
        segment = log.segments.segment_at(offset) if offset >= log.min_offset else None
        if segment is None:
            raise NoRecordThere(offset, f"the log holds {log.min_offset} to {log.max_offset}")
        # The scan stops before the record: the previous one must end where it begins.
        before = offset - head_bytes(log.segments, offset)
        at = segment.start
        for _, at in log.entries_from(segment.start, before):  # noqa: B007 — where the walk ended
            pass
        if at != before:
            raise NoRecordThere(offset, f"the record before it ends at {at}")
        return log.record_at(offset)


def _proven(claim: _Claim, offset: int, entry: QueueEntry | None) -> int | None:
    """Return the size of the record, if its queue entry has the same offset and size."""
    return claim.size if entry is not None and entry[:2] == (offset, claim.size) else None
