"""Tables of a broker that takes over from another one, made to fit its log.

Tables are copied now and then, and the log all the time. So a broker that begins to lead may have messages of
a topic, or of a queue, that its tables do not have: without the topic no consumer finds them. And if a
promotion gave messages up, no group may be further than the log is, or it would skip what comes there next.
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
    """Makes topics and groups of what the queues hold. Everything confirmed has to be in the queues."""

    def __init__(self, store: MessageStore, tables: Tables) -> None:
        self._store = store
        self._tables = tables

    def lead(self) -> None:
        """Make what is missing, and set groups back that are behind the end of a queue."""
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
        """Make the topics that have messages, with as many queues as hold some, and the groups that have
        retries. Progress stays: consumers may be ahead of a follower that acts."""
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
                    "group_made_again group=%r reason='this broker has its retries, and took over before it "
                    "had a copy of its settings' next='kerolox group update, if it had others'",
                    group.group_name,
                )

    def _make(self, config: TopicConfig) -> None:
        if self._tables.topics.put(config):
            log.warning(
                "topic_made_again topic=%r queues=%d reason='this broker has messages of it, and took over "
                "before it had a copy of its settings' next='kerolox topic update, if it had more queues or "
                "other rights'",
                config.topic_name, config.write_queue_nums,
            )  # fmt: skip

    def _widen(self, known: TopicConfig, queues: int) -> None:
        """Messages lie in queues the table does not have: they can be read. New messages stay out of them,
        in case an operator took the queues away."""
        if self._tables.topics.put(msgspec.structs.replace(known, read_queue_nums=queues)):
            log.warning(
                "topic_widened topic=%r read_queues=%d before=%d reason='this broker has messages in these "
                "queues' next='kerolox topic update, if messages are to be sent to them, too'",
                known.topic_name, queues, known.read_queue_nums,
            )  # fmt: skip
