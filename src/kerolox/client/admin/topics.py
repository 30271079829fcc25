"""Administration of topics: the layer of ``kerolox topic`` and :class:`kerolox.Admin`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kerolox.client.admin.calls import NoSuchTopic, at_all
from kerolox.client.admin.part import AdminPart
from kerolox.client.admin.results import QueueStats, Topic, TopicAtBroker, TopicGroup
from kerolox.client.errors import AlreadyThere, NotFound
from kerolox.client.messages import Queue
from kerolox.client.names import checked_topic
from kerolox.errors import OptionError
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.flags import PERM_READ_WRITE


class TopicAdmin(AdminPart):
    """Creates, changes, deletes and lists topics."""

    async def list_topics(self, *, cluster: str | None = None, system: bool = False) -> list[str]:
        """Return the topics that name servers know; ``system``: also those of brokers and of groups."""
        known = await self._calls.topics(cluster)
        return known if system else await self._calls.made_by_people(known)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Topic:
        """Create a topic at all brokers, or at those of a cluster or of one name. ``queues`` are per broker.
        ``perm``: 4 readable, 2 writable, 6 both. Raises AlreadyThere if the topic exists at one of them."""
        config = TopicConfig(topic_name=checked_topic(topic))
        config = _changed(config, queues, read_queues, perm, ordered)
        masters, there = await self._topic_settings(topic, cluster, broker)
        if there:
            raise AlreadyThere(
                f"topic {topic} exists at {', '.join(there)}. Change it with: kerolox topic update {topic}"
            )
        for address in masters.values():
            await self._calls.put_topic(address, config, _attribute_text(attributes))
        return _topic(topic, dict.fromkeys(masters, config), attributes)

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        perm: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Topic:
        """Change settings of a topic at the brokers that have it. None leaves a setting as it is; an
        attribute with the value None is removed."""
        masters, there = await self._topic_settings(checked_topic(topic), cluster, broker)
        if not there:
            near = await self._calls.near_topic(topic)
            raise NotFound(
                f"topic {topic} does not exist at {', '.join(masters)}. Create it: kerolox topic create "
                f"{topic}.{near}"
            )
        done = {name: _changed(config, queues, read_queues, perm, ordered) for name, config in there.items()}
        for name, config in done.items():
            await self._calls.put_topic(masters[name], config, _attribute_text(attributes))
        return _topic(topic, done, attributes)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic with its messages and the progress of its groups; return the brokers that had it."""
        missing: NoSuchTopic | None = None
        try:
            await self._calls.route(topic)
        except NoSuchTopic as error:
            missing = error
        # Also without a route: a broker may have it that no name server knows yet.
        deleted = await self._calls.delete_topic(topic, cluster=cluster)
        if not deleted and missing is not None:
            raise missing
        return deleted

    async def describe_topic(self, topic: str) -> Topic:
        """Return the settings of a topic at each broker that serves it."""
        brokers = await self._calls.brokers_of(topic)
        found = await at_all(brokers, lambda address: self._calls.topic_config(address, topic))
        return _topic(topic, {name: config for name, config in found.items() if config is not None})

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Return the first and the end offset of every queue, and when it got its newest message."""
        return [
            QueueStats(
                queue=Queue.of(queue),
                first=bounds.min_offset,
                end=bounds.max_offset,
                stored_ms=bounds.last_update_timestamp or None,
            )
            for queue, bounds in (await self._calls.topic_stats(topic)).items()
        ]

    async def topic_groups(self, topic: str) -> list[TopicGroup]:
        """Return the groups that consume a topic, with their members and their lag."""
        found: list[TopicGroup] = []
        for group in await self._calls.consumers_of(topic):
            progress, members = await self._calls.progress(group, topic), await self._calls.members(group)
            clients = {one.client_id for table in members.values() for one in table.connection_set}
            lag = sum(each.broker_offset - each.consumer_offset for each in progress.values())
            found.append(TopicGroup(group=group, members=len(clients), lag=lag if progress else None))
        return found

    async def _topic_settings(
        self, topic: str, cluster: str | None, broker: str | None
    ) -> tuple[dict[str, str], dict[str, TopicConfig]]:
        """Return the masters, by broker name, and the settings of those that have the topic."""
        masters = await self._calls.masters(cluster=cluster, broker=broker)
        found = await at_all(masters, lambda address: self._calls.topic_config(address, topic))
        return masters, {name: config for name, config in sorted(found.items()) if config is not None}


def _changed(
    config: TopicConfig, queues: int | None, read_queues: int | None, perm: int | None, ordered: bool | None
) -> TopicConfig:
    given: dict[str, Any] = {
        "write_queue_nums": queues,
        "read_queue_nums": queues if read_queues is None else read_queues,
        "perm": perm,
        "order": ordered,
    }
    for name, value, least in (("queues", queues, 1), ("read_queues", read_queues, 0)):
        if value is not None and value < least:
            raise OptionError(name, value, f"{least} or more")
    # Attributes are sent as changes, beside the settings.
    return msgspec.structs.replace(
        config, **{name: value for name, value in given.items() if value is not None}
    )


def _attribute_text(changes: Mapping[str, str | None] | Mapping[str, str] | None) -> str:
    """Return changes of attributes as they travel: ``+name=value,-name``."""
    return ",".join(
        f"-{name}" if value is None else f"+{name}={value}" for name, value in (changes or {}).items()
    )


def _topic(
    topic: str,
    configs: Mapping[str, TopicConfig],
    changes: Mapping[str, str | None] | Mapping[str, str] | None = None,
) -> Topic:
    def attributes(config: TopicConfig) -> dict[str, str]:
        changed = {**config.attributes, **(changes or {})}
        return {name.removeprefix("+"): value for name, value in changed.items() if value is not None}

    return Topic(
        name=topic,
        brokers=tuple(
            TopicAtBroker(
                broker=name,
                write_queues=config.write_queue_nums,
                read_queues=config.read_queue_nums,
                perm=config.perm,
                ordered=config.order,
                attributes=attributes(config),
            )
            for name, config in sorted(configs.items())
        ),
    )
