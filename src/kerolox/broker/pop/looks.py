"""Requests that look at what a group could pop: peeks, notifications, and the number of held pops."""

from __future__ import annotations

import random
from collections.abc import Hashable

from kerolox.access.needs.pop import NOTIFICATION, PEEK, POLLING_INFO
from kerolox.broker.base import Base
from kerolox.broker.consume.group_reads import GroupReads
from kerolox.broker.consume.message_waits import ANY_QUEUE, MessageWaits, Wait
from kerolox.broker.pop.checkpoint import QueueKey
from kerolox.broker.pop.keeper import Keeper
from kerolox.broker.pop.orders import Orders
from kerolox.broker.pop.pops import ANSWER_BYTES_MAX, MESSAGES_MAX, POP, Pops, check_pops, share_at
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest
from kerolox.front.handlers import refusal
from kerolox.front.requests import Answer, HeldRequest, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import pop as headers
from kerolox.protocol.pop.retry_topics import V1, V2, retry_topic
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.tables.offsets import ConsumerOffsets

RETRY_DRAWS = 5  # one of so many peeks looks at the retry topic first
NOTIFY = "notify"


class Looks:
    """Handlers of PEEK_MESSAGE, NOTIFICATION and POLLING_INFO."""

    def __init__(
        self,
        base: Base,
        reads: GroupReads,
        waits: MessageWaits,
        topics: Topics,
        offsets: ConsumerOffsets,
        keeper: Keeper,
        orders: Orders,
        pops: Pops,
    ) -> None:
        self._store = base.store
        self._options = base.options
        self._clock = base.clock
        self._leadership = base.leadership
        self._reads = reads
        self._waits = waits
        self._topics = topics
        self._offsets = offsets
        self._keeper = keeper
        self._orders = orders
        self._pops = pops
        self._rights = 0
        base.guard.book.on_change.append(self._rights_changed)

    def _rights_changed(self) -> None:
        self._rights += 1

    # --- peeks -------------------------------------------------------------------------------------------

    @serves(RequestCode.PEEK_MESSAGE, headers.PeekRequest, PEEK, lane="pull")
    async def peek(self, request: Request[headers.PeekRequest]) -> Answer:
        """Return messages that a group could pop, without popping them."""
        asked = request.header
        topic = self._check(asked.topic, asked.consumer_group, asked.queue_id)
        if not 0 < asked.max_msg_nums <= MESSAGES_MAX:
            raise InvalidRequest(
                f"the peek asks for {asked.max_msg_nums} messages, expected 1 to {MESSAGES_MAX}"
            )
        draw = random.randrange(100)
        keys = self._keys(topic, asked.consumer_group, asked.queue_id, draw)
        if draw % RETRY_DRAWS == 0:
            keys.reverse()
        parts: list[bytes] = []
        left, bytes_left, rest = asked.max_msg_nums, ANSWER_BYTES_MAX, 0
        for key in keys:
            offset, end = self._next_offset(key), self._store.queues.max_offset(key.topic, key.queue_id)
            if left > 0 and bytes_left > 0 and offset < end:
                found = await self._store.queues.read(
                    key.topic, key.queue_id, offset, left, bytes_max=bytes_left, limited=True
                )
                if found.status is ReadStatus.FOUND:
                    parts += found.parts
                    left -= found.count
                    bytes_left -= found.size_bytes
                offset = found.next_offset
            rest += max(0, end - offset)
        if not parts:
            return Answer(
                code=ResponseCode.PULL_NOT_FOUND,
                header=headers.PopAnswer(rest_num=rest),
                remark="NO_MESSAGE_IN_QUEUE",
            )
        return Answer(header=headers.PopAnswer(rest_num=rest), body=parts, remark="FOUND")

    # --- notifications -----------------------------------------------------------------------------------

    @serves(RequestCode.NOTIFICATION, headers.NotificationRequest, NOTIFICATION, lane="pull")
    def notify(self, request: Request[headers.NotificationRequest]) -> Answer | None:
        """Answer as soon as a group could pop a message, or when the time is over."""
        asked = request.header
        topic = self._check(asked.topic, asked.consumer_group, asked.queue_id)
        return self._look(request, topic)

    def _look(self, request: Request[headers.NotificationRequest], topic: TopicConfig) -> Answer | None:
        asked = request.header
        keys = self._keys(topic, asked.consumer_group, asked.queue_id, 0, retries=not asked.order)
        if any(self._has_message(key, asked) for key in keys):
            return _notified(True)
        wait_s = self._pops.wait_s(asked.born_time, asked.poll_time)
        if wait_s is None or request.caller.is_closed or not self._keeper.leads:
            return _notified(False)
        rights = self._rights

        def resume() -> None:
            if request.caller.is_closed:
                return
            try:
                answer = self.notify(request) if rights == self._rights else _notified(False)
            except Exception as error:
                answer = refusal(error, request)
            if answer is not None:
                HeldRequest.of(request).answer(answer)

        points = self._pops.points(asked.topic, asked.consumer_group, asked.queue_id, order=asked.order)
        share = share_at(NOTIFY, asked.topic, asked.consumer_group, asked.queue_id)
        wait = Wait(points, self._clock.monotonic_s() + wait_s, resume, None, request.caller, share)
        count = self._waits.count(*points[0][:2], share)
        if count > self._options.pops_held_of_queue_max or not self._waits.add(wait):
            return _notified(False, is_full=True)
        return None

    def _has_message(self, key: QueueKey, asked: headers.NotificationRequest) -> bool:
        if asked.order and self._orders.is_blocked(key, asked.attempt_id, 0):
            return False
        return self._store.queues.max_offset(key.topic, key.queue_id) > self._next_offset(key)

    # --- held pops ---------------------------------------------------------------------------------------

    @serves(RequestCode.POLLING_INFO, headers.PollingInfoRequest, POLLING_INFO, lane="pull")
    def polling_info(self, request: Request[headers.PollingInfoRequest]) -> Answer:
        """Return the number of pops that are held for a queue, or for any queue, of a topic."""
        asked = request.header
        self._check(asked.topic, asked.consumer_group, asked.queue_id)
        share: Hashable = share_at(POP, asked.topic, asked.consumer_group, asked.queue_id)
        count = self._waits.count(asked.topic, max(asked.queue_id, ANY_QUEUE), share)
        return Answer(header=headers.PollingInfoAnswer(polling_num=count))

    # --- shared ------------------------------------------------------------------------------------------

    def _check(self, topic: str, group: str, queue_id: int) -> TopicConfig:
        check_pops(self._leadership.leads and self._keeper.leads, self._options.timer_wheel)
        self._reads.check_broker()
        config = self._reads.topic(topic)
        if queue_id >= config.read_queue_nums:
            raise InvalidRequest(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
        self._reads.group(group)
        return config

    def _keys(
        self, topic: TopicConfig, group: str, queue_id: int, draw: int, *, retries: bool = True
    ) -> list[QueueKey]:
        """Return the queues of a request: first the topic's, then the retry topics'."""
        name, count = topic.topic_name, topic.read_queue_nums
        numbers = [queue_id] if queue_id >= 0 else [(draw + number) % count for number in range(count)]
        keys = [QueueKey(name, group, number) for number in numbers]
        for form in (V1, V2) if retries else ():
            retry = self._topics.find(retry_topic(name, group, form))
            if retry is not None:
                keys += [QueueKey(retry.topic_name, group, at) for at in range(retry.read_queue_nums)]
        return keys

    def _next_offset(self, key: QueueKey) -> int:
        """Return where the next pop of a queue begins."""
        committed = self._offsets.offset(*key)
        queue = self._keeper.outstanding.queues.get(key)
        if queue is not None:
            return max(queue.next_offset, committed)
        return committed if committed >= 0 else self._store.queues.min_offset(key.topic, key.queue_id)


def _notified(has_message: bool, *, is_full: bool = False) -> Answer:
    return Answer(header=headers.NotificationAnswer(has_msg=has_message, polling_full=is_full))
