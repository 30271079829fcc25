"""Consuming load: tasks that consume a topic, one for each queue."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.client.admin.calls import LATEST_MS, AdminCalls, BrokerQueue, NoSuchTopic
from kerolox.client.ids import unique_keys
from kerolox.client.send.tracing import ConsumeOutcome, Tracer
from kerolox.clock import SYSTEM_CLOCK
from kerolox.load.figures import LoadFigures
from kerolox.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.offset import OffsetAnswer, QueryOffsetRequest, UpdateOffsetRequest
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import MSG_REGION
from kerolox.protocol.record import decode_records
from kerolox.protocol.reserved import RETRY_PREFIX
from kerolox.protocol.subscription import subscription

PULL_COUNT = 32
HOLD_MS = 15_000
HEARTBEAT_S = 30.0
TRIES_MAX = 16
ROUTE_TRIES, ROUTE_PAUSE_S = 20, 0.1  # lookups of a new retry topic
_GOES_ON = (
    0,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True)
class ConsumedLoad:
    """Figures of a whole run."""

    topic: str
    group: str
    messages: int
    failed: int
    seconds: float
    messages_per_second: int
    average_born_to_consumed_ms: float | None
    average_stored_to_consumed_ms: float | None


class Consumers:
    """Consuming tasks, one for each queue. Every pull commits the consumed offset.

    A share ``fail_rate`` of the messages fails and is sent back to the broker, which delivers them again
    through the retry topic. ``say`` gets lines about the progress, ``done`` the figures when the run ends.
    """

    def __init__(
        self,
        admin: AdminCalls,
        topic: str,
        group: str,
        filter_type: str,
        expression: str,
        quantity: int,
        say: Callable[[str], object],
        done: Callable[[ConsumedLoad], object],
        fail_rate: float = 0.0,
        tracer: Tracer | None = None,
    ) -> None:
        self._say = say
        self._report = done
        self._admin = admin
        self._topic = topic
        self._group = group
        self._filter_type = filter_type
        self._expression = expression
        self._quantity = quantity
        self._fail_rate = fail_rate
        self._tracer = tracer
        self._request_ids = unique_keys()
        self.messages = self.failed = 0
        self.born_ms = self.stored_ms = 0
        self.born_max_ms = self.stored_max_ms = 0

    async def run(self, interval_ms: int) -> None:
        self._done = asyncio.Event()
        queues = await self._admin.queues(self._topic)
        await self._heartbeat(queues)
        again = await self._retry_queues() if self._fail_rate else []
        places = [(self._topic, queue) for queue in queues]
        places += [(RETRY_PREFIX + self._group, queue) for queue in again]
        starts = await asyncio.gather(*(self._start(topic, queue) for topic, queue in places))
        figures = LoadFigures(self.snapshot, self.line, interval_ms, self._say)
        tasks = [asyncio.create_task(figures.run()), asyncio.create_task(self._stay_alive(queues))]
        tasks += [
            asyncio.create_task(self._consume(topic, queue, offset))
            for (topic, queue), offset in zip(places, starts, strict=True)
        ]
        self._say("Consumer Started.")
        ended = asyncio.create_task(self._done.wait())
        try:
            # A task that ends earlier has failed; its error is raised below.
            await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, *tasks):
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            figures.snap()
            self._say(f"[Complete] Consume Total: {self.messages} | {figures.since_start()}")
            self._report(self.total(figures.seconds))
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _retry_queues(self) -> list[BrokerQueue]:
        """Return the queues of the retry topic, which brokers create after the group's first heartbeat."""
        for _ in range(ROUTE_TRIES):
            try:
                return await self._admin.queues(RETRY_PREFIX + self._group)
            except NoSuchTopic:
                await SYSTEM_CLOCK.sleep(ROUTE_PAUSE_S)
        return []

    async def _start(self, topic: str, queue: BrokerQueue) -> int:
        asked = QueryOffsetRequest(consumer_group=self._group, topic=topic, queue_id=queue.queue_id)
        answer = await self._admin.ask(
            queue.address, RequestCode.QUERY_CONSUMER_OFFSET, asked, ok=(0, ResponseCode.QUERY_NOT_FOUND)
        )
        if answer.code == 0:
            return answer.header(OffsetAnswer).offset
        if topic != self._topic:
            return 0
        return await self._admin.offset_at(queue.address, topic, queue.queue_id, LATEST_MS)

    async def _consume(self, topic: str, queue: BrokerQueue, offset: int) -> None:
        wanted = (self._expression, self._filter_type) if topic == self._topic else ("*", "TAG")
        try:
            while True:
                asked = PullRequest(
                    consumer_group=self._group,
                    topic=topic,
                    queue_id=queue.queue_id,
                    queue_offset=offset,
                    max_msg_nums=PULL_COUNT,
                    sys_flag=PULL_COMMIT_OFFSET | PULL_SUSPEND | PULL_SUBSCRIPTION,
                    commit_offset=offset,
                    suspend_timeout_millis=HOLD_MS,
                    sub_version=0,
                    subscription=wanted[0],
                    expression_type=wanted[1],
                )
                answer = await self._admin.ask(
                    queue.address, RequestCode.PULL_MESSAGE, asked, ok=_GOES_ON, timeout_s=HOLD_MS / 1000 + 10
                )
                if answer.code == 0:
                    now_ms = SYSTEM_CLOCK.wall_ms()
                    records = decode_records(answer.body)
                    failing = await self._fail_some(queue, records) if self._fail_rate else []
                    if self._tracer is not None:
                        for record in records:
                            self._trace(self._tracer, record, record in failing)
                    for record in records:  # counted only after processing
                        self._count(now_ms - record.born_timestamp, now_ms - record.store_timestamp)
                offset = answer.header(PullAnswer).next_begin_offset
                if self._quantity and self.messages >= self._quantity:
                    self._done.set()
        finally:
            await self._admin.dialer.tell(
                queue.address,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateOffsetRequest(
                    consumer_group=self._group,
                    topic=topic,
                    queue_id=queue.queue_id,
                    commit_offset=offset,
                ),
            )

    async def _fail_some(self, queue: BrokerQueue, records: list[StoredMessage]) -> list[StoredMessage]:
        failing = [record for record in records if random.random() < self._fail_rate]
        await asyncio.gather(*(self._give_back(queue, record) for record in failing))
        self.failed += len(failing)
        return failing

    def _trace(self, tracer: Tracer, record: StoredMessage, failed: bool) -> None:
        topic, keys, request_id = record.topic, " ".join(record.keys), self._request_ids.next()
        region = record.properties.get(MSG_REGION, "")
        times = record.reconsume_times
        tracer.consuming(topic, record.message_id, keys, request_id, retry_times=times, region=region)
        outcome = ConsumeOutcome.FAILED if failed else ConsumeOutcome.SUCCESS
        tracer.consumed(topic, record.message_id, keys, request_id, cost_ms=0, outcome=outcome)

    async def _give_back(self, queue: BrokerQueue, record: StoredMessage) -> None:
        asked = SendBackRequest(
            offset=record.physical_offset,
            group=self._group,
            delay_level=0,  # the broker chooses: longer with each retry
            origin_msg_id=record.message_id,
            origin_topic=record.topic,
            max_reconsume_times=TRIES_MAX,
        )
        await self._admin.ask(queue.address, RequestCode.CONSUMER_SEND_MSG_BACK, asked)

    def _count(self, born_ms: int, stored_ms: int) -> None:
        self.messages += 1
        self.born_ms += born_ms
        self.stored_ms += stored_ms
        self.born_max_ms = max(self.born_max_ms, born_ms)
        self.stored_max_ms = max(self.stored_max_ms, stored_ms)

    async def _stay_alive(self, queues: list[BrokerQueue]) -> None:
        while True:
            await SYSTEM_CLOCK.sleep(HEARTBEAT_S)
            await self._heartbeat(queues)

    async def _heartbeat(self, queues: list[BrokerQueue]) -> None:
        data = HeartbeatData(
            client_id=f"127.0.0.1@{os.getpid()}",
            consumer_data_set=(
                ConsumerData(
                    group_name=self._group,
                    consume_type=ConsumeType.CONSUME_PASSIVELY,
                    message_model=MessageModel.CLUSTERING,
                    consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                    subscription_data_set=(
                        subscription(self._topic, self._expression, 0, self._filter_type),
                    ),
                ),
            ),
        )
        for address in {queue.address for queue in queues}:
            await self._admin.ask(address, RequestCode.HEART_BEAT, body=data.encode())

    # --- figures ------------------------------------------------------------------------------

    def total(self, seconds: float) -> ConsumedLoad:
        """Return the figures of the whole run."""
        count = self.messages
        return ConsumedLoad(
            self._topic,
            self._group,
            count,
            self.failed,
            seconds=round(seconds, 3),
            messages_per_second=round(count / seconds),
            average_born_to_consumed_ms=round(self.born_ms / count, 3) if count else None,
            average_stored_to_consumed_ms=round(self.stored_ms / count, 3) if count else None,
        )

    def snapshot(self) -> tuple[float, ...]:
        return self.messages, self.born_ms, self.stored_ms, self.failed

    def line(self, seconds: float, first: tuple[float, ...], last: tuple[float, ...]) -> str:
        messages, born_ms, stored_ms, failed = (b - a for a, b in zip(first, last, strict=True))
        text = (
            f"Consume TPS: {int(messages / seconds)} | "
            f"AVG(B2C) RT(ms): {born_ms / messages if messages else 0.0:7.3f} | "
            f"AVG(S2C) RT(ms): {stored_ms / messages if messages else 0.0:7.3f} | "
            f"MAX(B2C) RT(ms): {self.born_max_ms} | MAX(S2C) RT(ms): {self.stored_max_ms} | "
            f"Consume Fail: {failed:.0f}"
        )
        self.born_max_ms = self.stored_max_ms = 0
        return text
