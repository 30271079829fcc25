"""Delivery of messages to concurrent handlers, in any order. See ``ordered.py`` for ordered delivery."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from kerolox.client.consume.handlers import Handler
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.consume.outcomes import Retry, Suspend, reason_of
from kerolox.client.messages import Queue, Received
from kerolox.protocol.reserved import RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.calls.routes import Route
    from kerolox.client.consume.push_consumer import PushConsumer

log = logging.getLogger(__name__)

GIVE_BACK_LEVEL_AFTER_TIMEOUT = 3
RETRY_HERE_S = 5.0  # pause before a local retry, when a failed message cannot be sent back


class HandlerCall:
    """Call of a handler with messages, until their outcome is settled."""

    __slots__ = ("began_s", "handler", "held", "messages", "overdue", "returned")

    def __init__(self, held: HeldQueue, handler: Handler, messages: list[Received], began_s: float) -> None:
        self.held = held
        self.handler = handler
        self.messages = messages
        self.began_s = began_s
        self.returned = False  # the handler has returned; failed messages remain to be sent back
        self.overdue = False  # the handler exceeded its time; the messages are delivered elsewhere

    def has_returned(self) -> bool:
        """Return ``returned``. A method, so that type checkers do not assume it unchanged after an await."""
        return self.returned


class Delivery:
    """Delivery of a consumer's messages to its handlers, with the set of running handlers."""

    def __init__(self, consumer: PushConsumer) -> None:
        self.consumer = consumer
        self.clock = consumer.client.clock
        self.options = consumer.options
        self._at_work: dict[HandlerCall, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = copy_context()
        self._became_idle = asyncio.Event()

    def start(self) -> None:
        """Start the delivery. Handlers run in copies of the context in which the consumer was opened."""
        self._context = copy_context()

    async def allowed(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        """Return the queues that may be taken now."""
        return queues

    def taken(self, held: HeldQueue) -> None:
        """React to a newly taken queue."""

    def route_changed(self, route: Route) -> None:
        """React to a changed route: other brokers may lead."""

    def is_full(self, held: HeldQueue) -> bool:
        """Return True while a queue must not be pulled."""
        raise NotImplementedError

    def arrived(self, held: HeldQueue) -> None:
        """React to messages that arrived in a queue."""
        raise NotImplementedError

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.consumer.client.spawn(work, self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_context_changed(self) -> bool:
        """True if a handler has set context variables in this task: the next message needs another task."""
        return copy_context() != self._context

    async def close(self) -> None:
        """Stop the delivery, and cancel running handlers as far as possible."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def not_taken(self, queues: Sequence[Queue]) -> None:
        """React to queues that were allowed but not taken."""

    async def released(self, queues: Sequence[HeldQueue]) -> None:
        """React to released queues."""

    async def wait_idle(self, queues: Sequence[HeldQueue]) -> None:
        """Wait until no handler works on these queues, or until the timeout."""
        deadline_s = self.clock.monotonic_s() + self.options.close_s
        wanted = set(queues)
        while any(call.held in wanted for call in self._at_work):
            left_s = deadline_s - self.clock.monotonic_s()
            if left_s <= 0:
                log.warning(
                    "handlers_still_at_work group=%s count=%d", self.consumer.group, len(self._at_work)
                )
                return
            self._became_idle.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._became_idle.wait()
            except TimeoutError:
                pass

    def _begin(self, held: HeldQueue, handler: Handler, messages: list[Received]) -> HandlerCall:
        call = HandlerCall(held, handler, messages, self.clock.monotonic_s())
        self._at_work[call] = None
        return call

    def _end(self, call: HandlerCall) -> None:
        del self._at_work[call]
        self._became_idle.set()


class ConcurrentDelivery(Delivery):
    """Concurrent delivery in any order. Failed messages are sent back and delivered again later."""

    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer)
        self._ready: deque[tuple[HeldQueue, Handler, list[Received]]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()  # workers with nothing to do

    def start(self) -> None:
        super().start()
        for _ in range(self.options.workers):
            self._start(self._work())
        self._start(self._watch_time())

    def is_full(self, held: HeldQueue) -> bool:
        return held.span >= self.options.queue_span_max

    def arrived(self, held: HeldQueue) -> None:
        waiting = held.waiting
        handler_of = self.consumer.handler_of
        if waiting and not held.queue.topic.startswith(RETRY_PREFIX):  # all of one topic, the usual case
            handler = handler_of(waiting[0].topic)
            count = handler.count
            messages = list(waiting)
            waiting.clear()
            if count == 1:
                self._ready.extend([(held, handler, [message]) for message in messages])
            else:
                self._ready.extend(
                    [
                        (held, handler, messages[start : start + count])
                        for start in range(0, len(messages), count)
                    ]
                )
        while waiting:
            topic = waiting[0].topic
            handler = handler_of(topic)
            chunk = [waiting.popleft()]
            while waiting and len(chunk) < handler.count and waiting[0].topic == topic:
                chunk.append(waiting.popleft())
            self._ready.append((held, handler, chunk))
        self._wake()

    def _wake(self) -> None:
        for _ in range(min(len(self._ready), len(self._idle))):
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

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
            call = self._begin(held, handler, messages)
            try:
                await self._consume(call)
            except Exception:
                log.exception("worker_failed group=%s", self.consumer.group)
                self._later(held, handler, messages)
            finally:
                self._end(call)
            if self._is_context_changed():
                self._start(self._work())
                return

    async def _consume(self, call: HandlerCall) -> None:
        held, handler, messages = call.held, call.handler, call.messages
        error = await self.consumer.call(handler, messages)
        call.returned = True
        held.consumed_at_ms = self.clock.wall_ms()
        failed = [] if error is None else _meant(error, messages)
        took_s = self.clock.monotonic_s() - call.began_s
        self.consumer.stats.worked(held.queue.topic, len(messages) - len(failed), len(failed), took_s)
        if call.overdue:
            return  # sent back already
        if error is None or not failed:
            held.done(messages)
            return
        log_failure(handler, failed, error)
        level = error.level if isinstance(error, Retry) else 0
        kept = await self._give_back(failed, level, reason_of(error))
        left = {message.queue_offset for message in kept}
        held.done(message for message in messages if message.queue_offset not in left)
        if kept:
            self._later(held, handler, kept)

    def _later(self, held: HeldQueue, handler: Handler, messages: list[Received]) -> None:
        """Retry messages locally, because they could not be sent back."""
        for message in messages:
            message.reconsume_times += 1
        self.clock.call_later(RETRY_HERE_S, lambda: self._again(held, handler, messages))

    def _again(self, held: HeldQueue, handler: Handler, messages: list[Received]) -> None:
        if not held.dropped and self.consumer.is_open:
            self._ready.append((held, handler, messages))
            self._wake()

    async def _give_back(self, messages: Sequence[Received], level: int, reason: str) -> list[Received]:
        """Send messages back. Return the rejected ones, whose offsets must not be committed."""
        if self.options.broadcasting:
            for message in messages:
                log.warning(
                    "message_not_retried topic=%s msg_id=%s why='broadcasting knows no retries'",
                    message.topic, message.msg_id,
                )  # fmt: skip
            return []
        give = self.consumer.send_back.give_back
        taken = await asyncio.gather(*(give(message, level, reason) for message in messages))
        return [message for message, is_taken in zip(messages, taken, strict=True) if not is_taken]

    async def _watch_time(self) -> None:
        """Send back messages whose handlers exceed their time limit. The handlers cannot be stopped."""
        limit_s = self.options.handler_s_max
        while True:
            await self.clock.sleep(min(60.0, max(0.05, limit_s / 4)))
            late_s = self.clock.monotonic_s() - limit_s
            for call in list(self._at_work):
                if call.began_s >= late_s or call.overdue or call.returned:
                    continue
                call.overdue = True
                messages = call.messages
                log.warning(
                    "handler_too_slow group=%s topic=%s msg_id=%s limit_s=%g",
                    self.consumer.group, call.held.queue.topic, messages[0].msg_id, limit_s,
                )  # fmt: skip
                reason = f"its handler took longer than {limit_s:g} s"
                kept = await self._give_back(messages, GIVE_BACK_LEVEL_AFTER_TIMEOUT, reason)
                left = {message.queue_offset for message in kept}
                call.held.done(message for message in messages if message.queue_offset not in left)
                if kept and call.has_returned():
                    self._later(call.held, call.handler, kept)
                elif kept:
                    messages[:] = kept  # not sent back: the handler keeps them
                    call.overdue = False


def _meant(error: Exception, messages: list[Received]) -> list[Received]:
    """Return the messages that a failure concerns."""
    if isinstance(error, Retry) and error.messages is not None:
        named = {id(message) for message in error.messages}
        return [message for message in messages if id(message) in named]
    return messages


def log_failure(handler: Handler, messages: Sequence[Received], error: Exception) -> None:
    first = messages[0]
    said = isinstance(error, Retry | Suspend)  # raised on purpose: no traceback needed
    log.log(
        logging.INFO if said else logging.WARNING,
        "not_taken handler=%r topic=%s msg_id=%s count=%d attempt=%d error=%r",
        handler,
        first.topic,
        first.msg_id,
        len(messages),
        first.reconsume_times,
        error,
        exc_info=None if said else error,
    )
