"""Topics of a broker, their permissions, and their automatic creation. Other modules save and register
them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kerolox.broker.bounds import too_many
from kerolox.broker.options import BrokerOptions
from kerolox.errors import Overloaded, Refused
from kerolox.observers import Observers
from kerolox.protocol import reserved
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.flags import PERM_INHERIT, PERM_READ_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUBSCRIBED
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.delay_table import parse_levels
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.tables.topics import TopicTable
from kerolox.unsaved import Save, Unsaved

log = logging.getLogger(__name__)

TEMPLATE_PERM = PERM_READ_WRITE | PERM_INHERIT


class Topics:
    """The topic table with its rules.

    ``on_change`` is called with every created or changed topic, ``on_saved`` when that is on disk,
    ``on_removed`` with the name of every removed topic. Every change is being saved while ``unsaved`` names
    the topic, and is undone if the save fails. Until then no message of the topic may be acknowledged.
    """

    def __init__(self, table: TopicTable, options: BrokerOptions, save: Save | None) -> None:
        self.table = table
        self.on_change: Observers[[TopicConfig]] = Observers("topic changed")
        self.on_saved: Observers[[TopicConfig]] = Observers("topic saved")
        self.on_removed: Observers[[str]] = Observers("topic removed")
        self.unsaved: Unsaved[str, TopicConfig] = Unsaved(self._put_back, save)
        self.leaving: set[str] = set()  # topics being deleted; not creatable until that is done
        self._options = options
        self._light = options.light_queues
        self.system = reserved.SYSTEM_TOPICS | {options.cluster, options.broker_name}

    def find(self, topic: str) -> TopicConfig | None:
        config = self.table.topics.get(topic)
        if config is None and self._light and topic.startswith(LIGHT_PREFIX):
            return _config(topic, 1, PERM_READ_WRITE)  # every such name is a light queue
        return config

    def known(self, topic: str, remark: str) -> TopicConfig:
        """Return the topic. Raise Refused with this remark if it does not exist."""
        config = self.find(topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        return config

    def has_queue(self, queue: MessageQueue) -> bool:
        config = self.find(queue.topic)
        return config is not None and 0 <= queue.queue_id < max(
            config.read_queue_nums, config.write_queue_nums
        )

    def is_system(self, topic: str) -> bool:
        return topic in self.system or topic.startswith(reserved.SYSTEM_PREFIX)

    def create_system_topics(self) -> None:
        """Create the topics that every broker has. Existing ones keep their settings."""
        options = self._options
        inherit_all = TEMPLATE_PERM
        wanted: list[tuple[str, int, int]] = [
            (reserved.SELF_TEST_TOPIC, 1, PERM_READ_WRITE),
            (reserved.BENCHMARK_TOPIC, 1024, PERM_READ_WRITE),
            (options.cluster, 16, inherit_all if options.cluster_topic else PERM_INHERIT),
            (options.broker_name, 1, inherit_all if options.broker_topic else PERM_INHERIT),
            (reserved.OFFSET_MOVED_TOPIC, 1, PERM_READ_WRITE),
            (SCHEDULE_TOPIC, len(parse_levels(options.delay_levels)), PERM_READ_WRITE),
            (f"{options.cluster}_REPLY_TOPIC", 1, PERM_READ_WRITE),
            (reserved.REVIVE_PREFIX + options.cluster, options.revive_queues, PERM_READ_WRITE),
            (reserved.MEMBER_TOPIC_PREFIX + options.broker_name, 1, PERM_INHERIT),
            (reserved.HALF_TOPIC, 1, PERM_READ_WRITE),
            (reserved.HALF_DONE_TOPIC, 1, PERM_READ_WRITE),
        ]
        if options.auto_create_topics:
            wanted.append((reserved.TEMPLATE_TOPIC, options.default_topic_queues, TEMPLATE_PERM))
        if options.trace_topic:
            wanted.append((options.trace_topic_name, 1, PERM_READ_WRITE))
        if options.timer_wheel:
            wanted.append((reserved.TIMER_TOPIC, 1, PERM_READ_WRITE))
        for topic, queues, perm in wanted:
            self.system |= {topic}
            if self.find(topic) is None:
                self.table.put(_config(topic, queues, perm))

    def renew_template(self) -> None:
        """Create the template topic, or change its queues, after a change of the options."""
        options = self._options
        if options.auto_create_topics:
            self.system |= {reserved.TEMPLATE_TOPIC}
            self.put(_config(reserved.TEMPLATE_TOPIC, options.default_topic_queues, TEMPLATE_PERM))

    def for_send(
        self, topic: str, template: str, template_queues: int, *, unit: bool = False
    ) -> TopicConfig | None:
        """Return the topic of a send; create it from its template if needed and allowed. None if it does not
        exist."""
        config = self.find(topic)
        if config is not None:
            return config
        config = self._after_template(topic, template, template_queues, unit)
        if config is None and topic.startswith(reserved.RETRY_PREFIX):
            config = _config(topic, 1, PERM_READ_WRITE, TOPIC_UNIT_SUBSCRIBED if unit else 0)
        if config is not None:
            self.check_room(topic)
            self.put(config)
        return config

    def check_room(self, *topics: str) -> None:
        """Raise if new topics would exceed ``maxTopics``. Topics of groups are not checked; ``maxGroups``
        limits them."""
        new = sum(self.find(topic) is None for topic in topics)
        if new and len(self.table.topics) + new > self._options.topics_max:
            raise too_many(f"topics, {len(self.table.topics)}", "maxTopics", self._options.topics_max)

    def for_group(
        self, topic: str, queues: int, perm: int = PERM_READ_WRITE, *, unit: bool = False
    ) -> TopicConfig:
        """Return a retry or dead-letter topic; create it if needed."""
        config = self.find(topic)
        if config is None:
            config = _config(topic, queues, perm, TOPIC_UNIT_SUBSCRIBED if unit else 0)
            self.put(config)
        return config

    def put(self, config: TopicConfig) -> bool:
        """Create or change a topic. Return False if nothing changed. Light queues cannot be changed."""
        name = config.topic_name
        if self._light and name.startswith(LIGHT_PREFIX):
            return False
        if name in self.leaving:
            raise Overloaded(f"topic[{name}] is being deleted. Try again in a moment")
        before = self.table.topics.get(name)
        if not self.table.put(config):
            return False
        self._changed(config)
        self.unsaved.changed(name, before)
        self.unsaved.when_saved(name, lambda error: self._saved(config) if error is None else None)
        return True

    def remove(self, topic: str) -> bool:
        before = self.table.remove(topic)
        if before is None:
            return False
        self._removed(topic)
        self.unsaved.changed(topic, before)
        return True

    def follow(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> list[str]:
        """Replace the topics by the leader's. Return removed names. System topics of this broker are kept."""
        before = self.table.topics
        own = {name: config for name, config in before.items() if self.is_system(name)}
        self.table.replace({**own, **topics}, version)
        for name, config in topics.items():
            if before.get(name) != config:
                self._changed(config)
        gone = [name for name in before if name not in self.table.topics]
        for name in gone:
            self._removed(name)
        return gone

    def _put_back(self, topic: str, before: TopicConfig | None) -> None:
        log.warning("topic_change_undone topic=%r", topic)
        if before is None:
            self.table.remove(topic)
            self._removed(topic)
        else:
            self.table.put(before)
            self._changed(before)

    def _changed(self, config: TopicConfig) -> None:
        self.on_change(config)

    def _saved(self, config: TopicConfig) -> None:
        self.on_saved(config)

    def _removed(self, topic: str) -> None:
        self.on_removed(topic)

    def _after_template(self, topic: str, template: str, queues: int, unit: bool) -> TopicConfig | None:
        model = self.find(template)
        if model is None or (not self._options.auto_create_topics and template == reserved.TEMPLATE_TOPIC):
            return None
        if not model.perm & PERM_INHERIT:
            return None
        count = max(0, min(queues, model.write_queue_nums))
        flag = TOPIC_UNIT if unit else 0
        return TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=model.perm & ~PERM_INHERIT,
            topic_filter_type=model.topic_filter_type,
            topic_sys_flag=flag,
        )


def _config(topic: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag
    )
