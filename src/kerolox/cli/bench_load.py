"""The load of ``kerolox bench``: tasks that send or consume, and the figures they print."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

import typer

from kerolox.cli.send import STORED, _unique_keys
from kerolox.cli.times import time_text
from kerolox.client.admin import LATEST_MS, TEMPLATE_TOPIC, Admin, Queue
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import KeroloxError, OptionError, RequestFailed
from kerolox.protocol.batch import encode_batch
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
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.message import Message
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.protocol.subscription import subscription

TIMEOUT_S = 3.0
AFTER_FAILURE_S = 3.0  # a sender that failed waits, as in the original
SNAPSHOTS = 10  # a line is about the last ten seconds
PULL_COUNT = 32
HOLD_MS = 15_000
HEARTBEAT_S = 30.0
NEW_TOPIC_QUEUES = 4
PRODUCER_GROUP = "benchmark_producer"
_GOES_ON = (
    0,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Figures:
    """Snapshots every second, and a line about the last ten of them now and then."""

    def __init__(
        self,
        snapshot: Callable[[], tuple[float, ...]],
        line: Callable[[float, tuple[float, ...], tuple[float, ...]], str],
        interval_ms: int,
    ) -> None:
        self._snapshot = snapshot
        self._line = line
        self._interval_s = interval_ms / 1000
        self._taken: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=SNAPSHOTS)
        self.snap()
        self._first = self._taken[0]

    async def run(self) -> None:
        began_s = printed_s = SYSTEM_CLOCK.monotonic_s()
        step_s = min(1.0, self._interval_s)
        while True:
            await SYSTEM_CLOCK.sleep(step_s)
            now_s = SYSTEM_CLOCK.monotonic_s()
            if now_s - self._taken[-1][0] >= min(0.99, step_s):
                self.snap()
            if now_s - printed_s >= self._interval_s - step_s / 2 and now_s > began_s:
                printed_s = now_s
                now = time_text(SYSTEM_CLOCK.wall_ms()).replace(".", ",")
                typer.echo(f"Current Time: {now} | {self._text(self._taken[0])}")

    def snap(self) -> None:
        self._taken.append((SYSTEM_CLOCK.monotonic_s(), self._snapshot()))

    def since_start(self) -> str:
        return self._text(self._first)

    def _text(self, first: tuple[float, tuple[float, ...]]) -> str:
        last = self._taken[-1]
        return self._line(max(last[0] - first[0], 1e-9), first[1], last[1])


class Senders:
    """Tasks that send to the queues of a topic in turn, and what came of it."""

    def __init__(
        self, admin: Admin, topic: str, message: Callable[[int], Message], batch: int, quantity: int
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._message = message
        self._batch = batch
        self._left = quantity or None
        self._turn = 0
        self.requests = self.messages = self.failed = self.refused = self.failed_messages = 0
        self.time_ms = self.max_ms = 0.0

    async def run(self, count: int, interval_ms: int) -> None:
        self._queues = await self._admin.queues(self._topic, for_sending=True)
        if not await self._exists():
            # Those of the template, which are more than the topic is going to have.
            self._queues = [queue for queue in self._queues if queue.queue_id < NEW_TOPIC_QUEUES]
        if not self._queues:
            raise OptionError("-t", self._topic, "a topic with a writable queue")
        self._keys = _unique_keys()
        figures = Figures(self.snapshot, self.line, interval_ms)
        reports = asyncio.create_task(figures.run())
        try:
            await asyncio.gather(*(self._send_on() for _ in range(count)))
        finally:
            reports.cancel()
            figures.snap()
            typer.echo(self.complete(figures))

    async def _exists(self) -> bool:
        try:
            await self._admin.route(self._topic)
        except RequestFailed:
            return False
        return True

    async def _send_on(self) -> None:
        while (size := self._next_size()) > 0:
            began_s = SYSTEM_CLOCK.monotonic_s()
            try:
                await self._send(size)
            except RequestFailed:
                self.refused += 1
                self.failed_messages += size
                await asyncio.sleep(AFTER_FAILURE_S)
                continue
            except KeroloxError:
                self.failed += 1
                self.failed_messages += size
                await asyncio.sleep(AFTER_FAILURE_S)
                continue
            took_ms = (SYSTEM_CLOCK.monotonic_s() - began_s) * 1000
            self.requests += 1
            self.messages += size
            self.time_ms += took_ms
            self.max_ms = max(self.max_ms, took_ms)

    def _next_size(self) -> int:
        if self._left is None:
            return self._batch
        size = min(self._batch, self._left)
        self._left -= size
        return size

    async def _send(self, size: int) -> None:
        now_ms = SYSTEM_CLOCK.wall_ms()
        queue = self._queues[self._turn % len(self._queues)]
        self._turn += 1
        packed = []
        for _ in range(size):
            message = self._message(now_ms)
            message.unique_key = self._keys.next()
            packed.append((message.flag, message.body, pack(message.wire_properties())))
        if self._batch == 1:
            code, body, properties = RequestCode.SEND_MESSAGE_V2, packed[0][1], packed[0][2].decode()
        else:
            code, body, properties = RequestCode.SEND_BATCH_MESSAGE, encode_batch(packed), ""
        header = self._header(queue, now_ms, properties, code == RequestCode.SEND_BATCH_MESSAGE)
        await self._admin.ask(queue.address, code, header, body, ok=STORED, timeout_s=TIMEOUT_S)

    def _header(self, queue: Queue, now_ms: int, properties: str, batch: bool) -> SendRequestV2:
        return SendRequestV2(
            producer_group=PRODUCER_GROUP,
            topic=self._topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=NEW_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=now_ms,
            flag=0,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=batch,
            broker_name=queue.broker,
        )

    # --- figures ------------------------------------------------------------------------------

    def snapshot(self) -> tuple[float, ...]:
        return self.requests, self.messages, self.time_ms

    def line(self, seconds: float, first: tuple[float, ...], last: tuple[float, ...]) -> str:
        requests, messages, time_ms = (b - a for a, b in zip(first, last, strict=True))
        tps, average_ms = int(requests / seconds), time_ms / requests if requests else 0.0
        if self._batch == 1:
            return (
                f"Send TPS: {tps} | Max RT(ms): {self.max_ms:.0f} | Average RT(ms): {average_ms:7.3f} | "
                f"Send Failed: {self.failed} | Response Failed: {self.refused}"
            )
        return (
            f"Send TPS: {tps} | Send MPS: {int(messages / seconds)} | Max RT(ms): {self.max_ms:.0f} | "
            f"Average RT(ms): {average_ms:7.3f} | "
            f"Average Message RT(ms): {time_ms / messages if messages else 0.0:7.3f} | "
            f"Send Failed: {self.failed + self.refused} | Send Message Failed: {self.failed_messages}"
        )

    def complete(self, figures: Figures) -> str:
        return f"[Complete] Send Total: {self.messages + self.failed_messages} | {figures.since_start()}"


class Consumers:
    """One task for every queue, which commits with every pull what it has consumed."""

    def __init__(
        self, admin: Admin, topic: str, group: str, filter_type: str, expression: str, quantity: int
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._group = group
        self._filter_type = filter_type
        self._expression = expression
        self._quantity = quantity
        self.messages = self.failed = 0
        self.born_ms = self.stored_ms = 0
        self.born_max_ms = self.stored_max_ms = 0

    async def run(self, interval_ms: int) -> None:
        self._done = asyncio.Event()
        queues = await self._admin.queues(self._topic)
        await self._heartbeat(queues)
        starts = await asyncio.gather(*map(self._start, queues))
        figures = Figures(self.snapshot, self.line, interval_ms)
        tasks = [asyncio.create_task(figures.run()), asyncio.create_task(self._stay_alive(queues))]
        tasks += [
            asyncio.create_task(self._consume(queue, offset))
            for queue, offset in zip(queues, starts, strict=True)
        ]
        typer.echo("Consumer Started.")
        ended = asyncio.create_task(self._done.wait())
        try:
            # A task that ends before that has failed: its error is ours.
            await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, *tasks):
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            figures.snap()
            typer.echo(f"[Complete] Consume Total: {self.messages} | {figures.since_start()}")
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _start(self, queue: Queue) -> int:
        asked = QueryOffsetRequest(consumer_group=self._group, topic=self._topic, queue_id=queue.queue_id)
        answer = await self._admin.ask(
            queue.address, RequestCode.QUERY_CONSUMER_OFFSET, asked, ok=(0, ResponseCode.QUERY_NOT_FOUND)
        )
        if answer.code == 0:
            return answer.header(OffsetAnswer).offset
        return await self._admin.offset_at(queue.address, self._topic, queue.queue_id, LATEST_MS)

    async def _consume(self, queue: Queue, offset: int) -> None:
        try:
            while True:
                asked = PullRequest(
                    consumer_group=self._group,
                    topic=self._topic,
                    queue_id=queue.queue_id,
                    queue_offset=offset,
                    max_msg_nums=PULL_COUNT,
                    sys_flag=PULL_COMMIT_OFFSET | PULL_SUSPEND | PULL_SUBSCRIPTION,
                    commit_offset=offset,
                    suspend_timeout_millis=HOLD_MS,
                    sub_version=0,
                    subscription=self._expression,
                    expression_type=self._filter_type,
                )
                answer = await self._admin.ask(
                    queue.address, RequestCode.PULL_MESSAGE, asked, ok=_GOES_ON, timeout_s=HOLD_MS / 1000 + 10
                )
                if answer.code == 0:
                    now_ms = SYSTEM_CLOCK.wall_ms()
                    for record in decode_records(answer.body):
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
                    topic=self._topic,
                    queue_id=queue.queue_id,
                    commit_offset=offset,
                ),
            )

    def _count(self, born_ms: int, stored_ms: int) -> None:
        self.messages += 1
        self.born_ms += born_ms
        self.stored_ms += stored_ms
        self.born_max_ms = max(self.born_max_ms, born_ms)
        self.stored_max_ms = max(self.stored_max_ms, stored_ms)

    async def _stay_alive(self, queues: list[Queue]) -> None:
        while True:
            await SYSTEM_CLOCK.sleep(HEARTBEAT_S)
            await self._heartbeat(queues)

    async def _heartbeat(self, queues: list[Queue]) -> None:
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

    def snapshot(self) -> tuple[float, ...]:
        return self.messages, self.born_ms, self.stored_ms

    def line(self, seconds: float, first: tuple[float, ...], last: tuple[float, ...]) -> str:
        messages, born_ms, stored_ms = (b - a for a, b in zip(first, last, strict=True))
        text = (
            f"Consume TPS: {int(messages / seconds)} | "
            f"AVG(B2C) RT(ms): {born_ms / messages if messages else 0.0:7.3f} | "
            f"AVG(S2C) RT(ms): {stored_ms / messages if messages else 0.0:7.3f} | "
            f"MAX(B2C) RT(ms): {self.born_max_ms} | MAX(S2C) RT(ms): {self.stored_max_ms} | "
            f"Consume Fail: {self.failed}"
        )
        self.born_max_ms = self.stored_max_ms = 0
        return text
