"""Requests of tools that create, change, show and delete topics."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from kerolox.access.needs.administration import CREATE_TOPIC, CREATE_TOPICS
from kerolox.access.needs.kinds import CHANGES, LOOKS, on
from kerolox.access.needs.names import DELETE, GET
from kerolox.broker import names
from kerolox.broker.absent import refuse_topic_attribute
from kerolox.broker.base import Base
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.tables.room import Tables
from kerolox.errors import InvalidRequest, KeroloxError, Overloaded, Refused, sentences
from kerolox.front.requests import Answer, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol import reserved
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import GroupList
from kerolox.protocol.bodies.routes import TopicList
from kerolox.protocol.bodies.stats import QueueBounds, TopicStats
from kerolox.protocol.bodies.topics import (
    AllTopics,
    DataVersion,
    TopicConfig,
    TopicConfigList,
    TopicConfigWithMapping,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import topic as headers
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.tables.topics import QUEUES_MAX
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
PAGE_MAX = 2000  # limit of GET_ALL_TOPIC_CONFIG, and of the same request for groups

_MESSAGE_TYPE = "message.type"
_MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")
_CHOICES = {
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    _MESSAGE_TYPE: _MESSAGE_TYPES,
}
_NUMBERS = ("reserve.time", "lite.topic.expiration")
_CHANGEABLE = (_MESSAGE_TYPE, *_NUMBERS)


class TopicAdmin:
    """Requests that create, change, delete, clean up and show topics, and show their groups and figures.

    A change is answered when the name servers have it.
    """

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        stats: Statistics,
        registrations: Registrations,
    ) -> None:
        self._store = base.store
        self._topics = tables.topics
        self._groups = membership.groups
        self._offsets = tables.offsets
        self._members = membership.members
        self._stats = stats
        self._options = base.options
        self._registrations = registrations
        self._offsets_saved = tables.offset_saver.saved
        self._leadership = base.leadership

    # --- creating and changing ------------------------------------------------------------------------

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC, headers.CreateTopicRequest, CREATE_TOPIC)
    async def create(self, request: Request[headers.CreateTopicRequest]) -> Answer:
        """Create a topic, or change its settings."""
        asked = request.header
        config = TopicConfig(
            topic_name=asked.topic,
            read_queue_nums=asked.read_queue_nums,
            write_queue_nums=asked.write_queue_nums,
            perm=asked.perm,
            topic_filter_type=asked.topic_filter_type,
            topic_sys_flag=asked.topic_sys_flag or 0,
            order=asked.order,
            attributes=parse_attributes(asked.attributes),
        )
        return await self._put([config], request.caller.address)

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, CREATE_TOPICS)
    def create_many(self, request: Request[None]) -> Later:
        """Create or change many topics."""
        configs = TopicConfigList.decode(request.body).topic_config_list
        return lambda: self._put(configs, request.caller.address)

    async def _put(self, configs: Sequence[TopicConfig], by: str) -> Answer:
        """Store all of these topics or none: all are checked before the first is stored."""
        checked = [self._checked(config) for config in configs]
        self._topics.check_room(*{config.topic_name for config in checked})
        for config in checked:
            if self._topics.put(config):
                log.info(
                    "topic_changed topic=%r read_queues=%d write_queues=%d perm=%d by=%s",
                    config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm, by,
                )  # fmt: skip
        await self._topics.unsaved.saved(*[config.topic_name for config in checked])
        await self._registrations.settled()
        return Answer()

    def _checked(self, config: TopicConfig) -> TopicConfig:
        topic = config.topic_name
        names.check_topic(topic)
        self._check_not_system(topic)
        for queues in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= queues <= QUEUES_MAX:
                raise InvalidRequest(f"topic [{topic}]: {queues} queues, expected 0 to {QUEUES_MAX}")
        if config.topic_filter_type not in FILTER_TYPES:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType = [{config.topic_filter_type}] value invalid, expected one of "
                f"{', '.join(FILTER_TYPES)}",
            )
        before = self._topics.find(topic)
        attributes = altered_attributes(None if before is None else before.attributes, config.attributes)
        return msgspec.structs.replace(config, attributes=attributes)

    def _check_not_system(self, topic: str) -> None:
        if self._topics.is_system(topic):
            raise InvalidRequest(f"The topic[{topic}] is conflict with system topic.")

    # --- deleting -------------------------------------------------------------------------------------

    @serves(
        RequestCode.DELETE_TOPIC_IN_BROKER,
        headers.DeleteTopicRequest,
        on(DELETE, topic="topic", administers=True),
    )
    async def delete(self, request: Request[headers.DeleteTopicRequest]) -> Answer:
        """Delete a topic and its queues."""
        topic = request.header.topic
        if not topic.strip():
            raise InvalidRequest("The specified topic is blank.")
        self._check_not_system(topic)
        # Also delete the topics in which its messages wait to be popped again, but not those of a group whose
        # name only looks like one of them.
        retries = [
            reserved.RETRY_PREFIX + retry
            for group in self._offsets.groups_of(topic)
            for retry in (f"{group}+{topic}", f"{group}_{topic}")
            if self._groups.find(retry) is None
        ]
        gone = [topic, *(retry for retry in retries if self._topics.find(retry) is not None)]
        for name in gone:
            await self._delete(name)
            log.info("topic_deleted topic=%r by=%s", name, request.caller.address)
        # Otherwise offsets that return would be beyond the end of a topic that is created again.
        await offsets_gone(self._offsets_saved, f"topic[{topic}]")
        await self._registrations.settled()
        return Answer()

    async def _delete(self, topic: str) -> None:
        """Delete a topic. It is first removed from the table, on disk, so that an interrupted deletion can be
        repeated."""
        leaving = self._topics.leaving
        if topic in leaving:
            raise Overloaded(f"topic[{topic}] is being deleted. Try again in a moment")
        leaving.add(topic)
        try:
            self._topics.remove(topic)
            await self._topics.unsaved.saved(topic)
            self._offsets.remove_topic(topic)
            await self._store.delete_topic(topic)
        finally:
            leaving.discard(topic)

    @serves(RequestCode.CLEAN_UNUSED_TOPIC, None, CHANGES)
    async def clean_unused(self, request: Request[None]) -> Answer:
        """Remove the queues of topics that no longer exist. The table of a follower is a copy that may lack a
        topic: there, only queues are removed whose messages belong to a topic known to be deleted."""
        store = self._store
        for topic in list(store.queues.by_topic):
            if self._topics.find(topic) is None and not topic.startswith(LIGHT_PREFIX):
                was_deleted = store.queues.last_place(topic) <= store.notes.deleted.before.get(topic, -1)
                if not (self._leadership.leads or was_deleted):
                    log.warning(
                        "unused_queues_kept topic=%r by=%s next='delete the topic at the leader; the topic "
                        "table of this follower is a copy that may lack it'",
                        topic, request.caller.address,
                    )  # fmt: skip
                    continue
                log.info("unused_queues_removed topic=%r by=%s", topic, request.caller.address)
                await self._store.delete_topic(topic)
        return Answer()

    # --- showing --------------------------------------------------------------------------------------

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG, headers.AllTopicConfigRequest, LOOKS)
    async def all_configs(self, request: Request[headers.AllTopicConfigRequest]) -> Answer:
        """Return the settings of all topics."""
        asked = request.header
        table = self._topics.table
        shown: Mapping[str, TopicConfig] = table.topics
        if asked.data_version is not None or asked.topic_seq is not None or asked.max_topic_num is not None:
            wanted = page_names(
                list(shown), table.version, asked.data_version, asked.topic_seq, asked.max_topic_num
            )
            shown = {name: shown[name] for name in wanted}
        body = AllTopics(
            data_version=table.version,
            kerolox_deleted={} if asked.topic_seq else self._store.notes.deleted.before,
            mapping_data_version=DataVersion(timestamp=self._stats.started_ms),
            topic_config_table=dict(shown),
        )
        header = headers.AllTopicConfigAnswer(total_topic_num=len(table.topics))
        return Answer(header=header, body=await asyncio.to_thread(body.encode))  # there may be very many

    @serves(RequestCode.GET_TOPIC_CONFIG, headers.TopicConfigRequest, on(GET, topic="topic"))
    def config(self, request: Request[headers.TopicConfigRequest]) -> Answer:
        """Return the settings of a topic."""
        topic = request.header.topic
        config = self._topics.known(topic, f"No topic in this broker. topic: {topic}")
        fields = {field: getattr(config, field) for field in config.__struct_fields__}
        return Answer(body=TopicConfigWithMapping(**fields).encode())

    @serves(RequestCode.GET_TOPIC_STATS_INFO, headers.TopicStatsRequest, on(GET, topic="topic"))
    async def stats(self, request: Request[headers.TopicStatsRequest]) -> Answer:
        """Return the offsets of the queues of a topic."""
        topic = request.header.topic
        config = self._topics.known(topic, f"topic[{topic}] not exist")
        count = max(config.read_queue_nums, config.write_queue_nums)
        bounds = await self._store.readers.read(lambda: self._bounds(topic, count))
        return Answer(
            body=TopicStats(offset_table=bounds, topic_put_tps=self._stats.put_rate(topic)).encode()
        )

    def _bounds(self, topic: str, count: int) -> dict[MessageQueue, QueueBounds]:
        """Return the bounds of each queue of a topic. Reads times from the log, so call it in a thread."""
        store = self._store
        found: dict[MessageQueue, QueueBounds] = {}
        for queue_id in range(count):
            end = store.queues.max_offset(topic, queue_id)
            stored_ms = store.queues.store_time_at(topic, queue_id, end - 1) if end > 0 else 0
            found[MessageQueue(topic, self._options.broker_name, queue_id)] = QueueBounds(
                min_offset=max(0, store.queues.min_offset(topic, queue_id)),
                max_offset=end,
                last_update_timestamp=stored_ms,
            )
        return found

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.TopicConsumersRequest, on(GET, topic="topic"))
    def consumers(self, request: Request[headers.TopicConsumersRequest]) -> Answer:
        """Return the groups of a topic: those with a member that subscribes it, or with progress in it."""
        topic = request.header.topic
        groups = self._members.groups_subscribed(topic) | self._offsets.groups_of(topic)
        return Answer(body=GroupList(group_list=tuple(sorted(groups))).encode())

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, LOOKS)
    def system_topics(self, request: Request[None]) -> Answer:
        """Return the names of the system topics."""
        return Answer(body=TopicList(topic_list=tuple(sorted(self._topics.system))).encode())


async def offsets_gone(saved: Callable[[], Awaitable[None]], what: str) -> None:
    """Wait until the offsets of a deleted topic or group are also removed from the disk. If that fails, the
    topic or group stays deleted; deleting it again removes the offsets."""
    try:
        await saved()
    except NotSaved as error:
        remark = f"{what} was deleted, but its offsets are still in {error.path}: {error.why}"
        raise Refused(error.code, sentences(remark, "then delete it again")) from error


def page_names(
    all_names: list[str],
    version: DataVersion,
    seen_version: str | None,
    first: int | None,
    count: int | None,
) -> list[str]:
    """Return a page of names in their order. Begins again if the table has changed since ``seen_version``."""
    try:
        same = bool(seen_version) and DataVersion.decode(seen_version or "") == version
    except KeroloxError:
        same = False
    start = max(0, first or 0) if same else 0
    size = PAGE_MAX if count is None else max(0, min(count, PAGE_MAX))
    return sorted(all_names)[start : start + size]


def parse_attributes(text: str | None) -> dict[str, str]:
    """Parse ``+key=value,-key`` into the keys with their sign."""
    attributes: dict[str, str] = {}
    for item in (text or "").split(","):
        if not item:
            continue
        key, separator, value = item.partition("=")
        if separator and not key.startswith("+"):
            raise _wrong_attribute(f"add/alter attribute format is wrong: {key}")
        if not separator and not key.startswith("-"):
            raise _wrong_attribute(f"delete attribute format is wrong: {key}")
        if key in attributes:
            raise _wrong_attribute(f"key duplication: {key}")
        attributes[key] = value
    return attributes


def altered_attributes(before: Mapping[str, str] | None, asked: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's attributes after ``+key`` set and ``-key`` removed some. ``before`` None: a new
    topic."""
    after = dict(before or {})
    for key, value in asked.items():
        sign, name = key[:1], key[1:]
        if not name or "+" in name or "-" in name or sign not in ("+", "-"):
            raise _wrong_attribute(f"kv string format wrong: {key!r}, expected +name=value or -name")
        if name not in _CHOICES and name not in _NUMBERS:
            raise _wrong_attribute(f"unsupported key: {name}")
        if before is not None and name not in _CHANGEABLE:
            raise _wrong_attribute(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == "-":
            if before is None:
                raise _wrong_attribute(f"only add attribute is supported while creating topic. key: {name}")
            if name not in before:
                raise _wrong_attribute(f"attempt to delete a nonexistent key: {name}")
            del after[name]
            continue
        if name == _MESSAGE_TYPE and value == "MIXED":
            raise InvalidRequest("MIXED message type is not supported.")
        _check_attribute(name, value)
        after[name] = value
    return after


def _check_attribute(name: str, value: str) -> None:
    choices = _CHOICES.get(name)
    if choices is not None:
        if value not in choices:
            raise _wrong_attribute(
                f"value is not in set: {value!r} of {name}, expected one of {', '.join(choices)}"
            )
        refuse_topic_attribute(name, value)
        return
    try:
        fits = -1 <= int(value) < 1 << 63
    except ValueError:
        fits = False
    if not fits:
        raise _wrong_attribute(f"value is not in range(-1, {(1 << 63) - 1}): {value!r} of {name}")
    refuse_topic_attribute(name, value)


def _wrong_attribute(why: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, why)
