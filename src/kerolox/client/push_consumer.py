"""PushConsumer: brings messages to handlers.

::

    async with PushConsumer("127.0.0.1:9876", group="billing") as consumer:

        @consumer.on("orders", tags="paid || refunded")
        async def bill(message): ...      # returning acknowledges; raising brings it again later
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kerolox.client.client import Client
from kerolox.client.consume_stats import ConsumeStats
from kerolox.client.consumer_options import PushOptions
from kerolox.client.consuming import Consumer, expression_of
from kerolox.client.giving_back import GivingBack
from kerolox.client.handlers import Handle, Handler
from kerolox.client.held_queue import HeldQueue
from kerolox.client.ids import unique_keys
from kerolox.client.messages import Queue, Received
from kerolox.client.names import retry_topic
from kerolox.client.options import ClientOptions
from kerolox.client.outcomes import DeadLetter, Retry, Suspend
from kerolox.client.tracing import ConsumeOutcome, Tracer
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol import properties as names
from kerolox.protocol.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)

log = logging.getLogger(__name__)

LOCK_S = 30.0  # a lock counts for so long here; at the broker for a minute
RELOCK_S = 20.0
GIVE_BACK_LEVEL_AFTER_TIMEOUT = 3
RETRY_HERE_S = 5.0  # when a message can neither be taken nor given back

F = TypeVar("F", bound=Handle)


class ConsumeHook:
    """Override what you need. Called around every handler, so it must be quick."""

    def before_consume(self, messages: Sequence[Received]) -> None:
        """A handler is about to be called."""

    def after_consume(
        self, messages: Sequence[Received], error: BaseException | None, elapsed_s: float
    ) -> None:
        """It returned, or raised."""


class PushConsumer(Consumer):
    """A member of a group whose messages are brought to handlers."""

    options: PushOptions

    def __init__(
        self,
        where: Client | ClientOptions | str | Sequence[str] | None = None,
        *,
        group: str,
        options: PushOptions | None = None,
        hooks: Iterable[ConsumeHook] = (),
    ) -> None:
        options = options or PushOptions()
        super().__init__(where, group, options)
        self.hooks = list(hooks)
        self.stats = ConsumeStats(self._clock.monotonic_s)
        self.tracer = Tracer(self.client, group, options.trace_topic, "CONSUME") if options.trace else None
        self._handlers: dict[str, Handler] = {}  # by topic, as users know it
        self._giving_back = GivingBack(self.client, self.group, self.calls, options.attempts_max)
        self._ready: deque[tuple[HeldQueue, Handler, list[Received]]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()  # workers with nothing to do
        self._at_work: dict[object, tuple[HeldQueue, list[Received], float]] = {}
        self._abandoned: set[object] = set()
        self._became_idle = asyncio.Event()
        self._slots = asyncio.Semaphore(options.workers)
        self._pool: ThreadPoolExecutor | None = None
        if not options.broadcasting:
            self.want(retry_topic(self.group), "*")

    # --- subscribing ----------------------------------------------------------------------------------

    def on(self, topic: str, *, tags: str = "*", sql: str | None = None, batch: int = 0) -> Callable[[F], F]:
        """Decorator: call this function with the messages of a topic. See :meth:`subscribe`."""

        def register(function: F) -> F:
            self.subscribe(topic, function, tags=tags, sql=sql, batch=batch)
            return function

        return register

    def subscribe(
        self, topic: str, handler: Handle, *, tags: str = "*", sql: str | None = None, batch: int = 0
    ) -> None:
        """Call ``handler`` with the messages of a topic: awaited if it is ``async``, else in a thread.

        ``tags`` are joined by ``||``; ``sql`` is an SQL92 condition over properties instead. With ``batch``
        the handler gets lists of up to so many messages of one queue.
        """
        if batch < 0:
            raise OptionError("batch", batch, "0 for single messages, or the most of a list")
        self._handlers[topic] = Handler(handler, batch, self._threads)
        self.want(self.client.wire_name(topic), *expression_of(tags, sql))

    def unsubscribe(self, topic: str) -> None:
        self.unwant(self.client.wire_name(topic))
        self._handlers.pop(topic, None)

    def pause(self, *queues: Queue) -> None:
        """Pull no more of these queues, or of all; what is here already is still brought."""
        for held in (
            [self.held[queue] for queue in queues if queue in self.held] if queues else self.held.values()
        ):
            held.paused = True

    def resume(self, *queues: Queue) -> None:
        for held in (
            [self.held[queue] for queue in queues if queue in self.held] if queues else self.held.values()
        ):
            held.paused = False
            held.room.set()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.options.workers, thread_name_prefix=f"kerolox-{self.group}")
        return self._pool

    # --- life -----------------------------------------------------------------------------------------

    async def open(self) -> PushConsumer:
        if self._is_open:
            return self
        await super().open()
        if self.options.ordered:
            self._start(self._keep_locked())
        else:
            for _ in range(self.options.workers):
                self._start(self._work())
            self._start(self._watch_time())
        return self

    async def close(self) -> None:
        # Workers are among the tasks that are stopped: first nothing new, then what they have at hand.
        if self._is_open and not self._closed:
            for held in self.held.values():
                held.drop()
            self._ready.clear()
            await self._wait_idle(list(self.held.values()))
        await super().close()

    async def _finish(self) -> None:
        if self.tracer is not None:
            await self.tracer.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- messages come --------------------------------------------------------------------------------

    def _pulled(self, held: HeldQueue, count: int, took_s: float) -> None:
        self.stats.pulled(held.queue.topic, count, took_s)

    def _is_full(self, held: HeldQueue) -> bool:
        if super()._is_full(held):
            return True
        if self.options.ordered:
            return held.locked_until_s < self._clock.monotonic_s()
        return held.span >= self.options.queue_span_max

    def _arrived(self, held: HeldQueue) -> None:
        own_retries = held.queue.topic == retry_topic(self.group)
        if own_retries or self.client.options.namespace:
            for message in held.waiting:
                self._restore_topic(message, own_retries)
        if self.options.ordered:
            return  # its own task takes from held.waiting
        waiting = held.waiting
        while waiting:
            handler = self._handler_of(waiting[0])
            chunk = [waiting.popleft()]
            while (
                waiting
                and len(chunk) < handler.count
                and (not own_retries or waiting[0].topic == chunk[0].topic)
            ):
                chunk.append(waiting.popleft())
            self._ready.append((held, handler, chunk))
        self._wake_workers()

    def _restore_topic(self, message: Received, own_retries: bool) -> None:
        """A message that comes again has the topic it was sent to, without the namespace."""
        if own_retries:
            message.topic = message.get(names.RETRY_TOPIC) or message.topic
        message.topic = self.client.user_name(message.topic)

    def _handler_of(self, message: Received) -> Handler:
        found = self._handlers.get(message.topic)
        if found is None:
            # Of a topic that was unsubscribed since, or by the group's members of an older release.
            found = self._handlers[message.topic] = Handler(_nobody, 0, self._threads)
        return found

    def _wake_workers(self) -> None:
        for _ in range(min(len(self._ready), len(self._idle))):
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # --- one after the other, by many workers ---------------------------------------------------------

    async def _work(self) -> None:
        ready = self._ready
        while True:
            while not ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            held, handler, messages = ready.popleft()
            if held.dropped:
                continue
            try:
                await self._consume(held, handler, messages)
            except Exception:
                log.exception("worker_failed group=%s", self.group)

    async def _consume(self, held: HeldQueue, handler: Handler, messages: list[Received]) -> None:
        token = object()
        began_s = self._clock.monotonic_s()
        self._at_work[token] = (held, messages, began_s)
        try:
            error = await self._call(handler, messages)
        finally:
            del self._at_work[token]
            self._became_idle.set()
        if token in self._abandoned:
            self._abandoned.discard(token)  # given to somebody else meanwhile
            return
        held.consumed_at_ms = self._clock.wall_ms()
        failed = [] if error is None else _meant(error, messages)
        took_s = self._clock.monotonic_s() - began_s
        self.stats.worked(held.queue.topic, len(messages) - len(failed), len(failed), took_s)
        if not failed:
            held.done(messages)
            return
        assert error is not None
        _log_failure(handler, failed, error)
        kept = await self._give_back(held, failed, error.level if isinstance(error, Retry) else 0)
        left = {message.queue_offset for message in kept}
        held.done(message for message in messages if message.queue_offset not in left)
        if kept:
            for message in kept:
                message.reconsume_times += 1
            self._clock.call_later(RETRY_HERE_S, lambda: self._again(held, handler, kept))

    def _again(self, held: HeldQueue, handler: Handler, messages: list[Received]) -> None:
        if not held.dropped and not self._closed:
            self._ready.append((held, handler, messages))
            self._wake_workers()

    async def _give_back(self, held: HeldQueue, messages: Sequence[Received], level: int) -> list[Received]:
        """Those the broker did not take: their offsets must not be passed."""
        if self.options.broadcasting:
            for message in messages:
                log.warning(
                    "message_not_retried topic=%s msg_id=%s why='broadcasting knows no retries'",
                    message.topic, message.msg_id,
                )  # fmt: skip
            return []
        taken = await asyncio.gather(*(self._giving_back.give_back(message, level) for message in messages))
        return [message for message, is_taken in zip(messages, taken, strict=True) if not is_taken]

    async def _call(self, handler: Handler, messages: Sequence[Received]) -> Exception | None:
        for hook in self.hooks:
            hook.before_consume(messages)
        request_id = self._trace_before(messages)
        began_s = self._clock.monotonic_s()
        error: Exception | None = None
        try:
            await handler(messages)
        except Exception as raised:
            error = raised
        elapsed_s = self._clock.monotonic_s() - began_s
        self._trace_after(messages, request_id, elapsed_s, error)
        for hook in self.hooks:
            hook.after_consume(messages, error, elapsed_s)
        return error

    async def _watch_time(self) -> None:
        """A message at work for too long is given to somebody else; its handler cannot be stopped."""
        limit_s = self.options.handler_s_max
        while True:
            await self._clock.sleep(min(60.0, max(0.05, limit_s / 4)))
            late_s = self._clock.monotonic_s() - limit_s
            late = [
                item
                for item in self._at_work.items()
                if item[1][2] < late_s and item[0] not in self._abandoned
            ]
            for token, (held, messages, _) in late:
                self._abandoned.add(token)
                log.warning(
                    "handler_too_slow group=%s topic=%s msg_id=%s limit_s=%g",
                    self.group, held.queue.topic, messages[0].msg_id, limit_s,
                )  # fmt: skip
                kept = await self._give_back(held, messages, GIVE_BACK_LEVEL_AFTER_TIMEOUT)
                if kept:
                    self._abandoned.discard(token)  # nobody else has it: its handler goes on
                else:
                    held.done(messages)

    async def _wait_idle(self, queues: Sequence[HeldQueue]) -> None:
        deadline_s = self._clock.monotonic_s() + self.options.close_s
        wanted = set(map(id, queues))

        def at_work() -> bool:
            return any(id(held) in wanted for held, _, _ in self._at_work.values())

        while at_work():
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                log.warning("handlers_still_at_work group=%s count=%d", self.group, len(self._at_work))
                return
            self._became_idle.clear()
            try:
                await asyncio.wait_for(self._became_idle.wait(), left_s)
            except TimeoutError:
                pass

    # --- in order, one handler per queue --------------------------------------------------------------

    def _held(self, held: HeldQueue) -> None:
        if self.options.ordered:
            held.locked_until_s = self._clock.monotonic_s() + LOCK_S
            held.locked_at_ms = self._clock.wall_ms()
            held.work = self.client.spawn(self._consume_in_order(held))

    async def _allowed(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        if not self.options.ordered:
            return queues
        locked: set[Queue] = set()
        for broker in dict.fromkeys(queue.broker for queue in queues):
            try:
                locked |= await self.calls.lock(broker, [queue for queue in queues if queue.broker == broker])
            except KeroloxError as error:
                log.warning("not_locked group=%s broker=%s error=%r", self.group, broker, str(error))
        return [queue for queue in queues if queue in locked]

    async def _keep_locked(self) -> None:
        while True:
            await self._clock.sleep(RELOCK_S)
            by_broker: dict[str, list[HeldQueue]] = {}
            for held in self.held.values():
                by_broker.setdefault(held.queue.broker, []).append(held)
            for broker, queues in by_broker.items():
                try:
                    locked = await self.calls.lock(broker, [held.queue for held in queues])
                except KeroloxError as error:
                    log.warning("not_locked group=%s broker=%s error=%r", self.group, broker, str(error))
                    continue
                until_s = self._clock.monotonic_s() + LOCK_S
                for held in queues:
                    if held.queue in locked:
                        held.locked_until_s = until_s
                        held.locked_at_ms = self._clock.wall_ms()
                        held.room.set()
                    else:
                        held.locked_until_s = 0.0
                        log.warning("lock_lost group=%s queue=%s", self.group, held.queue)

    async def _consume_in_order(self, held: HeldQueue) -> None:
        waiting = held.waiting
        while not held.is_gone():
            if not waiting:
                held.arrived.clear()
                await held.arrived.wait()
                continue
            lock_left_s = held.locked_until_s - self._clock.monotonic_s()
            if lock_left_s <= 0:
                await self._clock.sleep(0.1)  # somebody else may have the queue
                continue
            handler = self._handler_of(waiting[0])
            chunk = [message for message, _ in zip(waiting, range(handler.count), strict=False)]
            async with self._slots:
                if held.is_gone():
                    return
                rest_s = await self._consume_next(held, handler, chunk)
            if rest_s:
                await self._clock.sleep(rest_s)

    async def _consume_next(self, held: HeldQueue, handler: Handler, chunk: list[Received]) -> float:
        """Call the handler with the next messages; how long the queue has to rest."""
        token = object()
        began_s = self._clock.monotonic_s()
        self._at_work[token] = (held, chunk, began_s)
        try:
            error = await self._call(handler, chunk)
            held.consumed_at_ms = self._clock.wall_ms()
            if error is not None and not await self._past_limit(held, chunk, error):
                _log_failure(handler, chunk, error)
                self.stats.worked(held.queue.topic, 0, len(chunk), self._clock.monotonic_s() - began_s)
                for message in chunk:
                    message.reconsume_times += 1
                return error.seconds if isinstance(error, Suspend) else self.options.suspend_s
            self.stats.worked(held.queue.topic, len(chunk), 0, self._clock.monotonic_s() - began_s)
            held.done(chunk)
            for _ in chunk:
                if held.waiting:  # empty when it was dropped meanwhile
                    held.waiting.popleft()
            return 0.0
        finally:
            del self._at_work[token]
            self._became_idle.set()

    async def _past_limit(self, held: HeldQueue, chunk: Sequence[Received], error: Exception) -> bool:
        """Whether the queue goes on without them: they failed too often, and are dead letters now."""
        limit = self.options.attempts_max
        if not isinstance(error, DeadLetter) and (
            limit < 0 or any(message.reconsume_times < limit for message in chunk)
        ):
            return False
        sent = [await self._giving_back.send_again(message, -1) for message in chunk]
        return all(sent)

    async def _released(self, queues: Sequence[HeldQueue]) -> None:
        if not self.options.ordered:
            return
        for held in queues:
            if held.work is not None:
                held.work.cancel()
        for broker in dict.fromkeys(held.queue.broker for held in queues):
            try:
                await self.calls.unlock(
                    broker, [held.queue for held in queues if held.queue.broker == broker]
                )
            except KeroloxError as error:
                log.info("not_unlocked group=%s broker=%s error=%r", self.group, broker, str(error))

    # --- trace ----------------------------------------------------------------------------------------

    def _trace_before(self, messages: Sequence[Received]) -> str:
        if self.tracer is None:
            return ""
        request_id = unique_keys().next()
        for message in messages:
            if message.get(names.TRACE_ON) != "false":
                self.tracer.consuming(
                    message.topic,
                    message.msg_id,
                    message.get(names.KEYS),
                    request_id,
                    retry_times=message.reconsume_times,
                    region=message.get(names.MSG_REGION, "DefaultRegion"),
                )
        return request_id

    def _trace_after(
        self, messages: Sequence[Received], request_id: str, elapsed_s: float, error: Exception | None
    ) -> None:
        if self.tracer is None:
            return
        outcome = ConsumeOutcome.SUCCESS
        if error is not None:
            outcome = (
                ConsumeOutcome.FAILED if isinstance(error, Retry | Suspend) else ConsumeOutcome.EXCEPTION
            )
        for message in messages:
            if message.get(names.TRACE_ON) != "false":
                self.tracer.consumed(
                    message.topic,
                    message.msg_id,
                    message.get(names.KEYS),
                    request_id,
                    cost_ms=round(elapsed_s * 1000 / len(messages)),
                    outcome=outcome,
                )

    # --- what the admin side asks ---------------------------------------------------------------------

    def running_info(self) -> ConsumerRunningInfo:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self.client.nameservers.addresses),
                "PROP_CONSUME_TYPE": self.consume_type.value,
                "PROP_CONSUMEORDERLY": str(self.options.ordered).lower(),
                "PROP_THREADPOOL_CORE_SIZE": str(self.options.workers),
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "PROP_CLIENT_VERSION": "PYTHON",
            },
            subscription_set=tuple(self.wanted.values()),
            mq_table={
                queue.wire(): ProcessQueueInfo(
                    commit_offset=held.commit_offset,
                    cached_msg_count=held.count,
                    cached_msg_min_offset=held.first_open,
                    cached_msg_max_offset=held.last_open,
                    cached_msg_size_in_mib=held.size_bytes >> 20,
                    locked=held.locked_until_s > now_s,
                    last_lock_timestamp=held.locked_at_ms,
                    dropped=held.dropped,
                    last_pull_timestamp=now_ms - round((now_s - held.pulled_at_s) * 1000),
                    last_consume_timestamp=held.consumed_at_ms,
                )
                for queue, held in self.held.items()
            },
            status_table={topic: stats.status() for topic, stats in self.stats.topics.items()},
        )

    async def consume_directly(self, message: Received) -> ConsumeDirectlyResult:
        began_s = self._clock.monotonic_s()
        self._restore_topic(message, message.topic == retry_topic(self.group))
        error = await self._call(self._handler_of(message), [message])
        result = ConsumeResult.CR_SUCCESS
        if isinstance(error, Retry | Suspend):
            result = ConsumeResult.CR_LATER
        elif error is not None:
            result = ConsumeResult.CR_THROW_EXCEPTION
        return ConsumeDirectlyResult(
            order=self.options.ordered,
            auto_commit=True,
            consume_result=result,
            remark=None if error is None else repr(error),
            spent_time_mills=round((self._clock.monotonic_s() - began_s) * 1000),
        )


async def _nobody(message: Received) -> None:
    raise Retry(f"nobody handles messages of topic {message.topic!r} in this process")


def _meant(error: Exception, messages: list[Received]) -> list[Received]:
    """The messages a failure is about."""
    if isinstance(error, Retry) and error.messages is not None:
        named = {id(message) for message in error.messages}
        return [message for message in messages if id(message) in named]
    return messages


def _log_failure(handler: Handler, messages: Sequence[Received], error: Exception) -> None:
    first = messages[0]
    words: tuple[Any, ...] = (
        handler, first.topic, first.msg_id, len(messages), first.reconsume_times, error,
    )  # fmt: skip
    said = isinstance(error, Retry | Suspend)
    log.log(
        logging.INFO if said else logging.WARNING,
        "not_taken handler=%r topic=%s msg_id=%s count=%d attempt=%d error=%r",
        *words,
        exc_info=None if said else error,
    )
