"""Tables of a broker that begins to lead, made to fit its log.

Tables are copied now and then, and the log all the time. So a broker that was elected may have messages of a
topic that it has not heard of: without the topic nobody would find them. And where an election gave messages
up, no group may be further than the log is, or it would skip what comes there next.
"""

from __future__ import annotations

import logging

from kerolox.broker.tables.room import Tables
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.rebuild import topics_of

log = logging.getLogger(__name__)


def fit_log(store: MessageStore, tables: Tables) -> None:
    """Make the topics that have messages, and set groups back that are behind the end of a queue. All that
    is confirmed has to be in the queues."""
    by_topic = store.queues.by_topic
    unknown = {topic: queues for topic, queues in by_topic.items() if tables.topics.find(topic) is None}
    for config in topics_of(unknown):
        if tables.topics.put(config):
            log.warning(
                "topic_made_again topic=%r queues=%d reason='this broker has messages of it, and had not "
                "heard of it when it was elected' next='kerolox topic update, if it had more queues or other "
                "rights'",
                config.topic_name, config.write_queue_nums,
            )  # fmt: skip
    ends = {
        (topic, queue_id): queue.max_offset
        for topic, queues in by_topic.items()
        for queue_id, queue in queues.items()
    }
    changed = tables.offsets.set_back(ends)
    if changed:
        log.warning("groups_set_back offsets=%d reason='the log of this leader ends before them'", changed)
