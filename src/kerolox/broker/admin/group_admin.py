"""Requests of tools that create, change and delete consumer groups, and that show their progress."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from kerolox.access.needs.administration import CONSUME_STATS, CREATE_GROUP, CREATE_GROUPS
from kerolox.access.needs.kinds import LOOKS, on
from kerolox.access.needs.names import DELETE, GET, UPDATE
from kerolox.access.needs.pop import SET_MODE
from kerolox.broker.absent import refuse_group_attributes
from kerolox.broker.admin.topic_admin import offsets_gone, page_names
from kerolox.broker.base import Base
from kerolox.broker.bounds import PROGRESS_ROWS_MAX, REQUEST_MODES_MAX, too_many
from kerolox.broker.figures.room import Figures
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members.groups import check_group
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.errors import InvalidRequest
from kerolox.front.requests import Answer, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol import reserved
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import (
    GroupConfig,
    GroupConfigList,
    GroupConfigTable,
    GroupForbidden,
    RequestModeTable,
    SetRequestMode,
)
from kerolox.protocol.bodies.members import GroupSubscription
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from kerolox.protocol.bodies.routes import TopicList
from kerolox.protocol.bodies.stats import (
    ConsumeOffsets,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    QueueTimeSpan,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import group as headers
from kerolox.unsaved import Unsaved

log = logging.getLogger(__name__)


class GroupAdmin:
    """Requests that create, change, delete and show consumer groups, and that show tables of all groups."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        stats: Statistics,
    ) -> None:
        self._topics = tables.topics
        self._groups = membership.groups
        self._members = membership.members
        self._offsets = tables.offsets
        self._delays = tables.delay_offsets
        self._modes = tables.modes
        self._stats = stats
        self._offsets_saved = tables.offset_saver.saved
        self._unsaved_modes: Unsaved[tuple[str, str], SetRequestMode] = Unsaved(
            self._put_mode_back, tables.mode_saver.save
        )
        self._address = base.endpoints.address

    # --- settings -------------------------------------------------------------------------------------

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, CREATE_GROUP)
    def put(self, request: Request[None]) -> Later:
        """Create a group, or change its settings."""
        configs = [GroupConfig.decode(request.body)] if request.body else []
        return lambda: self._put(configs)

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, CREATE_GROUPS)
    def put_many(self, request: Request[None]) -> Later:
        """Create or change many groups."""
        configs = GroupConfigList.decode(request.body).group_config_list
        return lambda: self._put(configs)

    async def _put(self, configs: Iterable[GroupConfig]) -> Answer:
        wanted = list(configs)
        for config in wanted:
            check_group(config.group_name)
            refuse_group_attributes(config.group_name, config.attributes)
        self._groups.check_room(*{config.group_name for config in wanted})
        for config in wanted:
            self._groups.put(config)
        await self._groups.unsaved.saved(*[config.group_name for config in wanted])
        return Answer()

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, headers.AllGroupConfigRequest, LOOKS)
    async def all_configs(self, request: Request[headers.AllGroupConfigRequest]) -> Answer:
        """Return the settings of all groups."""
        asked = request.header
        table = self._groups.table
        shown: Mapping[str, GroupConfig] = table.groups
        forbidden: Mapping[str, dict[str, int]] = table.forbidden
        if asked.data_version is not None or asked.group_seq is not None or asked.max_group_num is not None:
            wanted = page_names(
                list(shown), table.version, asked.data_version, asked.group_seq, asked.max_group_num
            )
            shown = {name: shown[name] for name in wanted}
            forbidden = {name: forbidden[name] for name in wanted if name in forbidden}
        body = GroupConfigTable(
            data_version=table.version,
            forbidden_table={name: dict(topics) for name, topics in forbidden.items()},
            subscription_group_table=dict(shown),
        )
        header = headers.AllGroupConfigAnswer(total_group_num=len(table.groups))
        return Answer(header=header, body=await asyncio.to_thread(body.encode))  # there may be very many

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, headers.GroupConfigRequest, on(GET, group="group"))
    def config(self, request: Request[headers.GroupConfigRequest]) -> Answer:
        """Return the settings of a group."""
        config = self._groups.config(request.header.group)
        if config is None:
            return Answer(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"No group in this broker: {request.header.group}",
            )
        return Answer(body=config.encode())

    @serves(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        headers.DeleteGroupRequest,
        on(DELETE, group="group_name", administers=True),
    )
    async def delete(self, request: Request[headers.DeleteGroupRequest]) -> Answer:
        """Delete a group."""
        group = request.header.group_name
        self._groups.remove(group)
        await self._groups.unsaved.saved(group)
        if request.header.clean_offset:
            self._offsets.remove_group(group)
        self._stats.forget_group(group)
        if request.header.clean_offset:
            await offsets_gone(self._offsets_saved, f"group {group}")
        return Answer()

    @serves(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        headers.GroupForbiddenRequest,
        on(UPDATE, topic="topic", group="group", administers=True),
    )
    async def forbidden(self, request: Request[headers.GroupForbiddenRequest]) -> Answer:
        """Allow or forbid a group to read a topic, and return the setting."""
        asked = request.header
        if asked.readable is not None:
            self._groups.set_readable(asked.group, asked.topic, asked.readable)
            await self._groups.unsaved.saved(asked.group)
        readable = not self._groups.is_forbidden(asked.group, asked.topic)
        return Answer(
            remark="", body=GroupForbidden(group=asked.group, topic=asked.topic, readable=readable).encode()
        )

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE, None, SET_MODE)
    def set_mode(self, request: Request[None]) -> Later:
        """Choose between pull and POP for a group and a topic."""
        mode = SetRequestMode.decode(request.body)
        return lambda: self._set_mode(mode)

    async def _set_mode(self, mode: SetRequestMode) -> Answer:
        topic, group = mode.topic, mode.consumer_group
        if topic is None or group is None:
            raise InvalidRequest("a request mode needs both a topic and a consumerGroup")
        if topic.startswith(reserved.RETRY_PREFIX):
            return Answer(code=ResponseCode.NO_PERMISSION, remark="retry topic is not allowed to set mode")
        self._topics.known(topic, f"topic[{topic}] not exist")
        if self._groups.config(group) is None:
            return Answer(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="subscription group does not exist"
            )
        before = self._modes.find(topic, group)
        count = sum(map(len, self._modes.modes.values()))
        if count >= REQUEST_MODES_MAX and before is None:
            raise too_many("request modes", "REQUEST_MODES_MAX", REQUEST_MODES_MAX)
        self._modes.put(mode)
        self._unsaved_modes.changed((topic, group), before)
        await self._unsaved_modes.saved((topic, group))
        return Answer()

    def _put_mode_back(self, key: tuple[str, str], before: SetRequestMode | None) -> None:
        if before is None:
            self._modes.remove(*key)
        else:
            self._modes.put(before)

    @serves(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, None, LOOKS)
    def modes(self, request: Request[None]) -> Answer:
        """Return the choices between pull and POP of all groups."""
        return Answer(body=RequestModeTable(message_request_mode_map=self._modes.modes).encode())

    # --- subscriptions --------------------------------------------------------------------------------

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER, headers.GroupTopicsRequest, on(GET, group="group"))
    def topics(self, request: Request[headers.GroupTopicsRequest]) -> Answer:
        """Return the topics that a group consumes."""
        found = self._offsets.topics_of(request.header.group)
        return Answer(body=TopicList(broker_addr=self._address, topic_list=tuple(sorted(found))).encode())

    @serves(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        headers.GroupSubscriptionRequest,
        on(GET, topic="topic", group="group"),
    )
    def subscription(self, request: Request[headers.GroupSubscriptionRequest]) -> Answer:
        """Return the subscription of a group to a topic."""
        asked = request.header
        members = self._members.members(asked.group)
        found = None if members is None or asked.topic is None else members.subscription(asked.topic)
        return Answer(
            body=GroupSubscription(group=asked.group, topic=asked.topic, subscription_data=found).encode()
        )

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET, None, LOOKS)
    async def all_offsets(self, request: Request[None]) -> Answer:
        """Return the progress of all groups, for followers."""
        offsets = {key: dict(queues) for key, queues in self._offsets.offsets.items()}
        table = ConsumerOffsetTable(data_version=self._offsets.version, offset_table=offsets)
        return Answer(body=await asyncio.to_thread(table.encode))  # there may be very many

    @serves(RequestCode.GET_ALL_DELAY_OFFSET, None, LOOKS)
    def delay_offsets(self, request: Request[None]) -> Answer:
        """Return the progress of the delay levels, for followers."""
        table = DelayOffsetTable(data_version=self._delays.version, offset_table=self._delays.offsets)
        return Answer(body=table.encode())


class ProgressAdmin:
    """Requests that show the progress of groups. Times are read from the log, so the work is done in
    threads."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        figures: Figures,
    ) -> None:
        self._store = base.store
        self._topics = tables.topics
        self._groups = membership.groups
        self._members = membership.members
        self._offsets = tables.offsets
        self._stats = figures.stats
        self._popped = figures.popped
        self._options = base.options
        self._clock = base.clock
        self._address = base.endpoints.address

    @serves(RequestCode.GET_CONSUME_STATS, headers.ConsumeStatsRequest, CONSUME_STATS)
    async def group(self, request: Request[headers.ConsumeStatsRequest]) -> Answer:
        """Return the progress and the lag of a group in its queues."""
        asked = request.header
        group = asked.consumer_group
        wanted = [topic for topic in (asked.topic_list or "").split(";") if topic.strip()]
        if not wanted:
            named = [asked.topic] if asked.topic and asked.topic.strip() else None
            wanted = self._subscribed(group, named or sorted(self._offsets.topics_of(group)))
        queues = {topic: self._queues(topic, read=True) for topic in wanted}
        if sum(queues.values()) > PROGRESS_ROWS_MAX:
            raise too_many(
                f"queues, {sum(queues.values())}: ask for fewer topics",
                "PROGRESS_ROWS_MAX",
                PROGRESS_ROWS_MAX,
            )
        stats = await self._store.readers.read(lambda: self._stats_of(group, queues, with_pulls=True))
        return Answer(body=stats.encode())

    @serves(RequestCode.GET_BROKER_CONSUME_STATS, headers.BrokerConsumeStatsRequest, LOOKS)
    async def all_groups(self, request: Request[headers.BrokerConsumeStatsRequest]) -> Answer:
        """Return the progress and the lag of all groups."""
        wanted: list[tuple[str, str, int]] = []
        for group in sorted(self._groups.table.groups):
            for topic in self._subscribed(group, sorted(self._offsets.topics_of(group))):
                config = self._topics.find(topic)
                if config is None or (request.header.is_order and not config.order):
                    continue
                wanted.append((group, topic, config.write_queue_nums))

        def look() -> ConsumeStatsList:
            found: dict[str, list[ConsumeStats]] = {}
            for group, topic, queues in wanted:
                found.setdefault(group, []).append(self._stats_of(group, {topic: queues}))
            rows = [row for stats in found.values() for one in stats for row in one.offset_table.values()]
            return ConsumeStatsList(
                broker_addr=self._address,
                consume_stats_list=tuple({group: tuple(stats)} for group, stats in found.items()),
                total_diff=sum(row.broker_offset - row.consumer_offset for row in rows),
                total_inflight_diff=sum(max(0, row.pull_offset - row.consumer_offset) for row in rows),
            )

        return Answer(body=(await self._store.readers.read(look)).encode())

    @serves(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        headers.ConsumeTimeSpanRequest,
        on(GET, topic="topic", group="group"),
    )
    async def time_span(self, request: Request[headers.ConsumeTimeSpanRequest]) -> Answer:
        """Return the times of the first, next and last message of a group in the queues of a topic."""
        asked = request.header
        queues = self._topics.known(asked.topic, f"topic[{asked.topic}] not exist").write_queue_nums

        def look() -> ConsumeTimeSpans:
            spans = tuple(self._span(asked.group, asked.topic, queue_id) for queue_id in range(queues))
            return ConsumeTimeSpans(consume_time_span_set=spans)

        return Answer(body=(await self._store.readers.read(look)).encode())

    # --- parts ----------------------------------------------------------------------------------------

    def _subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return the topics that the group subscribes now, if one of its members is connected; else all
        topics."""
        members = self._members.members(group)
        if members is None or not members.subscriptions:
            return list(topics)
        return [topic for topic in topics if members.subscription(topic) is not None]

    def _queues(self, topic: str, *, read: bool) -> int:
        config = self._topics.find(topic)
        if config is None:
            return 0
        return config.read_queue_nums if read else config.write_queue_nums

    def _stats_of(self, group: str, topics: Mapping[str, int], *, with_pulls: bool = False) -> ConsumeStats:
        table: dict[MessageQueue, ConsumeOffsets] = {}
        tps = 0.0
        for topic, queues in topics.items():
            for queue_id in range(queues):
                queue = MessageQueue(topic, self._options.broker_name, queue_id)
                consumed = max(0, self._offsets.offset(topic, group, queue_id))
                pulled = self._offsets.pull_offset(topic, group, queue_id) if with_pulls else 0
                out = self._popped(topic, group, queue_id)
                if out is not None:
                    consumed, pulled = out
                last_ms = self._store.queues.store_time_at(topic, queue_id, consumed - 1) if consumed else 0
                table[queue] = ConsumeOffsets(
                    broker_offset=max(0, self._store.queues.max_offset(topic, queue_id)),
                    consumer_offset=consumed,
                    pull_offset=max(consumed, pulled) if with_pulls else 0,
                    last_timestamp=max(0, last_ms),
                )
            tps += self._stats.get_rate(group, topic)
        return ConsumeStats(consume_tps=tps, offset_table=table)

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first, end = store.queues.min_offset(topic, queue_id), store.queues.max_offset(topic, queue_id)
        first_ms = store.queues.store_time_at(topic, queue_id, first)
        consumed = self._offsets.offset(topic, group, queue_id)
        delay_ms = 0
        if consumed < end:
            next_ms = store.queues.store_time_at(topic, queue_id, max(first, consumed))
            delay_ms = self._clock.wall_ms() - next_ms
        return QueueTimeSpan(
            message_queue=MessageQueue(topic, self._options.broker_name, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=store.queues.store_time_at(topic, queue_id, end - 1),
            consume_time_stamp=(
                store.queues.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else first_ms
            ),
            delay_time=delay_ms,
        )
