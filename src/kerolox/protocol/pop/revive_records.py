"""Records of the revive topic: checkpoints of pops, and acknowledgements of their messages.

Three kinds, told apart by their tag, with JSON bodies. Each waits in the timer until its pop is over:
checkpoints are delivered a second before, so that they precede their acknowledgements.
"""

from __future__ import annotations

from typing import Final

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import Body
from kerolox.protocol.header import wire
from kerolox.protocol.limits import INT64_MAX

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
MESSAGES_MAX: Final = 32  # of one checkpoint
ACKS_MAX: Final = 4096  # of one record; more can only be forged or damaged
EARLY_MS: Final = 1000  # time by which checkpoints precede their acknowledgements

_OF_POP = {
    "broker_name": "bn",
    "group": "c",
    "pop_time": "pt",
    "queue_id": "q",
    "start_offset": "so",
    "topic": "t",
}

MergeKey = tuple[str, str, int, int, int, str]


class _OfPop(Body, frozen=True, kw_only=True, rename=wire(**_OF_POP)):
    """The pop that a record belongs to."""

    broker_name: str | None = None
    group: str = ""
    pop_time: int = 0
    queue_id: int = 0
    start_offset: int = 0
    topic: str = ""

    def key(self, own_broker: str) -> MergeKey:
        """Return the key by which acknowledgements find their checkpoint. A record without a broker name
        belongs to the broker that reads it."""
        broker = self.broker_name if self.broker_name and self.broker_name.strip() else own_broker
        return (self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, broker)


class CheckpointRecord(
    _OfPop,
    frozen=True,
    kw_only=True,
    rename=wire(
        acked_bits="bm",
        distances="d",
        invisible_time="it",
        count="n",
        revive_time="reviveTime",
        revive_offset="ro",
        tries="rp",
    ),
):
    """Messages that one pop took from one queue."""

    acked_bits: int = 0  # always 0 in a record
    distances: tuple[int, ...] | None = None  # of the messages from the start; None: 0, 1, 2...
    invisible_time: int = 0
    count: int = 0
    revive_time: int = 0  # ignored when read
    revive_offset: int = 0  # ignored when read
    tries: str | None = None  # number of failed attempts to revive

    @property
    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages."""
        if not self.distances:
            return [self.start_offset + place for place in range(self.count)]
        return [self.start_offset + distance for distance in self.distances[: self.count]]

    @property
    def due_ms(self) -> int:
        """Return the time at which the messages can be delivered again."""
        return self.pop_time + self.invisible_time

    @property
    def deliver_ms(self) -> int:
        """Return the time at which the record enters the revive topic."""
        return self.due_ms - EARLY_MS

    @property
    def unique_key(self) -> str:
        return _joined(self, self.start_offset, CHECKPOINT_TAG)


class AckRecord(_OfPop, frozen=True, kw_only=True, rename=wire(offset="ao")):
    """One acknowledged message."""

    offset: int = 0

    @property
    def offsets(self) -> list[int]:
        return [self.offset]

    @property
    def unique_key(self) -> str:
        return _joined(self, self.offset, ACK_TAG)


class BatchAckRecord(_OfPop, frozen=True, kw_only=True, rename=wire(offset="ao", acked="aol")):
    """Acknowledged messages of one checkpoint."""

    offset: int = -1  # unused
    acked: tuple[int, ...] = ()

    @property
    def offsets(self) -> list[int]:
        return list(self.acked)

    @property
    def unique_key(self) -> str:
        return _joined(self, list(self.acked), BATCH_ACK_TAG)


ReviveRecord = CheckpointRecord | AckRecord | BatchAckRecord
_KINDS: dict[str, type[CheckpointRecord] | type[AckRecord] | type[BatchAckRecord]] = {
    CHECKPOINT_TAG: CheckpointRecord,
    ACK_TAG: AckRecord,
    BATCH_ACK_TAG: BatchAckRecord,
}


def tag_of(record: ReviveRecord) -> str:
    if isinstance(record, CheckpointRecord):
        return CHECKPOINT_TAG
    return ACK_TAG if isinstance(record, AckRecord) else BATCH_ACK_TAG


def checkpoint_of(
    topic: str,
    group: str,
    queue_id: int,
    start_offset: int,
    offsets: list[int],
    pop_time: int,
    invisible_time: int,
    broker_name: str,
    tries: int = 0,
) -> CheckpointRecord:
    """Return the record of a pop with these messages."""
    return CheckpointRecord(
        topic=topic,
        group=group,
        queue_id=queue_id,
        start_offset=start_offset,
        distances=tuple(offset - start_offset for offset in offsets),
        count=len(offsets),
        pop_time=pop_time,
        invisible_time=invisible_time,
        revive_time=pop_time + invisible_time,
        broker_name=broker_name,
        tries=str(tries) if tries else None,
    )


def read_record(tag: str, body: bytes) -> ReviveRecord:
    """Read a record. Raise ProtocolError if it is none, or names offsets that cannot be."""
    kind = _KINDS.get(tag)
    if kind is None:
        raise ProtocolError(f"tag {tag[:40]!r} of a record of the revive topic; known are ck, ack and bAck")
    record = kind.decode(body)
    if not 0 <= record.queue_id < 1 << 31 or not 0 <= record.start_offset <= INT64_MAX:
        raise ProtocolError(f"a {tag} of queue {record.queue_id}, offset {record.start_offset}")
    if isinstance(record, CheckpointRecord):
        if not 0 <= record.count <= MESSAGES_MAX or len(record.distances or ()) > MESSAGES_MAX:
            raise ProtocolError(f"a ck of {record.count} messages; a checkpoint has at most {MESSAGES_MAX}")
        if record.distances and (len(record.distances) < record.count or min(record.distances) < 0):
            raise ProtocolError(f"a ck of {record.count} messages with distances {record.distances}")
    elif len(record.offsets) > ACKS_MAX:
        raise ProtocolError(f"a bAck of {len(record.offsets)} offsets: ACKS_MAX is {ACKS_MAX}")
    return record


def _joined(record: _OfPop, offset: object, tag: str) -> str:
    words = (record.topic, record.queue_id, offset, record.group, record.pop_time, record.broker_name, tag)
    return "@".join(map(str, words))
