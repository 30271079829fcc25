"""Names of topics and groups: validity, and the namespace prefix used on the wire."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kerolox.client.errors import InvalidMessage
from kerolox.errors import OptionError
from kerolox.protocol.limits import GROUP_LENGTH_MAX, RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from kerolox.protocol.reserved import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    is_closed,
)

_RESERVED_GROUPS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
_allowed = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch


def check_topic_for_sending(topic: str) -> None:
    """Raise InvalidMessage for a topic that does not accept messages."""
    limit = (
        RETRY_TOPIC_LENGTH_MAX if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_LENGTH_MAX
    )
    if not topic or topic.isspace():
        raise InvalidMessage("the message has no topic")
    if not _allowed(topic):
        raise InvalidMessage(f"topic {topic!r}: only letters, digits and % | _ - are allowed in a name")
    if len(topic) > limit:
        raise InvalidMessage(f"topic {topic!r} has {len(topic)} characters; at most {limit}")
    if is_closed(topic):
        raise InvalidMessage(f"topic {topic!r} is internal to brokers and does not accept messages")


def topic_list(topics: Iterable[str]) -> list[str]:
    """Return a list of topics. Raises OptionError for a single text, which would be a list of letters."""
    if isinstance(topics, str):
        raise OptionError("topics", topics, f"a list of names: [{topics!r}]")
    return [checked_topic(topic) for topic in topics]


def checked_topic(topic: str) -> str:
    """Return a topic. Raises OptionError unless it is a non-empty text."""
    if not isinstance(topic, str) or not topic:
        raise OptionError("topic", topic, f"a name, as text (this is {type(topic).__name__})")
    return topic


def check_group(group: str) -> None:
    """Raise OptionError for an invalid group name."""
    if not isinstance(group, str) or not group or not _allowed(group):
        raise OptionError("group", group, "a name of letters, digits and % | _ -")
    if len(group) > GROUP_LENGTH_MAX:
        raise OptionError("group", group, f"at most {GROUP_LENGTH_MAX} characters")
    if group in _RESERVED_GROUPS:
        raise OptionError("group", group, "a name of your own; this one is reserved")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def is_system(name: str) -> bool:
    """Return True for names reserved by servers, which have no namespace prefix."""
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_PREFIX, SYSTEM_GROUP_PREFIX))


def with_namespace(namespace: str, name: str) -> str:
    """``orders`` → ``ns%orders``, ``%RETRY%billing`` → ``%RETRY%ns%billing``; once only."""
    if not namespace or not name or is_system(name):
        return name
    prefix, bare = _split(name)
    if bare.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{bare}"


def without_namespace(namespace: str, name: str) -> str:
    """Remove the namespace prefix of a name."""
    if not namespace or not name:
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(f"{namespace}%")


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
