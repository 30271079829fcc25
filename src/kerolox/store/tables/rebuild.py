"""Rebuilding of a lost table from the rest of the store.

The queues show the topics with messages, and how many queues each has at least. Offsets and retry topics show
the groups. Settings, topics without messages and progress exist only in their tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.flags import PERM_READ_WRITE
from kerolox.protocol.reserved import (
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
)
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.tables.topics import QUEUES_MAX

# Consequences of a lost table that cannot be rebuilt.
LOST_OFFSETS = (
    "The progress of the consumer groups is unknown. Without it they would begin where their consumers are "
    "configured to begin, mostly after the newest message, and earlier messages would never be consumed."
)
LOST_DELAYS = (
    "The progress of the delay levels is unknown. Without it all delayed messages that are still in the log "
    "would be delivered again."
)


def is_made_by_brokers(topic: str) -> bool:
    """Return True if a broker creates the topic automatically at its start, or needs no entry for it."""
    return (
        topic in SYSTEM_TOPICS
        or topic.startswith((SYSTEM_PREFIX, LIGHT_PREFIX))
        or topic.endswith(REPLY_SUFFIX)
    )


def topics_of(queues: Mapping[str, Collection[int]]) -> list[TopicConfig]:
    """Return the topics that have queues, with that number of queues and default permissions."""
    return [
        TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=PERM_READ_WRITE,
        )
        for topic, ids in sorted(queues.items())
        if not is_made_by_brokers(topic) and 0 < (count := max(ids, default=-1) + 1) <= QUEUES_MAX
    ]


def groups_of(topics: Iterable[str], offset_keys: Iterable[str]) -> list[GroupConfig]:
    """Return the groups that have a retry topic or an offset, with default settings."""
    names = {topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)}
    names |= {key.partition("@")[2] for key in offset_keys}
    return [
        GroupConfig(group_name=name)
        for name in sorted(names)
        if name and name not in SYSTEM_GROUPS and not name.startswith((SYSTEM_GROUP_PREFIX, LIGHT_PREFIX))
    ]
