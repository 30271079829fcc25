"""One delay level: which messages ask for it, how they are restored to their topic, how long they wait.

A message is due by the wall clock, as in RocketMQ. When the wall clock was set back, those parked since the
start are delivered when their delay has passed all the same: neither hours late nor, as RocketMQ does
with a due time further ahead than the level's delay, at once. Of those parked before, and after a change of
the level table, that rule of RocketMQ is kept.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from functools import lru_cache
from typing import Final

from kerolox.broker.write.delivery import Retry
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.errors import KeroloxError, Refused
from kerolox.protocol import properties as packed
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.reserved import is_closed

PARKED_STEPS = 1000  # parts of a level's delay: how finely the times of parking are remembered

AT_REAL_TOPIC: Final = packed.marker(packed.REAL_TOPIC)
AT_REAL_QUEUE_ID: Final = packed.marker(packed.REAL_QUEUE_ID)
_NUMBER = re.compile(rb"[+-]?[0-9]{1,10}")
_INT_MAX = 2**31 - 1
_TAIL_BYTES_MAX = 512


class Unrestorable(KeroloxError):
    """A parked message that does not tell its real topic. It becomes a dead letter."""


def level_of(properties: bytes) -> int:
    """The delay level a message asks for, 0 when it asks for none. Raises for what is no number."""
    text = packed.find(properties, packed.AT_DELAY)
    if text is None:
        return 0
    if not _NUMBER.fullmatch(text) or not -_INT_MAX - 1 <= int(text) <= _INT_MAX:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"the delay level (property DELAY) is {text[:40]!r}, not a number"
        )
    return int(text)


def restore(message: StoredMessage) -> PendingMessage:
    """A parked message as it is delivered. Its properties stay as they are: those of the real queue and
    the level too, as in RocketMQ."""
    pending = as_parked(message)
    pending.topic, pending.queue_id = real_queue_of(message.packed_properties)
    pending.properties = restored_properties(message.packed_properties)
    return pending


def as_parked(message: StoredMessage) -> PendingMessage:
    """A parked message once more: under the topic that its properties name, however they read."""
    topic = packed.find(message.packed_properties, AT_REAL_TOPIC) or b""
    return PendingMessage(
        topic.decode("utf-8", "replace"),
        0,
        message.body,
        message.packed_properties,
        message.born_timestamp,
        message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        store_host=message.store_host,
        parked_at=message.physical_offset,
    )


def restored_properties(properties: bytes) -> bytes:
    if packed.AT_CRC32[1:] in properties:
        return packed.remove(properties, packed.AT_CRC32)  # the CRC of the parked record
    return properties


def real_queue_of(properties: bytes) -> tuple[str, int]:
    """The topic and queue that a parked message is delivered to."""
    # This broker writes it last, so messages of one queue end alike. The last value counts anyway.
    at = properties.rfind(AT_REAL_TOPIC)
    found = _known_queue(properties[at:]) if at > 0 and len(properties) - at <= _TAIL_BYTES_MAX else None
    return _read_queue(properties) if found is None else found


@lru_cache(1024)
def _known_queue(tail: bytes) -> tuple[str, int] | None:
    try:
        return _read_queue(tail)
    except Unrestorable:
        return None


def _read_queue(properties: bytes) -> tuple[str, int]:
    topic = packed.find(properties, AT_REAL_TOPIC)
    queue_id = packed.find(properties, AT_REAL_QUEUE_ID)
    if topic is None or queue_id is None or not _NUMBER.fullmatch(queue_id):
        raise Unrestorable(f"its properties name no real queue: topic {topic!r}, queue {queue_id!r}")
    name = topic.decode("utf-8", "replace")
    if is_closed(name):
        raise Unrestorable(f"messages that wait do not go to {name}")
    return name, int(queue_id)


class Level:
    """One delay level and how far it has come."""

    __slots__ = (
        "again_s",
        "delay_ms",
        "due_ms",
        "next_offset",
        "number",
        "parked",
        "queue_id",
        "retry",
        "task",
    )

    def __init__(self, number: int, delay_ms: int, retry: Retry) -> None:
        self.number = number
        self.queue_id = number - 1
        self.delay_ms = delay_ms
        self.next_offset = 0  # the offset that is delivered next
        self.due_ms: int | None = None  # when the first message is due; 0: not known; None: no message
        self.again_s = 0.0  # no delivery before this time, by the monotonic clock
        self.retry = retry
        self.task: asyncio.Task[None] | None = None
        # From which offset on messages were parked when, by the monotonic clock. More than a thousand only
        # while delivery is late: then the oldest are due whatever the clock says.
        self.parked: deque[tuple[int, float]] = deque(maxlen=2 * PARKED_STEPS)

    def note_parked(self, offset: int, now_s: float) -> None:
        if not self.parked or now_s - self.parked[-1][1] >= self.delay_ms / 1000 / PARKED_STEPS:
            self.parked.append((offset, now_s))

    def forget_parked(self, offset: int) -> None:
        """Forget when messages before this offset were parked: they were delivered."""
        while len(self.parked) > 1 and self.parked[1][0] <= offset:
            self.parked.popleft()

    def wait_s(self, offset: int, due_ms: int, now_ms: int, now_s: float) -> float:
        """How long the message at this offset has to wait; it may go when that is not more than 0."""
        wait_s = (due_ms - now_ms) / 1000
        if wait_s <= 0:
            return wait_s
        self.forget_parked(offset)
        parked = self.parked
        if not parked or parked[0][0] > offset:  # parked before the start
            return 0.0 if due_ms > now_ms + self.delay_ms else wait_s
        delay_s = self.delay_ms / 1000
        return min(wait_s, parked[0][1] + delay_s + delay_s / PARKED_STEPS - now_s)
