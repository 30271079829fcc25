"""Ordered consumption: one handler per queue, in order, while the broker keeps the queue locked for us."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kerolox.client.handlers import Handler
from kerolox.client.held_queue import HeldQueue
from kerolox.client.messages import Queue, Received
from kerolox.client.outcomes import DeadLetter, Suspend
from kerolox.client.work import Work, log_failure
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.client.push_consumer import PushConsumer

log = logging.getLogger(__name__)

LOCK_S = 30.0  # a lock counts for so long here; at the broker for a minute
RELOCK_S = 20.0
LOCK_LOOK_S = 0.1


class InOrder(Work):
    """What fails is tried again in place; the queue rests meanwhile."""

    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer)
        self._calls = consumer.calls
        self._slots = asyncio.Semaphore(self.options.workers)

    def start(self) -> None:
        self.consumer.start_task(self._keep_locked())

    def is_full(self, held: HeldQueue) -> bool:
        return held.locked_until_s < self.clock.monotonic_s()

    def arrived(self, held: HeldQueue) -> None:
        """The queue's own task takes them."""

    # --- locks ----------------------------------------------------------------------------------------

    async def allowed(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        locked: set[Queue] = set()
        for broker in dict.fromkeys(queue.broker for queue in queues):
            try:
                locked |= await self._calls.lock(
                    broker, [queue for queue in queues if queue.broker == broker]
                )
            except KeroloxError as error:
                log.warning("not_locked group=%s broker=%s error=%r", self.consumer.group, broker, str(error))
        return [queue for queue in queues if queue in locked]

    def held(self, held: HeldQueue) -> None:
        self._note_lock(held)
        held.work = self.consumer.client.spawn(self._consume(held))

    def _note_lock(self, held: HeldQueue) -> None:
        held.locked_until_s = self.clock.monotonic_s() + LOCK_S
        held.locked_at_ms = self.clock.wall_ms()
        held.room.set()

    async def _keep_locked(self) -> None:
        while True:
            await self.clock.sleep(RELOCK_S)
            by_broker: dict[str, list[HeldQueue]] = {}
            for held in self.consumer.held.values():
                by_broker.setdefault(held.queue.broker, []).append(held)
            for broker, queues in by_broker.items():
                try:
                    locked = await self._calls.lock(broker, [held.queue for held in queues])
                except KeroloxError as error:
                    log.warning(
                        "not_locked group=%s broker=%s error=%r", self.consumer.group, broker, str(error)
                    )
                    continue
                for held in queues:
                    if held.queue in locked:
                        self._note_lock(held)
                    else:
                        held.locked_until_s = 0.0
                        log.warning("lock_lost group=%s queue=%s", self.consumer.group, held.queue)

    async def released(self, queues: Sequence[HeldQueue]) -> None:
        for held in queues:
            if held.work is not None:
                held.work.cancel()
        for broker in dict.fromkeys(held.queue.broker for held in queues):
            try:
                await self._calls.unlock(
                    broker, [held.queue for held in queues if held.queue.broker == broker]
                )
            except KeroloxError as error:
                log.info("not_unlocked group=%s broker=%s error=%r", self.consumer.group, broker, str(error))

    # --- messages -------------------------------------------------------------------------------------

    async def _consume(self, held: HeldQueue) -> None:
        waiting = held.waiting
        while not held.is_gone():
            if not waiting:
                held.arrived.clear()
                await held.arrived.wait()
                continue
            if held.locked_until_s <= self.clock.monotonic_s():
                await self.clock.sleep(LOCK_LOOK_S)  # somebody else may have the queue
                continue
            handler = self.consumer.handler_of(waiting[0].topic)
            chunk = list(islice(waiting, handler.count))
            async with self._slots:
                if held.is_gone():
                    return
                rest_s = await self._consume_next(held, handler, chunk)
            if rest_s:
                await self.clock.sleep(rest_s)

    async def _consume_next(self, held: HeldQueue, handler: Handler, chunk: list[Received]) -> float:
        """Call the handler with the next messages; how long the queue has to rest."""
        token = object()
        began_s = self.clock.monotonic_s()
        self._at_work[token] = (held, chunk, began_s)
        stats, topic = self.consumer.stats, held.queue.topic
        try:
            error = await self.consumer.call(handler, chunk)
            held.consumed_at_ms = self.clock.wall_ms()
            if error is not None and not await self._past_limit(chunk, error):
                log_failure(handler, chunk, error)
                stats.worked(topic, 0, len(chunk), self.clock.monotonic_s() - began_s)
                for message in chunk:
                    message.reconsume_times += 1
                return error.seconds if isinstance(error, Suspend) else self.options.suspend_s
            stats.worked(topic, len(chunk), 0, self.clock.monotonic_s() - began_s)
            held.done(chunk)
            for _ in chunk:
                if held.waiting:  # empty when it was dropped meanwhile
                    held.waiting.popleft()
            return 0.0
        finally:
            del self._at_work[token]
            self._became_idle.set()

    async def _past_limit(self, chunk: Sequence[Received], error: Exception) -> bool:
        """Whether the queue goes on without them: they failed too often, and are dead letters now."""
        limit = self.options.attempts_max
        too_often = limit >= 0 and all(message.reconsume_times >= limit for message in chunk)
        if not too_often and not isinstance(error, DeadLetter):
            return False
        sent = [await self.consumer.giving_back.send_again(message, -1) for message in chunk]
        return all(sent)
