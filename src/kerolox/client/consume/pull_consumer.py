"""PullConsumer: returns messages in batches, at the pace of the caller.

::

    async with PullConsumer("127.0.0.1:9876", group="loader", topics=["orders"]) as consumer:
        async for batch in consumer:
            ...                      # the batch counts as done when the next one is requested

Messages are prefetched while a batch is processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime

from kerolox.client.calls.routes import Route
from kerolox.client.cluster.client import Client
from kerolox.client.consume.consume_stats import ConsumeRates
from kerolox.client.consume.consumer import Consumer
from kerolox.client.consume.consumer_options import PullOptions, expression_of
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.consume.pulling import PullForm
from kerolox.client.errors import NoPermission
from kerolox.client.messages import Queue, Received
from kerolox.client.names import checked_topic, topic_list
from kerolox.client.options import ClientOptions
from kerolox.errors import Closed, KeroloxError, OptionError
from kerolox.protocol.bodies.clients import ConsumerRunningInfo, ProcessQueueInfo
from kerolox.protocol.bodies.heartbeat import ConsumeType, SubscriptionData
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.flags import PULL_LITE
from kerolox.protocol.subscription import subscription

BEGIN = "begin"
END = "end"


class Batch(list[Received]):
    """Messages of one queue, in order."""

    def __init__(self, queue: Queue, messages: Iterable[Received], held: HeldQueue) -> None:
        super().__init__(messages)
        self.queue = queue
        self._held = held

    @property
    def next_offset(self) -> int:
        """Offset after the last message of this batch."""
        return self[-1].queue_offset + 1

    def __repr__(self) -> str:
        return f"<batch of {len(self)} from {'/'.join(map(str, self.queue))}>"


class PullConsumer(Consumer):
    """Consumer that reads assigned queues, or its share of subscribed topics."""

    options: PullOptions
    consume_type = ConsumeType.CONSUME_ACTIVELY
    # Pulls carry no progress: a multi-threaded broker may process a pull after a later commit, and restore an
    # earlier offset.
    pull_form = PullForm(RequestCode.LITE_PULL_MESSAGE, PULL_LITE, has_subscription=True, has_progress=False)

    def __init__(
        self,
        where: Client | ClientOptions | str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Iterable[str] = (),
        tags: str = "*",
        sql: str | None = None,
        options: PullOptions | None = None,
    ) -> None:
        super().__init__(where, group, options or PullOptions())
        self.stats = ConsumeRates(self._clock.monotonic_s)
        self._ready = asyncio.Event()
        self._turn: dict[HeldQueue, None] = {}  # queues with messages, the next one first
        self._returned: list[Batch] = []  # returned to the caller, not yet done
        self._assigned = False
        self._seeks: dict[Queue, int] = {}  # for queues that are not held yet
        for topic in topic_list(topics):
            self.subscribe(topic, tags=tags, sql=sql)

    # --- topics and queues ----------------------------------------------------------------------------

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Read this member's share of a topic."""
        checked_topic(topic)
        if self._assigned:
            raise OptionError("topic", topic, "no topics together with assigned queues: use another consumer")
        self.want(self.client.wire_name(topic), *expression_of(tags, sql))

    def unsubscribe(self, topic: str) -> None:
        self.unwant(self.client.wire_name(topic))

    async def assign(self, queues: Iterable[Queue], *, tags: str = "*", sql: str | None = None) -> None:
        """Read exactly these queues, independently of other members. Replaces earlier assignments."""
        if self.wanted:
            raise OptionError("queues", list(queues), "no assigned queues together with subscribed topics")
        self._check_open()
        self._assigned = True
        chosen = {self._wire(queue) for queue in queues}
        for topic in {queue.topic for queue in chosen}:
            await self._find_soon(topic)
        expression, kind = expression_of(tags, sql)
        async with self._dividing:
            gone = [held for queue, held in self.held.items() if queue not in chosen]
            await self._let_go(gone)
            for queue in sorted(chosen - self.held.keys()):
                data: SubscriptionData = subscription(queue.topic, expression, self._clock.wall_ms(), kind)
                start = await self._start_offset(queue)
                self._check_open()
                self._hold(HeldQueue(queue, data, start))

    async def _balance(self) -> bool:
        # Assigned queues are not shared with other members.
        return True if self._assigned else await super()._balance()

    async def queues(self, topic: str) -> list[Queue]:
        """Return the readable queues of a topic."""
        route = await self._find_soon(self.client.wire_name(topic), afresh=True)
        if not route.readable:
            raise NoPermission(topic, "read")
        return [self._shown(queue) for queue in sorted(route.readable)]

    async def _find_soon(self, topic: str, *, afresh: bool = False) -> Route:
        timeout_s = self.client.options.request_timeout_s
        return await self.client.routes.find_soon(topic, timeout_s, afresh=afresh)

    @property
    def assignment(self) -> list[Queue]:
        """Queues that are read now."""
        return [self._shown(queue) for queue in sorted(self.held)]

    def _shown(self, queue: Queue) -> Queue:
        return queue._replace(topic=self.client.user_name(queue.topic))

    async def _start_offset(self, queue: Queue) -> int:
        sought = self._seeks.pop(queue, None)
        return sought if sought is not None else await super()._start_offset(queue)

    # --- batches --------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float | None = 5.0, *, count: int = 0) -> Batch | None:
        """Return the next messages of one queue, at most ``count``; None at the timeout.

        Earlier batches are marked as done, unless ``auto_commit`` is off. Raises AccessDenied or
        FilterRefused if there are no messages because brokers reject this consumer.
        """
        self._check_open()
        if self.options.auto_commit:
            self.done()
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        while True:
            batch = self._next_batch(count)
            if batch is not None:
                return batch
            refusal = self.refusal
            if refusal is not None:
                self.refusals.mark_reported()  # a later refusal is raised again
                raise refusal
            self._ready.clear()
            left_s = None if deadline_s is None else deadline_s - self._clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                return None
            try:
                async with asyncio.timeout(left_s):
                    await self._ready.wait()
            except TimeoutError:
                return None
            self._check_open()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._closed:
            raise StopAsyncIteration
        try:
            batch = await self.poll(None)
        except Closed:
            raise StopAsyncIteration from None
        assert batch is not None
        return batch

    def _next_batch(self, count: int) -> Batch | None:
        turn = self._turn
        while turn:
            held = next(iter(turn))
            del turn[held]
            if held.dropped or not held.waiting or held.paused:
                continue
            waiting = held.waiting
            if not count or count >= len(waiting):
                messages = list(waiting)
                waiting.clear()
            else:
                messages = [waiting.popleft() for _ in range(count)]
                turn[held] = None  # after the other queues
            if self.client.options.namespace:
                for message in messages:
                    message.topic = self.client.user_name(message.topic)
            held.room.set()
            batch = Batch(self._shown(held.queue), messages, held)
            self._returned.append(batch)
            self.stats.worked(held.queue.topic, len(messages), 0, 0.0)
            return batch
        return None

    def done(self, *batches: Batch) -> None:
        """Mark these batches, or all returned ones, as done. The next commit saves the progress."""
        named = {id(batch) for batch in batches}
        for batch in batches or tuple(self._returned):
            batch._held.done(batch)
        self._returned = [batch for batch in self._returned if named and id(batch) not in named]

    def arrived(self, held: HeldQueue) -> None:
        self._turn[held] = None
        self._ready.set()

    def failed(self, error: KeroloxError, topic: str, broker: str = "") -> bool:
        refused = super().failed(error, topic, broker)
        if refused:
            self._ready.set()
        return refused

    def pulled(self, held: HeldQueue, count: int, took_s: float) -> None:
        self.stats.pulled(held.queue.topic, count, took_s)

    def is_full(self, held: HeldQueue) -> bool:
        if super().is_full(held):
            return True
        total = sum(len(each.waiting) for each in self.held.values())
        return total >= self.options.messages_max and bool(held.waiting)

    def load(self, held: HeldQueue) -> tuple[int, int]:
        # Returned batches do not count: the caller may take long to process them.
        return len(held.waiting), sum([len(message.body) for message in held.waiting])

    # --- positions ------------------------------------------------------------------------------------

    async def seek(self, queue: Queue, to: int | str | datetime) -> None:
        """Move to another position in a queue: an offset, ``"begin"``, ``"end"``, or a time."""
        wire = self._wire(queue)
        offset = await self._resolve(wire, to)
        held = self.held.get(wire)
        if held is None:
            self._seeks[wire] = offset
            return
        self._go_on(held, offset)

    def _go_on(self, held: HeldQueue, offset: int) -> None:
        self._turn.pop(held, None)
        self._returned = [batch for batch in self._returned if batch._held is not held]
        held.clear(offset)
        held.has_progress = True  # a seek backwards is progress, too
        self._start_pulling(held)

    async def seek_all(self, to: int | str | datetime) -> None:
        """Move to a position in all queues that are read."""
        await asyncio.gather(*(self.seek(queue, to) for queue in self.assignment))

    async def _resolve(self, queue: Queue, to: int | str | datetime) -> int:
        if isinstance(to, datetime):
            return await self.calls.offset_at(queue, int(to.timestamp() * 1000))
        if to == BEGIN:
            return await self.calls.min_offset(queue)
        if to == END:
            return await self.calls.max_offset(queue)
        if isinstance(to, str) or to < 0:
            raise OptionError("to", to, 'an offset from 0, "begin", "end", or a datetime')
        return to

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message to return."""
        held = self.held[self._wire(queue)]
        return held.waiting[0].queue_offset if held.waiting else held.next_offset

    async def offsets_for_time(self, queues: Iterable[Queue], when: datetime) -> dict[Queue, int]:
        """Return, for each queue, the offset of the first message stored at or after ``when``."""
        time_ms = int(when.timestamp() * 1000)
        wanted = list(queues)
        for topic in {self._wire(queue).topic for queue in wanted}:
            await self._find_soon(topic)
        found = await asyncio.gather(*(self.calls.offset_at(self._wire(queue), time_ms) for queue in wanted))
        return dict(zip(wanted, found, strict=True))

    async def bounds(self, queue: Queue) -> tuple[int, int]:
        """Return the first stored offset of a queue, and the offset of its next message."""
        wire = self._wire(queue)
        await self._find_soon(wire.topic)
        return await self.calls.min_offset(wire), await self.calls.max_offset(wire)

    async def committed(self, queue: Queue) -> int | None:
        """Return the group's offset at the broker; None without progress."""
        wire = self._wire(queue)
        await self._find_soon(wire.topic)
        return await self.keeping.load(wire)

    async def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Save progress and wait for completion: these offsets, or all returned batches.

        Raises the error of a queue that could not be saved; the other queues are saved.
        """
        if offsets is None:
            self.done()
            failed = await super()._save(list(self.held.values()))
        else:
            wanted = {self._wire(queue): offset for queue, offset in offsets.items()}
            failed = await self.keeping.save(wanted)
        for error in failed.values():
            raise error

    async def _save(self, queues: Sequence[HeldQueue]) -> dict[Queue, KeroloxError]:
        # Without auto_commit, only commit() saves progress.
        return await super()._save(queues) if self.options.auto_commit else {}

    def _resumed(self, held: HeldQueue) -> None:
        if held.waiting:
            self.arrived(held)

    def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        for queue, offset in offsets.items():
            held = self.held.get(queue)
            if held is not None:
                self._go_on(held, offset)

    # --- life -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave the group. The last batches are delivered again unless they were committed."""
        await super().close()
        self._ready.set()

    def _check_open(self) -> None:
        if self._closed or not self._is_open:
            raise Closed("this consumer is not open: use it in `async with`")
        self.client.check_home()

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self.client.nameservers.addresses),
                "PROP_CONSUME_TYPE": self.consume_type.value,
                "PROP_CONSUMEORDERLY": "false",
                "PROP_THREADPOOL_CORE_SIZE": "0",
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "PROP_CLIENT_VERSION": "PYTHON",
            },
            subscription_set=tuple(self.wanted.values()),
            mq_table={
                queue.wire(): ProcessQueueInfo(commit_offset=held.commit_offset, cached_msg_count=held.count)
                for queue, held in self.held.items()
            },
            status_table={topic: stats.status() for topic, stats in self.stats.topics.items()},
        )
