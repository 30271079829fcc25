"""Sending load: tasks with one message or batch in flight each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from kerolox.client.admin.calls import AdminCalls, BrokerQueue, NoSuchTopic
from kerolox.client.cluster.client import Client
from kerolox.client.ids import unique_keys
from kerolox.client.messages import Message
from kerolox.client.options import ClientOptions
from kerolox.client.send.tracing import TraceKind, Tracer
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import KeroloxError, OptionError, RequestFailed
from kerolox.load.figures import LoadFigures
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.message import OutgoingMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.reserved import TEMPLATE_TOPIC, TRACE_TOPIC

STORED = (0, 10, 11, 12)  # the last three: stored, but not flushed or replicated as required
TIMEOUT_S = 3.0
AFTER_FAILURE_S = 3.0  # a sender that failed waits, as in RocketMQ
NEW_TOPIC_QUEUES = 4
PRODUCER_GROUP = "benchmark_producer"


class Compression(NamedTuple):
    """Compression of bodies: algorithm, level and smallest size."""

    kind: int
    level: int
    from_bytes: int

    @classmethod
    def named(cls, name: str, level: int, from_bytes: int) -> Compression:
        kinds = {"ZLIB": COMPRESSION_ZLIB, "LZ4": COMPRESSION_LZ4, "ZSTD": COMPRESSION_ZSTD}
        if name.upper() not in kinds:
            raise OptionError("-ct", name, f"one of {', '.join(kinds)}")
        if name.upper() == "ZLIB" and level > 9:
            raise OptionError("-cl", level, "0 to 9 for ZLIB")
        return cls(kinds[name.upper()], level, from_bytes)

    def compress(self, body: bytes) -> bytes:
        return compress(body, self.kind, self.level)


def trace_sent(
    tracer: Tracer, queue: BrokerQueue, messages: list[OutgoingMessage], answer: SendAnswer, began_ms: int
) -> None:
    for message, place in zip(messages, answer.msg_id.split(","), strict=False):
        tracer.sent(
            message.topic,
            Message(message.topic, message.body, tags=message.tag, keys=message.keys),
            message.unique_key,
            place,
            kind=TraceKind.DELAY if message.delay_level else TraceKind.NORMAL,
            began_ms=began_ms,
            cost_ms=SYSTEM_CLOCK.wall_ms() - began_ms,
            address=queue.address,
            body_bytes=len(message.body),
            region=answer.region_id or "",
            success=True,
        )


@asynccontextmanager
async def tracing(
    nameservers: str, group: str, role: str, keys: tuple[str, str] | None
) -> AsyncIterator[Tracer]:
    """Run a tracer with separate connections, as in a client. ``keys`` sign its requests."""
    access_key, secret_key = keys or ("", "")
    options = ClientOptions(nameservers, access_key=access_key, secret_key=secret_key)
    async with Client(options) as client:
        tracer = Tracer(client, group, TRACE_TOPIC, role)
        try:
            yield tracer
        finally:
            await tracer.close()


@dataclass(frozen=True)
class SentLoad:
    """Figures of a whole run."""

    topic: str
    messages: int
    requests: int
    failed: int
    failed_messages: int
    seconds: float
    messages_per_second: int
    average_ms: float | None
    max_ms: float


class Senders:
    """Tasks that send to the queues of a topic in turn, and their figures.

    ``say`` gets lines about the progress, ``done`` the figures when the run ends, also by an error.
    """

    def __init__(
        self,
        admin: AdminCalls,
        topic: str,
        message: Callable[[int], OutgoingMessage],
        batch: int,
        quantity: int,
        say: Callable[[str], object],
        done: Callable[[SentLoad], object],
        compression: Compression | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._say = say
        self._done = done
        self._admin = admin
        self._topic = topic
        self._message = message
        self._batch = batch
        self._compression = compression
        self._tracer = tracer
        self._left = quantity or None
        self._turn = 0
        self.requests = self.messages = self.failed = self.refused = self.failed_messages = 0
        self.time_ms = self.max_ms = 0.0

    async def run(self, count: int, interval_ms: int) -> None:
        self._queues = await self._admin.queues(self._topic, for_sending=True)
        if not await self._exists():
            # The queues of the template topic, which has more queues than the new topic will have.
            self._queues = [queue for queue in self._queues if queue.queue_id < NEW_TOPIC_QUEUES]
        if not self._queues:
            raise OptionError("-t", self._topic, "a topic with a writable queue")
        self._keys = unique_keys()
        figures = LoadFigures(self.snapshot, self.line, interval_ms, self._say)
        reports = asyncio.create_task(figures.run())
        try:
            await asyncio.gather(*(self._send_on() for _ in range(count)))
        finally:
            reports.cancel()
            figures.snap()
            self._say(self.complete(figures))
            self._done(self.total(figures.seconds))

    async def _exists(self) -> bool:
        try:
            await self._admin.route(self._topic)
        except NoSuchTopic:
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
        messages = [self._message(now_ms) for _ in range(size)]
        for message in messages:
            message.unique_key = self._keys.next()
        packed = [(each.flag, each.body, pack(each.wire_properties())) for each in messages]
        sys_flag = 0
        if self._batch == 1:
            code, body, properties = RequestCode.SEND_MESSAGE_V2, packed[0][1], packed[0][2].decode()
            if self._compression is not None and len(body) >= self._compression.from_bytes:
                body, sys_flag = self._compression.compress(body), COMPRESSED | self._compression.kind
        else:
            code, body, properties = RequestCode.SEND_BATCH_MESSAGE, encode_batch(packed), ""
        is_batch = code == RequestCode.SEND_BATCH_MESSAGE
        header = self._header(queue, now_ms, properties, is_batch, sys_flag)
        answer = await self._admin.ask(queue.address, code, header, body, ok=STORED, timeout_s=TIMEOUT_S)
        if self._tracer is not None:
            trace_sent(self._tracer, queue, messages, answer.header(SendAnswer), now_ms)

    def _header(
        self, queue: BrokerQueue, now_ms: int, properties: str, batch: bool, sys_flag: int
    ) -> SendRequestV2:
        return SendRequestV2(
            producer_group=PRODUCER_GROUP,
            topic=self._topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=NEW_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
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

    def total(self, seconds: float) -> SentLoad:
        """Return the figures of the whole run."""
        return SentLoad(
            self._topic,
            self.messages,
            self.requests,
            self.failed + self.refused,
            self.failed_messages,
            seconds=round(seconds, 3),
            messages_per_second=round(self.messages / seconds),
            average_ms=round(self.time_ms / self.requests, 3) if self.requests else None,
            max_ms=round(self.max_ms, 3),
        )

    def complete(self, figures: LoadFigures) -> str:
        return f"[Complete] Send Total: {self.messages + self.failed_messages} | {figures.since_start()}"
