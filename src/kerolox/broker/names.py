"""Names that mean something: system topics and groups, prefixes, and which names are allowed."""

from __future__ import annotations

import re

from kerolox.errors import InvalidRequest
from kerolox.protocol.limits import GROUP_LENGTH_MAX, RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Raises InvalidRequest for a name no topic may have."""
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
    """The group of ``%RETRY%group``, or of ``%RETRY%group+topic`` as POP of 5.x has it."""
    name = topic.removeprefix(RETRY_PREFIX)
    group, plus, rest = name.partition("+")
    return group if plus and rest and "+" not in rest else name


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group
