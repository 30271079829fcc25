"""Pulls by queue and offset, held until messages arrive.

A pull is answered inside the read pass if the messages are in memory, by a thread if they are not, and on
arrival of the next message if none is available.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kerolox.broker.bounds import OFFSETS_MAX
from kerolox.broker.consume.waiting_pulls import HeldPull, PullFilter, WaitingPulls
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.members.compiled_filters import (
    CompiledFilters,
    FilterKey,
    NotCompiled,
    no_property_filter,
)
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.errors import InvalidRequest, Refused
from kerolox.front.handlers import refusal
from kerolox.front.requests import Answer, HeldRequest, Later, Request
from kerolox.observers import Observers
from kerolox.protocol import properties as packed
from kerolox.protocol.bodies.groups import WHY_DISABLED, GroupConfig
from kerolox.protocol.bodies.heartbeat import MessageModel, SubscriptionData
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.subscription import ALL, is_tag_type, subscription, tag_hash
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import (
    PULL_BYTES_MAX,
    Cold,
    QueueFilter,
    QueueRead,
    ReadLimits,
    ReadStatus,
    RecordFilter,
    UnitFilter,
)
from kerolox.store.tables.offsets import ConsumerOffsets

HELD_MS_MAX = 120_000  # the longest time a pull is held, even if the client asks for more

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY_QUEUE = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)
# The offset is inside the queue. So is the next offset, whatever the result.
_INSIDE = (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)
_NOT_FOLLOWER = "[REJECTREQUEST]system busy, start flow control for a while"


class ConsumerGroups(Protocol):
    """Part of the groups that pulls use. See groups.py."""

    def config(self, group: str) -> GroupConfig | None:
        """Return the settings of a group; create them if the group is new and that is allowed."""

    def is_forbidden(self, group: str, topic: str) -> bool: ...

    def members(self, group: str) -> GroupMembers | None: ...


class GroupMembers(Protocol):
    model: MessageModel | None

    def subscription(self, topic: str) -> SubscriptionData | None: ...


def _why_disabled(group: GroupConfig) -> str:
    why = group.attributes.get(WHY_DISABLED)
    if why is None:
        return ""
    return f". The broker disabled it: {why}. Enable it: kerolox group enable {group.group_name}"


class PullRefused(Refused):
    """Rejection of a pull, with the type of the missing permission."""

    def __init__(self, code: int, remark: str, forbidden_type: int | None = None) -> None:
        self.forbidden_type = forbidden_type
        super().__init__(code, remark)


class Filter(NamedTuple):
    """Filter of a pull, with one form for each kind of data; None accepts every message."""

    by_queue: QueueFilter | None = None  # checks queue entries; may accept too many
    by_unit: UnitFilter | None = None  # checks the extension of the queue; may accept too many
    by_record: RecordFilter | None = None  # checks the records that the others accepted
    by_properties: PullFilter | None = None  # checks the properties of a message that has just arrived


class Plan:
    """Settings and filter for a checked pull."""

    __slots__ = ("config", "filter", "group")

    def __init__(self, config: TopicConfig, group: GroupConfig, filter: Filter) -> None:
        self.config = config
        self.group = group
        self.filter = filter


class Pulls:
    """Handlers of PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(
        self,
        store: MessageStore,
        leadership: Leadership,
        endpoints: Endpoints,
        topics: Topics,
        groups: ConsumerGroups,
        offsets: ConsumerOffsets,
        waiting: WaitingPulls,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._endpoints = endpoints
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._waiting = waiting
        self._options = options
        self._clock = clock
        # for statistics: group, topic, queue id, messages, bytes, bytes behind the end of the log
        self.on_served: Observers[[str, str, int, int, int, int]] = Observers("messages served")
        # returns the filter of a pull that does not filter by tags; raises PullRefused
        self.filters: Callable[[SubscriptionData, PullRequest], Filter] | None = None
        self.compiled: CompiledFilters | None = None  # the compiled conditions
        # group, topic, queue id: at the end
        self.on_caught_up: Observers[[str, str, int]] = Observers("group caught up")
        # called with the duration of a read in ms
        self.on_cold_read: Observers[[float]] = Observers("cold read")
        self.misses = 0  # reads without messages
        self._cold: set[asyncio.Task[None]] = set()

    def pull(self, request: Request[PullRequest]) -> Answer | Later | None:
        try:
            plan = self._check(request)
        except PullRefused as refused:
            return self._refuse(refused)
        except NotCompiled as unknown:
            key = unknown.key
            return lambda: self._pull_prepared(request, key)
        return self._planned(request, plan)

    async def _pull_prepared(self, request: Request[PullRequest], key: FilterKey) -> Answer | None:
        assert self.compiled is not None  # the check has just used it
        await self.compiled.prepare((key,))
        try:
            plan = self._check(request)
        except PullRefused as refused:
            return self._refuse(refused)
        return self._planned(request, plan)

    def _planned(self, request: Request[PullRequest], plan: Plan) -> Answer | None:
        header = request.header
        if header.sys_flag & PULL_COMMIT_OFFSET and self._leadership.serves:
            self._commit(header)
        reset = self._offsets.take_reset(header.topic, header.consumer_group, header.queue_id)
        if reset is not None:
            return self._moved(header, plan, reset)
        return self._read(request, plan, may_hold=True)

    async def close(self) -> None:
        for task in list(self._cold):
            task.cancel()
        if self._cold:
            await asyncio.gather(*self._cold, return_exceptions=True)

    # --- checks, in RocketMQ's order -------------------------------------------------------------

    def _check(self, request: Request[PullRequest]) -> Plan:
        header = request.header
        options = self._options
        if not self._leadership.serves and not options.slave_read:
            raise PullRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{_NOT_FOLLOWER}: this broker is a follower, pull from the leader. To read from "
                "followers, set slaveReadEnable=true on this broker.",
            )
        if not options.readable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._endpoints.host}] pulling message is forbidden",
                1,
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not options.lite_pull:
            raise PullRefused(ResponseCode.NO_PERMISSION, "the broker does not serve lite pulls", 1)
        group = self._groups.config(header.consumer_group)
        if group is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist. Create it with kerolox group "
                f"create {header.consumer_group}. Or let the broker create groups: "
                "autoCreateSubscriptionGroup=true.",
            )
        if not group.consume_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group} (consumeEnable=false)"
                + _why_disabled(group),
                2,
            )
        config = self._topics.find(header.topic)
        if config is None:
            raise PullRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not config.perm & PERM_READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden", 3
            )
        if not 0 <= header.queue_id < config.read_queue_nums:
            raise InvalidRequest(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[{request.caller.address}]"
            )
        wanted = self._subscription(header, group)
        if is_tag_type(wanted):
            return Plan(config, group, tag_filter(wanted))
        if self.filters is None:
            raise PullRefused(ResponseCode.SYSTEM_ERROR, no_property_filter(wanted))
        return Plan(config, group, self.filters(wanted, header))

    def _subscription(self, header: PullRequest, group: GroupConfig) -> SubscriptionData:
        if header.sys_flag & PULL_SUBSCRIPTION:
            try:
                return subscription(header.topic, header.subscription, 0, header.expression_type)
            except InvalidRequest as error:
                raise PullRefused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
        members = self._groups.members(header.consumer_group)
        if members is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {header.consumer_group} sent no heartbeat here yet",
            )
        if not group.consume_broadcast_enable and members.model is MessageModel.BROADCASTING:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
                4,
            )
        if self._groups.is_forbidden(header.consumer_group, header.topic):
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
                5,
            )
        found = members.subscription(header.topic)
        if found is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: {header.consumer_group} has none of {header.topic}",
            )
        if found.sub_version < header.sub_version:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: {found.sub_version} < {header.sub_version}",
            )
        return found

    def _commit(self, header: PullRequest) -> None:
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        if self._offsets.has_reset(topic, group, queue_id):
            return
        queue = self._store.queues.find(topic, queue_id)
        if not 0 <= header.commit_offset <= (0 if queue is None else queue.max_offset):
            return  # the answer contains the end of the queue
        if self._offsets.has_room(topic, group, queue_id, OFFSETS_MAX):
            self._offsets.commit(topic, group, queue_id, header.commit_offset)
            if not self._leadership.leads:
                self._offsets.keep(topic, group, queue_id)

    # --- reading ---------------------------------------------------------------------------------------

    def _read(self, request: Request[PullRequest], plan: Plan, *, may_hold: bool) -> Answer | None:
        header = request.header
        queue = self._store.queues.find(header.topic, header.queue_id)
        bytes_max = header.max_msg_bytes or PULL_BYTES_MAX
        try:
            found = self._store.reader.read(
                queue,
                header.queue_offset,
                header.max_msg_nums,
                queue_filter=plan.filter.by_queue,
                unit_filter=plan.filter.by_unit,
                record_filter=plan.filter.by_record,
                bytes_max=bytes_max,
                limits=self._limits(header),
            )
        except Cold:
            self._read_cold(request, plan, may_hold)
            return None
        return self._answer(request, plan, found, may_hold)

    def _limits(self, header: PullRequest) -> ReadLimits | None:
        return ReadLimits.of_scans(self._store.options, header.scan_bytes) if header.scan_bytes else None

    def _read_cold(self, request: Request[PullRequest], plan: Plan, may_hold: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._wait_cold(request, plan, may_hold))
        self._cold.add(task)
        task.add_done_callback(self._cold.discard)

    async def _wait_cold(self, request: Request[PullRequest], plan: Plan, may_hold: bool) -> None:
        header = request.header
        began_s = self._clock.monotonic_s()
        try:
            found = await self._store.read(
                header.topic,
                header.queue_id,
                header.queue_offset,
                header.max_msg_nums,
                queue_filter=plan.filter.by_queue,
                unit_filter=plan.filter.by_unit,
                record_filter=plan.filter.by_record,
                bytes_max=header.max_msg_bytes or PULL_BYTES_MAX,
                limits=self._limits(header),
                limited=True,
            )
            self.on_cold_read((self._clock.monotonic_s() - began_s) * 1000)
            answer = self._answer(request, plan, found, may_hold)
        except Exception as error:
            answer = refusal(error, request)
        if answer is not None:
            request.answer(answer)

    def _answer(
        self, request: Request[PullRequest], plan: Plan, found: QueueRead, may_hold: bool
    ) -> Answer | None:
        header = request.header
        status = found.status
        self._offsets.note_pull(header.topic, header.consumer_group, header.queue_id, found.next_offset)
        if status is not ReadStatus.FOUND:
            self.misses += 1
            if status is ReadStatus.OFFSET_OVERFLOW_ONE:
                self.on_caught_up.tell(header.consumer_group, header.topic, header.queue_id)
        if status in _EMPTY_QUEUE:
            code = ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[status]
        next_offset, holds = found.next_offset, code == ResponseCode.PULL_NOT_FOUND
        if not self._leadership.leads and status not in _INSIDE:
            code, next_offset, holds = self._outside_of_copy(code, header.queue_offset, found)
        if holds and may_hold and header.sys_flag & PULL_SUSPEND:
            self._hold(request, plan)
            return None
        if status is ReadStatus.FOUND:
            self.on_served.tell(
                header.consumer_group,
                header.topic,
                header.queue_id,
                found.count,
                found.size_bytes,
                found.behind_bytes,
            )
        return Answer(
            code=code,
            header=PullAnswer(
                suggest_which_broker_id=self._suggest(plan.group, found.slow),
                next_begin_offset=next_offset,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
                topic_sys_flag=plan.config.topic_sys_flag,
                group_sys_flag=plan.group.group_sys_flag,
            ),
            body=found.parts if status is ReadStatus.FOUND else b"",
            remark=status.value,
        )

    def _outside_of_copy(
        self, code: ResponseCode, offset: int, found: QueueRead
    ) -> tuple[ResponseCode, int, bool]:
        """Return a follower's answer for an offset outside of its queue: the code, the next offset, and
        whether to hold the pull.

        The queue may be shorter than the leader's, at either end. So the consumer keeps its offset and asks
        the leader; while there is no leader, the pull is held here. RocketMQ's followers reject it even then,
        and the consumer repeats it at once, again and again.
        """
        alone = self._leadership.leader is None
        if code == ResponseCode.PULL_OFFSET_MOVED and self._options.correct_while_following:
            return code, found.next_offset, False
        if code == ResponseCode.PULL_NOT_FOUND and alone:
            return code, offset, True
        return ResponseCode.PULL_RETRY_IMMEDIATELY, offset, alone

    def _hold(self, request: Request[PullRequest], plan: Plan) -> None:
        if request.caller.is_closed:  # closed while a thread was reading: the client no longer waits
            return
        header = request.header
        wait_ms = (
            header.suspend_timeout_millis if self._options.long_polling else self._options.short_polling_ms
        )

        def resume() -> None:
            if request.caller.is_closed:
                return
            try:
                answer = self._go_on(request, plan)
            except Exception as error:
                answer = refusal(error, request)
            if answer is not None:
                HeldRequest.of(request).answer(answer)

        held = HeldPull(
            (header.topic, header.queue_id),
            header.queue_offset,
            self._clock.monotonic_s() + min(max(0, wait_ms), HELD_MS_MAX) / 1000,
            resume,
            plan.filter.by_properties,
            request.caller,
        )
        queue = self._store.queues.find(header.topic, header.queue_id)
        if queue is not None and queue.min_offset <= header.queue_offset < queue.max_offset:
            resume()  # a message arrived while a thread was reading: it would not wake this pull
        elif not self._waiting.hold(held):
            resume()

    def _go_on(self, request: Request[PullRequest], plan: Plan) -> Answer | None:
        """Read again for a held pull. Its group and topic may have changed or been reset meanwhile."""
        header = request.header
        topic, group = header.topic, header.consumer_group
        if self._groups.config(group) is not plan.group or self._topics.find(topic) is not plan.config:
            try:
                plan = self._check(request)
            except PullRefused as refused:
                return self._refuse(refused)
            except NotCompiled:
                return self._elsewhere(
                    header, plan, header.queue_offset, ResponseCode.PULL_RETRY_IMMEDIATELY, "FILTER_NOT_READY"
                )
        reset = self._offsets.take_reset(topic, group, header.queue_id)
        if reset is not None:
            return self._moved(header, plan, reset)
        return self._read(request, plan, may_hold=False)

    def _suggest(self, group: GroupConfig, slow: bool) -> int:
        if not self._options.slave_read:
            return 0
        return group.which_broker_when_consume_slowly if slow else group.broker_id

    def _moved(self, header: PullRequest, plan: Plan, offset: int) -> Answer:
        return self._elsewhere(header, plan, offset, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")

    def _elsewhere(self, header: PullRequest, plan: Plan, offset: int, code: int, remark: str) -> Answer:
        """Return an answer without messages that names the next offset."""
        queue = self._store.queues.find(header.topic, header.queue_id)
        return Answer(
            code=code,
            header=PullAnswer(
                suggest_which_broker_id=0,
                next_begin_offset=offset,
                min_offset=0 if queue is None else queue.min_offset,
                max_offset=0 if queue is None else queue.max_offset,
                topic_sys_flag=plan.config.topic_sys_flag,
                group_sys_flag=plan.group.group_sys_flag,
            ),
            remark=remark,
        )

    def _refuse(self, refused: PullRefused) -> Answer:
        header = None
        if refused.forbidden_type is not None:
            header = PullAnswer(
                suggest_which_broker_id=0,
                next_begin_offset=0,
                min_offset=0,
                max_offset=0,
                forbidden_type=refused.forbidden_type,
            )
        return Answer(code=refused.code, header=header, remark=str(refused))


def tag_filter(wanted: SubscriptionData) -> Filter:
    if wanted.sub_string == ALL or wanted.class_filter_mode:
        return Filter()
    codes = wanted.code_set

    def by_code(tags_code: int) -> bool:
        return tags_code in codes

    def by_properties(properties: bytes) -> bool:
        tag = packed.find(properties, packed.AT_TAGS)
        return (0 if tag is None else tag_hash(tag)) in codes

    return Filter(by_queue=by_code, by_properties=by_properties)
