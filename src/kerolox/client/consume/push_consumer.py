"""PushConsumer: delivers messages to handlers.

::

    async with PushConsumer("127.0.0.1:9876", group="billing") as consumer:

        @consumer.on("orders", tags="paid || refunded")
        async def bill(message): ...      # returning acknowledges; raising retries it later
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, overload

from kerolox.client.calls.routes import Route
from kerolox.client.cluster.client import Client
from kerolox.client.consume.consume_stats import ConsumeRates
from kerolox.client.consume.consumer import Consumer
from kerolox.client.consume.consumer_options import PushOptions, expression_of
from kerolox.client.consume.delivery import ConcurrentDelivery, Delivery
from kerolox.client.consume.handlers import BatchHandle, Handle, Handler, Many, One
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.consume.ordered import OrderedDelivery
from kerolox.client.consume.outcomes import Retry, Suspend
from kerolox.client.consume.send_back import SendBack
from kerolox.client.ids import unique_keys
from kerolox.client.messages import Queue, Received
from kerolox.client.names import checked_topic, retry_topic
from kerolox.client.options import ClientOptions
from kerolox.client.send.tracing import ConsumeOutcome, Tracer
from kerolox.client.user_code import HandlerExit, contained
from kerolox.errors import OptionError
from kerolox.protocol import properties as names
from kerolox.protocol.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)

log = logging.getLogger(__name__)


class ConsumeHook:
    """Base of consume hooks. Its methods are called around every handler call and must be fast."""

    def before_consume(self, messages: Sequence[Received]) -> None:
        """React before a handler is called."""

    def after_consume(
        self, messages: Sequence[Received], error: BaseException | None, elapsed_s: float
    ) -> None:
        """React after a handler returned or raised."""


class PushConsumer(Consumer):
    """Group member that delivers messages to handlers."""

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
        self.stats = ConsumeRates(self._clock.monotonic_s)
        self.tracer = Tracer(self.client, group, options.trace_topic, "CONSUME") if options.trace else None
        self._handlers: dict[str, Handler] = {}  # by topic, as users know it
        self.send_back = SendBack(self.client, self.group, self.calls, options.attempts_max)
        self._delivery: Delivery = OrderedDelivery(self) if options.ordered else ConcurrentDelivery(self)
        self._pool: ThreadPoolExecutor | None = None
        if not options.broadcasting:
            self.want(retry_topic(self.group), "*")

    # --- subscribing ----------------------------------------------------------------------------------

    @overload
    def on(self, topic: str, *, tags: str = "*", sql: str | None = None) -> Callable[[One], One]: ...

    @overload
    def on(
        self, topic: str, *, tags: str = "*", sql: str | None = None, batch: int
    ) -> Callable[[Many], Many]: ...

    def on(
        self, topic: str, *, tags: str = "*", sql: str | None = None, batch: int = 0
    ) -> Callable[[Any], Any]:
        """Decorator: call this function with the messages of a topic. See :meth:`subscribe`.

        Raises OptionError when the topic has a handler already.
        """

        def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self._check_free(topic, function)
            self.subscribe(topic, function, tags=tags, sql=sql, batch=batch)
            return function

        return register

    @overload
    def subscribe(self, topic: str, handler: Handle, *, tags: str = "*", sql: str | None = None) -> None: ...

    @overload
    def subscribe(
        self, topic: str, handler: BatchHandle, *, tags: str = "*", sql: str | None = None, batch: int
    ) -> None: ...

    def subscribe(
        self,
        topic: str,
        handler: Callable[[Any], Any],
        *,
        tags: str = "*",
        sql: str | None = None,
        batch: int = 0,
    ) -> None:
        """Call ``handler`` with the messages of a topic: awaited if it is ``async``, else in a thread.

        ``tags`` are joined by ``||``; ``sql`` is an SQL92 condition over properties instead. With ``batch``
        the handler gets lists of up to so many messages of one queue. A second call for a topic replaces its
        handler and its condition.
        """
        checked_topic(topic)
        called = Handler(handler, batch, self._threads)
        self.want(self.client.wire_name(topic), *expression_of(tags, sql))  # may raise, without a change
        self._handlers[topic] = called

    def unsubscribe(self, topic: str) -> None:
        self.unwant(self.client.wire_name(topic))
        self._handlers.pop(topic, None)

    def _check_free(self, topic: str, function: Callable[[Any], Any]) -> None:
        if topic not in self._handlers or self.client.wire_name(topic) not in self.wanted:
            return
        name = getattr(function, "__qualname__", repr(function))
        raise OptionError(
            "topic",
            topic,
            f"a topic without a handler: {self._handlers[topic]!r} has it. Take tags='a || b' and branch on "
            f"message.tags in one handler, give {name} to a consumer of another group, or replace the "
            "handler with subscribe()",
        )

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.options.workers, thread_name_prefix=f"kerolox-{self.group}")
        return self._pool

    # --- life -----------------------------------------------------------------------------------------

    async def open(self) -> Self:
        if not self._is_open:
            await super().open()
            self._delivery.start()
            return self
        return await super().open()

    async def _finish(self) -> None:
        await self._delivery.close()
        if self.tracer is not None:
            await self.tracer.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def save(self, queues: Sequence[HeldQueue]) -> None:
        """Save the progress of queues, and wait for completion."""
        await self._save(queues)

    # --- arrival of messages --------------------------------------------------------------------------

    def pulled(self, held: HeldQueue, count: int, took_s: float) -> None:
        self.stats.pulled(held.queue.topic, count, took_s)

    def is_full(self, held: HeldQueue) -> bool:
        return super().is_full(held) or self._delivery.is_full(held)

    def arrived(self, held: HeldQueue) -> None:
        own_retries = held.queue.topic == retry_topic(self.group)
        if own_retries or self.client.options.namespace:
            for message in held.waiting:
                self._restore_topic(message, own_retries)
        self._delivery.arrived(held)

    def route_changed(self, route: Route) -> None:
        super().route_changed(route)
        self._delivery.route_changed(route)

    def _taken(self, held: HeldQueue) -> None:
        self._delivery.taken(held)

    async def _allowed(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        return await self._delivery.allowed(queues)

    async def _not_taken(self, queues: Sequence[Queue]) -> None:
        await self._delivery.not_taken(queues)

    async def _wait_idle(self, queues: Sequence[HeldQueue]) -> None:
        await self._delivery.wait_idle(queues)

    async def _released(self, queues: Sequence[HeldQueue]) -> None:
        await self._delivery.released(queues)

    def _restore_topic(self, message: Received, own_retries: bool) -> None:
        """Set the topic of a message to the original one, without the namespace."""
        if own_retries:
            message.topic = message.get(names.RETRY_TOPIC) or message.topic
        message.topic = self.client.user_name(message.topic)

    def handler_of(self, topic: str) -> Handler:
        found = self._handlers.get(topic)
        if found is None:
            # A topic without subscription: unsubscribed since, or used by older members of the group.
            found = self._handlers[topic] = Handler(_nobody, 0, self._threads)
        return found

    # --- handlers -------------------------------------------------------------------------------------

    async def call(self, handler: Handler, messages: Sequence[Received]) -> Exception | None:
        """Call a handler. Return the exception it raised; None on success."""
        watched = bool(self.hooks) or self.tracer is not None
        request_id = ""
        if watched:
            request_id = self._trace_before(messages)
            self._tell_hooks(lambda hook: hook.before_consume(messages))
        began_s = self._clock.monotonic_s() if watched else 0.0
        error: Exception | None = None
        try:
            if handler.is_async:  # without a coroutine in between
                await handler.function(list(messages) if handler.batch else messages[0])
            else:
                await handler(messages)
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = Retry(f"the handler was cancelled from inside: {raised!r}")
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else self._exited(handler, raised)
        if watched:
            elapsed_s = self._clock.monotonic_s() - began_s
            self._trace_after(messages, request_id, elapsed_s, error)
            self._tell_hooks(lambda hook: hook.after_consume(messages, error, elapsed_s))
        return error

    def _exited(self, handler: Handler, raised: BaseException) -> HandlerExit:
        """Log a handler's SystemExit and the like. The message counts as not taken.

        In an async handler SystemExit and KeyboardInterrupt also end the program, as in any task; a thread's
        end only the call.
        """
        ends = handler.is_async and isinstance(raised, SystemExit | KeyboardInterrupt)
        log.error(
            "handler_exited group=%s handler=%r error=%r next=%r",
            self.group,
            handler,
            raised,
            "the program ends; the message is delivered again"
            if ends
            else "the message is retried; to stop consuming, close the consumer",
        )
        if ends:
            self.client.end_program(raised)
        return HandlerExit(raised)

    def _tell_hooks(self, tell: Callable[[ConsumeHook], None]) -> None:
        for hook in self.hooks:
            try:
                contained(tell, hook)
            except Exception:
                log.exception("hook_failed hook=%r", hook)

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

    # --- requests of administrators -------------------------------------------------------------------

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
        error = await self.call(self.handler_of(message.topic), [message])
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
    raise Retry(f"this process has no handler for messages of topic {message.topic!r}")
