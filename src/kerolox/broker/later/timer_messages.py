"""Timer messages in parked form, and their form at delivery."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kerolox.broker.write.due_delivery import DueMessage
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.limits import INT32_MAX, PROPERTIES_BYTES_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import CRC_PROPERTY_BYTES, decode_record

NEVER_ENTERED_MS = 2**63 - 1  # marks messages that were due before they could be entered

AT_OUT = packed.marker(packed.TIMER_OUT_MS)
AT_DELETE = packed.marker(packed.TIMER_DELETE_UNIQUE_KEY)
AT_REAL_TOPIC = packed.marker(packed.REAL_TOPIC)
_AT_REAL_QUEUE = packed.marker(packed.REAL_QUEUE_ID)
_AT_ENTERED = packed.marker(packed.TIMER_ENQUEUE_MS)
_AT_LEFT = packed.marker(packed.TIMER_DEQUEUE_MS)
_AT_ROLLS = packed.marker(packed.TIMER_ROLL_TIMES)
_TAIL_BYTES_MAX = 512


class Nowhere(KeroloxError):
    """A timer message without a destination in its properties, or with a closed one."""


class Goal(NamedTuple):
    """Due time and destination of a message; None for unreadable values."""

    out_ms: int | None
    topic: str | None
    queue_id: int | None


def goal(properties: bytes) -> Goal:
    # This broker writes all of it last, so messages of one moment and queue end alike. Of repeated properties
    # the last value counts, so the end determines the result.
    at = properties.rfind(AT_OUT)
    if at > 0 and len(properties) - at <= _TAIL_BYTES_MAX:
        found = _known_goal(properties[at:])
        if None not in found:
            return found
    return _read_goal(properties)


def _read_goal(properties: bytes) -> Goal:
    topic = packed.find(properties, AT_REAL_TOPIC)
    return Goal(
        _number(packed.find(properties, AT_OUT)),
        None if topic is None else topic.decode("utf-8", "replace"),
        _number(packed.find(properties, _AT_REAL_QUEUE)),
    )


_known_goal = lru_cache(1024)(_read_goal)


def real_topic(properties: bytes) -> str:
    return goal(properties).topic or ""


def delete_key(properties: bytes) -> bytes | None:
    """Return the recall key ``topic+unique key`` of the message that this one recalls."""
    return packed.find(properties, AT_DELETE)


def own_key(properties: bytes) -> bytes | None:
    """Return the key by which a recall names this message."""
    unique = packed.find(properties, packed.AT_UNIQUE_KEY)
    return None if unique is None else (packed.find(properties, AT_REAL_TOPIC) or b"") + b"+" + unique


def parked(record: bytes, physical: int) -> StoredMessage | None:
    """Return the timer message of a record; None if the record is another message."""
    try:
        message = decode_record(record)
    except ProtocolError:
        return None
    return message if is_parked(message, physical) else None


def is_parked(message: StoredMessage, physical: int) -> bool:
    """True if this is the timer message that was stored at that place."""
    return message.topic == reserved.TIMER_TOPIC and message.physical_offset == physical


def due(message: StoredMessage, entered_ms: int, now_ms: int) -> DueMessage:
    """Return the message in its delivered form; refused if it has no destination."""
    try:
        topic, queue_id = _destination(message)
    except Nowhere as error:
        return _refused(message, error)
    return DueMessage(message, topic, queue_id, _marked(message.packed_properties, entered_ms, now_ms))


def _refused(message: StoredMessage, error: Nowhere) -> DueMessage:
    properties = message.packed_properties
    return DueMessage(message, real_topic(properties), 0, properties, str(error))


def _destination(message: StoredMessage) -> tuple[str, int]:
    _, topic, queue_id = goal(message.packed_properties)
    if topic is None or queue_id is None or queue_id > INT32_MAX or not _may_go(message, topic):
        raise Nowhere(f"its properties name no queue to deliver it to: topic {topic!r}, queue {queue_id!r}")
    return topic, queue_id


def _may_go(message: StoredMessage, topic: str) -> bool:
    """Return whether a message may be delivered to a topic. Records of popped messages, which brokers store
    themselves, go to revive topics; those of clients do not."""
    if topic.startswith(reserved.REVIVE_PREFIX):
        return message.born_host == message.store_host
    return topic not in reserved.NOT_FOR_SENDING


def rolled(message: StoredMessage, entered_ms: int, now_ms: int) -> DueMessage:
    """Return the message in parked form again, on its way to a time far ahead."""
    properties = _marked(message.packed_properties, entered_ms, now_ms)
    times = (_number(packed.find(properties, _AT_ROLLS)) or 0) + 1
    counted = packed.replace(properties, packed.TIMER_ROLL_TIMES, str(times))
    return DueMessage(message, reserved.TIMER_TOPIC, 0, _if_room(counted, properties))


def moved(message: StoredMessage, precision_ms: int) -> DueMessage:
    """Return the message in the form sent to another broker, where it waits for a time far ahead; refused if
    it has no destination."""
    properties = message.packed_properties
    try:
        topic, queue_id = _destination(message)
        if (out_ms := goal(properties).out_ms) is None:
            raise Nowhere("its properties name no time to deliver it at")
    except Nowhere as error:
        return _refused(message, error)
    for mark in (AT_OUT, _AT_ENTERED, _AT_LEFT, _AT_ROLLS):
        properties = packed.remove(properties, mark)
    deliver_ms = out_ms + precision_ms  # it was rounded down by as much
    return DueMessage(message, topic, queue_id, properties, deliver_ms=deliver_ms)


def _marked(properties: bytes, entered_ms: int, now_ms: int) -> bytes:
    plain = properties
    # A rolled message already has them.
    if _AT_ENTERED[1:] in properties or _AT_LEFT[1:] in properties or packed.AT_CRC32[1:] in properties:
        for mark in (_AT_ENTERED, _AT_LEFT, packed.AT_CRC32):
            properties = packed.remove(properties, mark)
    marked = packed.append(
        properties, b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (entered_ms, now_ms)
    )
    return _if_room(marked, plain)


def _if_room(longer: bytes, shorter: bytes) -> bytes:
    """Return the longer properties if they fit into a record: figures are less important than the message."""
    return longer if len(longer) + CRC_PROPERTY_BYTES <= PROPERTIES_BYTES_MAX else shorter


def _number(text: bytes | None) -> int | None:
    if text is None or not text.isdigit() or len(text) > 19:
        return None
    return int(text)
