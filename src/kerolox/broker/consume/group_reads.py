"""Reads of topics by consumer groups: permission, filter, reset offsets, messages, progress and figures.

A request of any form (a pull today) is served in these steps: the checks in the order of its protocol, which
give a :class:`GroupRead`; ``take_reset``; ``read``, and ``read_in_thread`` after :class:`Cold`; ``note`` for
what is answered; and ``wait`` if there are no messages.
"""

from __future__ import annotations

from typing import Protocol

from kerolox.broker.base import Base
from kerolox.broker.bounds import OFFSETS_MAX
from kerolox.broker.consume.filters import Filters
from kerolox.broker.consume.message_waits import ANY_QUEUE, MessageWaits, Wait
from kerolox.broker.consume.read_filter import ReadFilter, ReadRefused, tag_filter
from kerolox.broker.members.compiled_filters import NotCompiled
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest
from kerolox.observers import Observers
from kerolox.protocol.bodies.groups import WHY_DISABLED, GroupConfig
from kerolox.protocol.bodies.heartbeat import MessageModel, SubscriptionData
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.flags import PERM_READ
from kerolox.protocol.subscription import is_tag_type, subscription
from kerolox.store.queue.queues import Bounds
from kerolox.store.queue.reading import PULL_BYTES_MAX, QueueRead, ReadLimits, ReadStatus
from kerolox.store.tables.offsets import ConsumerOffsets

_NOT_FOLLOWER = "[REJECTREQUEST]system busy, start flow control for a while"


class ConsumerGroups(Protocol):
    """Part of the groups that reads use. See groups.py."""

    def config(self, group: str) -> GroupConfig | None:
        """Return the settings of a group; create them if the group is new and that is allowed."""

    def is_forbidden(self, group: str, topic: str) -> bool: ...

    def members(self, group: str) -> GroupMembers | None: ...


class GroupMembers(Protocol):
    model: MessageModel | None

    def subscription(self, topic: str) -> SubscriptionData | None: ...


class GroupRead:
    """A checked read: settings of the topic and of the group, and the filter."""

    __slots__ = ("filter", "group", "topic")

    def __init__(self, topic: TopicConfig, group: GroupConfig, filter: ReadFilter) -> None:
        self.topic = topic
        self.group = group
        self.filter = filter


class GroupReads:
    """Reads of this broker's queues by consumer groups."""

    def __init__(
        self,
        base: Base,
        topics: Topics,
        groups: ConsumerGroups,
        offsets: ConsumerOffsets,
        filters: Filters,
        waits: MessageWaits,
    ) -> None:
        self._store = base.store
        self._leadership = base.leadership
        self._endpoints = base.endpoints
        self._options = base.options
        self._clock = base.clock
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        # Returns the offset to which an administrator has reset a group, once. Without a step in between,
        # because every pull asks.
        self.take_reset = offsets.take_reset
        self._filters = filters
        self._waits = waits
        # for statistics: group, topic, queue id, messages, bytes, bytes behind the end of the log
        self.on_served: Observers[[str, str, int, int, int, int]] = Observers("messages served")
        # group, topic, queue id: at the end
        self.on_caught_up: Observers[[str, str, int]] = Observers("group caught up")
        # called with the duration of a read in ms
        self.on_cold_read: Observers[[float]] = Observers("cold read")
        self.misses = 0  # reads without messages

    # --- checks --------------------------------------------------------------------------------------------

    def check_broker(self) -> None:
        """Raise :class:`ReadRefused` if this broker serves no reads."""
        if not self._leadership.serves and not self._options.slave_read:
            raise ReadRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{_NOT_FOLLOWER}: this broker is a follower, pull from the leader. To read from "
                "followers, set slaveReadEnable=true on this broker.",
            )
        if not self._options.readable:
            raise ReadRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._endpoints.host}] pulling message is forbidden",
                1,
            )

    def group(self, name: str) -> GroupConfig:
        """Return the settings of a group that may consume; create them if the group is new and that is
        allowed."""
        group = self._groups.config(name)
        if group is None:
            raise ReadRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist. Create it with kerolox group "
                f"create {name}. Or let the broker create groups: autoCreateSubscriptionGroup=true.",
            )
        if not group.consume_enable:
            raise ReadRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {name} (consumeEnable=false)" + _why_disabled(group),
                2,
            )
        return group

    def topic(self, name: str) -> TopicConfig:
        """Return the settings of a topic that may be read."""
        topic = self._topics.find(name)
        if topic is None:
            raise ReadRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not topic.perm & PERM_READ:
            raise ReadRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden", 3
            )
        return topic

    def filter_of(self, group: GroupConfig, topic: str, version: int) -> ReadFilter:
        """Return the filter that the members subscribed by heartbeat, in this version or a newer one. Raises
        NotCompiled as the next function."""
        name = group.group_name
        members = self._groups.members(name)
        if members is None:
            raise ReadRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {name} sent no heartbeat here yet",
            )
        if not group.consume_broadcast_enable and members.model is MessageModel.BROADCASTING:
            raise ReadRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] can not consume by broadcast way",
                4,
            )
        if self._groups.is_forbidden(name, topic):
            raise ReadRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] is forbidden for topic[{topic}]",
                5,
            )
        wanted = members.subscription(topic)
        if wanted is None:
            raise ReadRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: {name} has none of {topic}",
            )
        if wanted.sub_version < version:
            raise ReadRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: {wanted.sub_version} < {version}",
            )
        if is_tag_type(wanted):
            return tag_filter(wanted)
        return self._filters.subscribed_filter(wanted, name, version)

    def filter_in_request(
        self, topic: str, expression: str | None, expression_type: str | None
    ) -> ReadFilter:
        """Return the filter that a request contains. Raises NotCompiled if it takes long to compile."""
        try:
            wanted = subscription(topic, expression, 0, expression_type)
        except InvalidRequest as error:
            raise ReadRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from None
        return tag_filter(wanted) if is_tag_type(wanted) else self._filters.filter(wanted)

    async def prepare(self, unknown: NotCompiled) -> None:
        """Compile the condition for which a check raised this error; then check again."""
        await self._filters.known.prepare((unknown.key,))

    def is_current(self, read: GroupRead) -> bool:
        """Return False if the topic or the group has changed since the read was checked."""
        return (
            self._groups.config(read.group.group_name) is read.group
            and self._topics.find(read.topic.topic_name) is read.topic
        )

    # --- offsets -------------------------------------------------------------------------------------------

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Commit the progress that a read carries, unless the group was reset."""
        if self._offsets.has_reset(topic, group, queue_id):
            return
        if not 0 <= offset <= self._store.queues.max_offset(topic, queue_id):
            return  # the answer contains the end of the queue
        if self._offsets.has_room(topic, group, queue_id, OFFSETS_MAX):
            self._offsets.commit(topic, group, queue_id, offset)
            if not self._leadership.leads:
                self._offsets.keep(topic, group, queue_id)

    def bounds(self, topic: str, queue_id: int) -> Bounds:
        """Return the minimum and maximum offset of a queue; 0 and 0 if it is empty."""
        return self._store.queues.bounds(topic, queue_id)

    # --- messages ------------------------------------------------------------------------------------------

    def read(
        self,
        read: GroupRead,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int = PULL_BYTES_MAX,
        scan_bytes: int | None = None,
    ) -> QueueRead:
        """Return the messages from an offset on. Raises :class:`Cold` if some are not in memory."""
        by_queue, by_unit, by_record, _ = read.filter
        return self._store.queues.read_hot(
            read.topic.topic_name,
            queue_id,
            offset,
            count_max,
            queue_filter=by_queue,
            unit_filter=by_unit,
            record_filter=by_record,
            bytes_max=bytes_max,
            limits=self._limits(scan_bytes) if scan_bytes else None,
        )

    async def read_in_thread(
        self,
        read: GroupRead,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int = PULL_BYTES_MAX,
        scan_bytes: int | None = None,
    ) -> QueueRead:
        """Return the messages from an offset on, read from disk where they are not in memory."""
        by_queue, by_unit, by_record, _ = read.filter
        began_s = self._clock.monotonic_s()
        found = await self._store.queues.read(
            read.topic.topic_name,
            queue_id,
            offset,
            count_max,
            queue_filter=by_queue,
            unit_filter=by_unit,
            record_filter=by_record,
            bytes_max=bytes_max,
            limits=self._limits(scan_bytes) if scan_bytes else None,
            limited=True,
        )
        self.on_cold_read((self._clock.monotonic_s() - began_s) * 1000)
        return found

    def _limits(self, scan_bytes: int) -> ReadLimits | None:
        return ReadLimits.of_scans(self._store.options, scan_bytes)

    def note(self, read: GroupRead, queue_id: int, found: QueueRead) -> None:
        """Note what was read: the offset the group has reached, and its figures."""
        topic, group = read.topic.topic_name, read.group.group_name
        self._offsets.note_pull(topic, group, queue_id, found.next_offset)
        if found.status is ReadStatus.FOUND:
            self.on_served.tell(group, topic, queue_id, found.count, found.size_bytes, found.behind_bytes)
            return
        self.misses += 1
        if found.status is ReadStatus.OFFSET_OVERFLOW_ONE:
            self.on_caught_up.tell(group, topic, queue_id)

    def wait(self, wait: Wait) -> bool:
        """Register a wait. Return False, so that the caller continues at once, if a message has arrived at
        one of its queues in the meantime or too many wait.

        A wait for any queue of a topic has no offset to compare: register it without awaiting after the
        read.
        """
        for topic, queue_id, offset in wait.points:
            if queue_id != ANY_QUEUE:
                queue = self._store.queues.find(topic, queue_id)
                if queue is not None and queue.min_offset <= offset < queue.max_offset:
                    return False
        return self._waits.add(wait)


def _why_disabled(group: GroupConfig) -> str:
    why = group.attributes.get(WHY_DISABLED)
    if why is None:
        return ""
    return f". The broker disabled it: {why}. Enable it: kerolox group enable {group.group_name}"
