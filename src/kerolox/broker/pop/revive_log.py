"""Writing to the revive topic: records of checkpoints and acknowledgements, parked in the timer until due."""

from __future__ import annotations

from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.checkpoint import Checkpoint
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock
from kerolox.protocol import properties as packed
from kerolox.protocol.pop.handle import Handle
from kerolox.protocol.pop.revive_records import (
    EARLY_MS,
    AckRecord,
    BatchAckRecord,
    CheckpointRecord,
    ReviveRecord,
    tag_of,
)
from kerolox.protocol.reserved import REVIVE_PREFIX


class ReviveLog:
    """Appender of records. They are written with everything else that is appended in this turn of the loop;
    a record counts once that is done. Every method raises what the log raises."""

    def __init__(self, intake: Intake, options: BrokerOptions, clock: Clock, host: bytes) -> None:
        self._intake = intake
        self._options = options
        self._clock = clock
        self._host = host
        self.topic = REVIVE_PREFIX + options.cluster
        self._next_queue = 0

    def next_queue(self) -> int:
        """Return the revive queue of the next pop: they take turns."""
        queue = self._next_queue
        self._next_queue = (queue + 1) % self._options.revive_queues
        return queue

    def checkpoint(self, checkpoint: Checkpoint) -> int:
        """Append the record of a checkpoint. Return its end in the log."""
        record = checkpoint.record(self._options.broker_name)
        return self.put(record, checkpoint.revive_queue, record.deliver_ms)

    def acks(self, checkpoint: Checkpoint, offsets: list[int]) -> int:
        """Append the acknowledgement of messages whose checkpoint has a record."""
        key, name = checkpoint.key, self._options.broker_name
        handle = Handle(
            checkpoint.start_offset, checkpoint.pop_ms, checkpoint.invisible_ms, checkpoint.revive_queue,
            "", name, key.queue_id, offsets[0],
        )  # fmt: skip
        return self.ack_of(handle, key.topic, key.group, offsets)

    def ack_of(self, handle: Handle, topic: str, group: str, offsets: list[int]) -> int:
        """Append the acknowledgement of messages of an earlier process. ``topic``: the real one."""
        record: AckRecord | BatchAckRecord
        if len(offsets) == 1:
            record = AckRecord(
                topic=topic, group=group, queue_id=handle.queue_id, start_offset=handle.start_offset,
                pop_time=handle.pop_time, broker_name=handle.broker_name, offset=offsets[0],
            )  # fmt: skip
        else:
            record = BatchAckRecord(
                topic=topic, group=group, queue_id=handle.queue_id, start_offset=handle.start_offset,
                pop_time=handle.pop_time, broker_name=handle.broker_name, acked=tuple(offsets),
            )  # fmt: skip
        # Through the timer even if it is due, at a later moment than the checkpoint: the reader of the revive
        # topic ignores acknowledgements that precede theirs.
        early_ms = max(EARLY_MS, self._options.timer_precision_ms)
        due_ms = handle.pop_time + handle.invisible_time - EARLY_MS + early_ms
        return self.put(record, handle.revive_queue, max(due_ms, self._clock.wall_ms() + 1))

    def put(self, record: ReviveRecord | CheckpointRecord, revive_queue: int, deliver_ms: int) -> int:
        properties = packed.pack(
            {
                packed.TAGS: tag_of(record),
                packed.UNIQUE_KEY: record.unique_key,
                packed.TIMER_DELIVER_MS: str(deliver_ms),
            }
        )
        place = self._intake.append_or_park(
            PendingMessage(
                self.topic,
                revive_queue % self._options.revive_queues,
                record.encode(),
                properties,
                self._clock.wall_ms(),
                self._host,
            )
        )
        return place[0] + place[2]
