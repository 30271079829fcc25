"""Repair of the tables of a broker that takes over from another one, so that they match its log.

Tables are copied at intervals, the log continuously. So a new leader may have messages of a topic or queue
that its tables lack; without the topic no consumer finds them. And if a promotion lost messages, no group's
offset may be beyond the log, or the group would skip the messages stored there next.
"""

from __future__ import annotations

import logging

import msgspec

from kerolox.broker.tables.room import Tables
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.rebuild import groups_of, topics_of

log = logging.getLogger(__name__)


class FitTables:
    """Creation of missing topics and groups from the queues. All confirmed records must be in the queues."""

    def __init__(self, store: MessageStore, tables: Tables) -> None:
        self._store = store
        self._tables = tables

    def lead(self) -> None:
        """Create missing topics and groups, and reset offsets beyond the end of a queue."""
        self.act()
        ends = {
            (topic, queue_id): queue.max_offset
            for topic, queues in self._store.queues.by_topic.items()
            for queue_id, queue in queues.items()
        }
        changed = self._tables.offsets.set_back(ends)
        if changed:
            log.warning(
                "groups_set_back offsets=%d reason='the log of this leader ends before them'", changed
            )

    def act(self) -> None:
        """Create topics for the queues with messages, and groups for retry topics. Offsets are kept:
        consumers may be ahead of an acting follower."""
        topics = self._tables.topics
        new: list[str] = []
        for proved in topics_of(self._store.queues.by_topic):
            known = topics.find(proved.topic_name)
            if known is None:
                new.append(proved.topic_name)
                self._make(proved)
            elif max(known.read_queue_nums, known.write_queue_nums) < proved.read_queue_nums:
                self._widen(known, proved.read_queue_nums)
        for group in groups_of(new, ()):
            if group.group_name not in self._tables.groups.groups and self._tables.groups.put(group):
                log.warning(
                    "group_made_again group=%r reason='this broker has its retries, but took over before it "
                    "copied its settings' next='restore its settings: kerolox group update'",
                    group.group_name,
                )

    def _make(self, config: TopicConfig) -> None:
        if self._tables.topics.put(config):
            log.warning(
                "topic_made_again topic=%r queues=%d reason='this broker has messages of it, but took over "
                "before it copied its settings' next='if it had more queues or other rights: kerolox topic "
                "update'",
                config.topic_name, config.write_queue_nums,
            )  # fmt: skip

    def _widen(self, known: TopicConfig, queues: int) -> None:
        """Make queues readable that have messages but are not in the table. They stay closed to new messages,
        because an operator may have removed them."""
        if self._tables.topics.put(msgspec.structs.replace(known, read_queue_nums=queues)):
            log.warning(
                "topic_widened topic=%r read_queues=%d before=%d reason='this broker has messages in these "
                "queues' next='to send messages to them, too: kerolox topic update'",
                known.topic_name, queues, known.read_queue_nums,
            )  # fmt: skip
