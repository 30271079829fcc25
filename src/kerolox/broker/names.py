"""Reserved names: system topics and groups, prefixes, and the rule for allowed names."""

from __future__ import annotations

import re

from kerolox.errors import InvalidRequest
from kerolox.protocol import properties as packed
from kerolox.protocol.limits import GROUP_LENGTH_MAX, RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC

# Topics of copies. Clients cannot read the last one: delayed messages wait there.
_OF_COPIES = (RETRY_PREFIX, DEAD_LETTER_PREFIX, SCHEDULE_TOPIC)
_AT_ORIGIN = (packed.marker(packed.RETRY_TOPIC), packed.marker(packed.ORIGIN_MESSAGE_ID))
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Raise InvalidRequest for an invalid topic name."""
    if not topic.strip():
        raise InvalidRequest("The specified topic is blank.")
    if not _ALLOWED.fullmatch(topic):
        raise InvalidRequest(
            f"The specified topic {topic!r} contains illegal characters, allowing only %|a-zA-Z0-9_-"
        )
    limit = (
        RETRY_TOPIC_LENGTH_MAX if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_LENGTH_MAX
    )
    if len(topic) > limit:
        raise InvalidRequest(f"The specified topic is {len(topic)} characters long, the limit is {limit}.")


def group_allowed(group: str) -> bool:
    return 0 < len(group) <= GROUP_LENGTH_MAX and _ALLOWED.fullmatch(group) is not None


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def group_of_retry_topic(topic: str) -> str:
    """Return the group of ``%RETRY%group``, or of ``%RETRY%group+topic`` as POP of 5.x has it."""
    name = topic.removeprefix(RETRY_PREFIX)
    group, plus, rest = name.partition("+")
    return group if plus and rest and "+" not in rest else name


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def believed_origin(topic: str, properties: bytes) -> bytes:
    """Return the properties of a message without an origin that only its producer claims.

    Brokers and group members store messages in retry and dead-letter topics, with the topic and the id of the
    original message. In any other topic the message itself is the original. If the claim were kept, consumers
    would take a copy of the message for one of another topic, and its dead letter would be sent again to that
    topic.
    """
    if topic.startswith(_OF_COPIES):
        return properties
    for mark in _AT_ORIGIN:
        properties = packed.remove(properties, mark)
    return properties
