"""Rule which queue entries the records of a log make.

The queues are filled by it, rebuilt, compared at a start, and checked by ``kerolox store verify``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from kerolox.compiled import compiled
from kerolox.protocol import properties as names
from kerolox.protocol.flags import TRANSACTION_MASK
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.protocol.subscription import tag_hash_of
from kerolox.store.delay_table import due_ms
from kerolox.store.log.cursors import IN_NO_QUEUE, light_offsets, offsets_taken
from kerolox.store.queue.entry import SIMPLE

FLAGS_QUEUED = 0x73B  # flags that do not affect the queue entry
_RUNS_MAX = 64
_SCHEDULE = SCHEDULE_TOPIC.encode()
_AT_LIGHT = names.AT_INNER_MULTI_DISPATCH[1:]

# Entries of one queue: topic, queue id, first offset, packed entries.
QueueRun: TypeAlias = tuple[bytes, int, int, bytes]


def _queue_runs(entries: list[Entry], stops: tuple[bytes, ...]) -> list[QueueRun] | None:
    """Return the queue entries of log entries, queue by queue. None if there are too many queues, or entries
    need special treatment: offsets that do not follow each other, flags, properties with one of the
    ``stops``."""
    runs: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    pack = SIMPLE.pack
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
        run[1].append(pack(physical, size, tag_hash_of(properties)))
    return [(topic, queue_id, first, b"".join(packed)) for (topic, queue_id), (first, packed) in runs.items()]


queue_runs = compiled("queue_runs", _queue_runs)

MadeEntry: TypeAlias = tuple[bytes, int, int, int, int, int, int]
"""Topic, queue id, queue offset, physical offset, size, tags code, and the number of offsets it takes: more
than one for a batch kept as one record."""


class LogEntries:
    """Queue entries of the records of one log."""

    def __init__(
        self,
        delay_levels: tuple[int, ...],
        *,
        light_queues: bool = False,
        deleted: Mapping[bytes, int] | None = None,
    ) -> None:
        self._delay_levels = delay_levels
        self._light_queues = light_queues
        # Words that the properties of an ordinary record do not contain
        self.stops = (_AT_LIGHT,) if light_queues else ()
        # While the log is read again: topic → its messages before this offset belong to a deleted topic.
        self.deleted: Mapping[bytes, int] = {} if deleted is None else deleted

    def runs(self, records: list[Entry]) -> list[QueueRun] | None:
        """Return the entries, queue by queue; None if some need special treatment: see :meth:`each`."""
        runs = None if self.deleted else queue_runs(records, self.stops)
        for run in runs or ():
            if run[0] == _SCHEDULE:
                return None
        return runs

    def each(self, records: list[Entry]) -> Iterator[MadeEntry]:
        """Yield the entries one by one, in the order of the log."""
        deleted = self.deleted
        for size, _, queue_id, queue_offset, physical, sys_flag, stored_ms, topic, properties in records:
            if sys_flag & TRANSACTION_MASK in IN_NO_QUEUE:
                continue
            code = tag_hash_of(properties)
            if not deleted or physical >= deleted.get(topic, 0):
                due = self._due(properties, stored_ms, code) if topic == _SCHEDULE else code
                taken = offsets_taken(sys_flag, properties, size)
                yield topic, queue_id, queue_offset, physical, size, due, taken
            # Light queues are not deleted with the topic.
            if self._light_queues and _AT_LIGHT in properties:
                for name, offset in light_offsets(topic, properties):
                    yield name, 0, offset, physical, size, code, 1

    def _due(self, properties: bytes, stored_ms: int, code: int) -> int:
        """Return the due time of a delayed message, which its entry holds in place of the tag hash."""
        text = names.find(properties, names.AT_DELAY)
        try:
            level = int(text or b"")
        except ValueError:
            return code
        return due_ms(self._delay_levels, level, stored_ms) if level > 0 else code
