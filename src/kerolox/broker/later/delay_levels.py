"""One delay level: selection of its messages, their restored form, and their delay.

A message is due by the wall clock, as in RocketMQ. If the wall clock is set back, messages parked since the
start are still delivered when their delay has passed: neither hours late nor, as in RocketMQ for a due time
further ahead than the level's delay, at once. RocketMQ's rule applies to messages parked before the start,
and after a change of the level table.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from functools import lru_cache
from typing import Final

from kerolox.broker.write.delivery import Retry
from kerolox.broker.write.due_delivery import DueMessage
from kerolox.errors import KeroloxError, Refused
from kerolox.protocol import properties as packed
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.reserved import is_closed

PARKED_STEPS = 1000  # steps of a level's delay: resolution of the remembered parking times

AT_REAL_TOPIC: Final = packed.marker(packed.REAL_TOPIC)
AT_REAL_QUEUE_ID: Final = packed.marker(packed.REAL_QUEUE_ID)
_NUMBER = re.compile(rb"[+-]?[0-9]{1,10}")
_INT_MAX = 2**31 - 1
_TAIL_BYTES_MAX = 512


class Unrestorable(KeroloxError):
    """A parked message does not name its real topic. It becomes a dead letter."""


def level_of(properties: bytes) -> int:
    """Return the delay level of a message, 0 if it has none. Raises for an invalid number."""
    text = packed.find(properties, packed.AT_DELAY)
    if text is None:
        return 0
    if not _NUMBER.fullmatch(text) or not -_INT_MAX - 1 <= int(text) <= _INT_MAX:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"the delay level (property DELAY) is {text[:40]!r}, not a number"
        )
    return int(text)


def restore(message: StoredMessage) -> DueMessage:
    """Return a parked message in its delivered form, or refused with the topic that it names. Its properties
    are kept, including the real queue and the level, as in RocketMQ."""
    properties = message.packed_properties
    if packed.AT_CRC32[1:] in properties:
        properties = packed.remove(properties, packed.AT_CRC32)  # the CRC of the parked record
    try:
        topic, queue_id = real_queue_of(properties)
    except Unrestorable as error:
        named = packed.find(properties, AT_REAL_TOPIC) or b""
        return DueMessage(message, named.decode("utf-8", "replace"), 0, properties, str(error))
    return DueMessage(message, topic, queue_id, properties)


def real_queue_of(properties: bytes) -> tuple[str, int]:
    """Return the topic and queue to which a parked message is delivered."""
    # This broker writes it last, so messages of one queue end alike. The last value of a property counts.
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
    """One delay level and its progress."""

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
        self.next_offset = 0  # next offset to deliver
        self.due_ms: int | None = None  # due time of the first message; 0: unknown; None: no message
        self.again_s = 0.0  # earliest next delivery, by the monotonic clock
        self.retry = retry
        self.task: asyncio.Task[None] | None = None
        # Offsets and the monotonic times from which messages were parked there. More than a thousand only
        # while delivery is late; then the oldest are due in any case.
        self.parked: deque[tuple[int, float]] = deque(maxlen=2 * PARKED_STEPS)

    def note_parked(self, offset: int, now_s: float) -> None:
        if not self.parked or now_s - self.parked[-1][1] >= self.delay_ms / 1000 / PARKED_STEPS:
            self.parked.append((offset, now_s))

    def forget_parked(self, offset: int) -> None:
        """Forget the parking times of delivered messages, before this offset."""
        while len(self.parked) > 1 and self.parked[1][0] <= offset:
            self.parked.popleft()

    def wait_s(self, offset: int, due_ms: int, now_ms: int, now_s: float) -> float:
        """Return the time until the message at this offset is due; 0 or less if it is due."""
        wait_s = (due_ms - now_ms) / 1000
        if wait_s <= 0:
            return wait_s
        self.forget_parked(offset)
        parked = self.parked
        if not parked or parked[0][0] > offset:  # parked before the start
            return 0.0 if due_ms > now_ms + self.delay_ms else wait_s
        delay_s = self.delay_ms / 1000
        return min(wait_s, parked[0][1] + delay_s + delay_s / PARKED_STEPS - now_s)
