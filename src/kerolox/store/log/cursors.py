"""Queues as the commit log sees them: names it rejects, and next offsets."""

from __future__ import annotations

from kerolox.errors import KeroloxError
from kerolox.protocol import properties as names
from kerolox.protocol.flags import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from kerolox.protocol.limits import RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from kerolox.protocol.record import topic_field
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.reserved import LIGHT_PREFIX as LIGHT_PREFIX
from kerolox.protocol.reserved import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX

# Transaction flags of half and rolled back messages as old brokers stored them
IN_NO_QUEUE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_LIGHT_PREFIX = LIGHT_PREFIX.encode()


class AppendRefused(KeroloxError):
    """Message that exceeds a limit of the store. Sending it again cannot help."""

    code = 13  # MESSAGE_ILLEGAL
    status = "MESSAGE_ILLEGAL"


class PropertiesTooLong(AppendRefused):
    status = "PROPERTIES_SIZE_EXCEEDED"


class QueueCursor:
    """Queue of a topic as the log sees it, with the next offset to assign."""

    __slots__ = ("field", "light", "next_offset", "queue_id", "topic", "topic_name")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic
        self.topic_name = topic.encode()
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.field = topic_field(self.topic_name)
        self.light = names_light_queues(topic)

    def __repr__(self) -> str:
        return f"<{self.topic}:{self.queue_id} next {self.next_offset}>"


def check_queue(topic: str, queue_id: int) -> None:
    """Reject an invalid queue."""
    length = len(topic.encode())
    limit = RETRY_TOPIC_LENGTH_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_MAX
    if not 0 < length <= limit:
        raise AppendRefused(f"the topic name has {length} bytes, the limit is {limit}: {topic[:40]!r}")
    if not fit_for_directory(topic, queue_id):
        # The queue could not be created, and the message never be found.
        raise AppendRefused(f"queue {queue_id} of topic {topic!r} cannot be the name of a directory")


def next_offsets(entry: Entry) -> dict[tuple[str, int], int]:
    """Return the next offset of each queue that a record enters."""
    size, _, queue_id, queue_offset, _, sys_flag, _, topic, properties = entry
    if sys_flag & TRANSACTION_MASK in IN_NO_QUEUE:
        return {}
    name = topic.decode("utf-8", "replace")
    found = {(name, queue_id): queue_offset + offsets_taken(sys_flag, properties, size)}
    if names.AT_INNER_MULTI_DISPATCH[1:] in properties:
        for light, offset in light_offsets(topic, properties):
            found[light.decode("utf-8", "replace"), 0] = offset + 1
    return found


def offsets_taken(sys_flag: int, properties: bytes, size: int) -> int:
    """Return the number of queue offsets that a record takes: more than one for a batch kept as one."""
    text = names.find(properties, names.AT_INNER_NUM) if sys_flag & INNER_BATCH else None
    count = int(text) if text is not None and text.isdigit() else 1
    return count if 1 < count <= size else 1


def light_offsets(topic: bytes, properties: bytes) -> list[tuple[bytes, int]]:
    """Return the light queues that a record names, with its offset in each."""
    if not names_light_queues(topic.decode("utf-8", "replace")):
        return []
    light = (names.find(properties, names.AT_INNER_MULTI_DISPATCH) or b"").split(b",")
    offsets = (names.find(properties, names.AT_INNER_MULTI_QUEUE_OFFSET) or b"").split(b",")
    if len(light) != len(offsets):
        return []
    return [
        (name, int(offset))
        for name, offset in zip(light, offsets, strict=True)
        if name.startswith(_LIGHT_PREFIX)
        and offset.isdigit()
        and fit_for_directory(name.decode("utf-8", "replace"), 0)
    ]


def names_light_queues(topic: str) -> bool:
    """Return True if messages of this topic enter the light queues they name: delayed and retried ones do not
    yet."""
    return not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) and topic != SCHEDULE_TOPIC


def fit_for_directory(topic: str, queue_id: int) -> bool:
    """Return True if the queue's directories can have these names."""
    return queue_id >= 0 and topic not in ("", ".", "..") and not any(bad in topic for bad in "/\\\0")
