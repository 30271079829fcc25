"""Ordered pops of this broker: their records, the offsets of their groups, and who waits for a release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kerolox.broker.pop.checkpoint import QueueKey
from kerolox.broker.pop.order import OrderAck, acknowledged, changed, popped
from kerolox.clock import Clock, TimerHandle
from kerolox.protocol.pop.order_record import OrderRecord
from kerolox.store.tables.offsets import ConsumerOffsets
from kerolox.store.tables.pop_order import PopOrders

EARLIEST_S = 0.05  # until a release is looked at


class Orders:
    """Queues that groups pop in order. ``released`` is called with a queue whose messages are acknowledged or
    over."""

    def __init__(
        self,
        table: PopOrders,
        offsets: ConsumerOffsets,
        clock: Clock,
        released: Callable[[QueueKey], None],
    ) -> None:
        self.table = table
        self._offsets = offsets
        self._clock = clock
        self._released = released
        self._timers: dict[QueueKey, TimerHandle] = {}

    def find(self, key: QueueKey) -> OrderRecord | None:
        return self.table.find(*key)

    def out(self, key: QueueKey) -> int:
        """Return the number of messages that are not acknowledged."""
        record = self.find(key)
        return 0 if record is None else len(record.distances) - record.acked.bit_count()

    def is_blocked(self, key: QueueKey, attempt: str | None, invisible_ms: int) -> bool:
        record = self.find(key)
        return record is not None and record.is_blocked(self._clock.wall_ms(), attempt, invisible_ms)

    def pop(
        self,
        key: QueueKey,
        start: int,
        offsets: Sequence[int],
        pop_ms: int,
        invisible_ms: int,
        attempt: str | None,
    ) -> Mapping[int, int]:
        """Note a pop that began to read at ``start``. Return earlier deliveries by offset."""
        record = popped(self.find(key), offsets, pop_ms, invisible_ms, attempt)
        self._offsets.commit(*key, start)
        self._put(key, record)
        return record.counts or {}

    def ack(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        """Acknowledge a message. Return False if the message is not of the last pop."""
        if offset < self._offsets.offset(*key):
            return True
        record = self.find(key)
        if record is None:
            self._commit(key, offset + 1)
            return True
        found = acknowledged(record, offset, pop_ms)
        if isinstance(found, OrderAck):
            return found is OrderAck.OLD
        after, next_offset = found
        self._commit(key, next_offset)
        self._put(key, after)
        return True

    def change(self, key: QueueKey, offset: int, pop_ms: int, visible_ms: int) -> bool:
        """Set the end of a message's invisible time. Return False if it is acknowledged already."""
        if offset < self._offsets.offset(*key):
            return False
        record = self.find(key)
        if record is not None:
            self._put(key, changed(record, offset, pop_ms, visible_ms))
        return True

    def forget(self, key: QueueKey) -> None:
        """Release a queue: its group was reset."""
        self.table.remove(*key)
        self._cancel(key)

    def watch_all(self) -> None:
        """Watch for releases of all queues, after a start."""
        for name, queues in self.table.records.items():
            topic, _, group = name.partition("@")
            for queue_id, record in queues.items():
                self._watch(QueueKey(topic, group, queue_id), record)

    def close(self) -> None:
        for key in list(self._timers):
            self._cancel(key)

    def _commit(self, key: QueueKey, offset: int) -> None:
        if not self._offsets.has_reset(*key):
            self._offsets.commit(*key, offset)

    def _put(self, key: QueueKey, record: OrderRecord) -> None:
        self.table.put(*key, record)
        self._watch(key, record)

    def _watch(self, key: QueueKey, record: OrderRecord) -> None:
        self._cancel(key)
        left_ms = record.free_ms() - self._clock.wall_ms()
        if left_ms <= 0:
            self._released(key)
            return
        self._timers[key] = self._clock.call_later(max(EARLIEST_S, left_ms / 1000), lambda: self._look(key))

    def _look(self, key: QueueKey) -> None:
        self._timers.pop(key, None)
        record = self.find(key)
        if record is not None:
            self._watch(key, record)

    def _cancel(self, key: QueueKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
