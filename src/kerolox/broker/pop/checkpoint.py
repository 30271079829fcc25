"""A checkpoint: the messages that one pop took from one queue, and which of them are still out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from kerolox.protocol.pop.revive_records import CheckpointRecord, checkpoint_of


class QueueKey(NamedTuple):
    """A queue as one group pops it. ``topic`` is the real topic: a retry topic for retries."""

    topic: str
    group: str
    queue_id: int


class Stored(Enum):
    """State of a checkpoint's record in the log."""

    NO = "only in memory"
    WRITING = "appended, not written yet"
    YES = "written"


class Step:
    """One read of a queue. The offset of the group may pass it when no checkpoint of it exists only in
    memory, and the log is flushed up to ``end``."""

    __slots__ = ("end", "next_offset", "open")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.open = 0  # checkpoints of this read that exist only in memory
        self.end = 0  # end of the records that replace checkpoints in memory


class Checkpoint:
    """Messages of one pop. ``out`` and ``in_hand`` are bit masks over ``offsets``.

    A message is out until it is acknowledged, or given out anew; it is in hand while its retry copy, or the
    record of a changed invisible time, is being written.
    """

    __slots__ = (
        "due_s",
        "handed_over",
        "in_hand",
        "invisible_ms",
        "key",
        "offsets",
        "out",
        "pop_ms",
        "popped_s",
        "revive_queue",
        "start_offset",
        "step",
        "stored",
        "tries",
    )

    def __init__(
        self,
        key: QueueKey,
        start_offset: int,
        offsets: Sequence[int],
        pop_ms: int,
        invisible_ms: int,
        revive_queue: int,
        now_s: float,
        step: Step | None,
    ) -> None:
        self.key = key
        self.start_offset = start_offset
        self.offsets = tuple(offsets)
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.popped_s = now_s
        self.due_s = now_s + invisible_ms / 1000
        self.step = step
        self.out = (1 << len(self.offsets)) - 1
        self.in_hand = 0
        self.stored = Stored.NO
        self.tries = 0  # failed attempts to revive
        self.handed_over = False  # known only by its record from now on

    @property
    def is_finished(self) -> bool:
        return not self.out and not self.in_hand

    @property
    def due_ms(self) -> int:
        return self.pop_ms + self.invisible_ms

    def bit(self, offset: int) -> int:
        """Return the bit of a message; 0 if the checkpoint has no such message."""
        try:
            return 1 << self.offsets.index(offset)
        except ValueError:
            return 0

    def has_out(self, offset: int) -> bool:
        return bool(self.out & self.bit(offset))

    @property
    def offsets_out(self) -> list[int]:
        return [offset for place, offset in enumerate(self.offsets) if self.out >> place & 1]

    def record(self, broker_name: str) -> CheckpointRecord:
        """Return the record of the messages that are still out."""
        return checkpoint_of(
            self.key.topic, self.key.group, self.key.queue_id, self.start_offset, self.offsets_out,
            self.pop_ms, self.invisible_ms, broker_name, self.tries,
        )  # fmt: skip
