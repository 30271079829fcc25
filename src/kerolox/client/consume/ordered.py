"""Ordered consumption: one handler per queue, in order, while the broker holds the queue's lock for this
client.

Locks are kept in the memory of the leader and belong to the connection over which they were requested. After
a change of leader or a closed connection, no handler is called before the lock is granted again: another
member may hold it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from kerolox.client.calls.routes import MASTER, Route
from kerolox.client.consume.delivery import Delivery, log_failure
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.consume.outcomes import DeadLetter, Suspend, reason_of
from kerolox.client.messages import Queue, Received
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.client.consume.push_consumer import PushConsumer
    from kerolox.net.peer import Peer

log = logging.getLogger(__name__)

LOCK_S = 30.0  # validity of a lock at the client; a minute at the broker
RELOCK_S = 20.0
RELOCK_SOON_S = 1.0  # while a lock is missing
LOCK_LOOK_S = 0.1


class OrderedDelivery(Delivery):
    """Ordered delivery. A failed message is retried in place; the queue pauses meanwhile."""

    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer)
        self._calls = consumer.calls
        self._slots = asyncio.Semaphore(self.options.workers)
        self._locked: set[Queue] = set()  # queues locked at the brokers by this client
        self._locked_at: dict[str, str] = {}  # by broker name: address of the broker that granted the locks
        self._locked_over: dict[str, Peer | None] = {}  # by broker name: connection that owns the locks
        self._lock_now = asyncio.Event()
        self._late: dict[Queue, HeldQueue] = {}  # released queues whose handler is still running

    def start(self) -> None:
        super().start()
        self._start(self._keep_locked())

    async def close(self) -> None:
        await super().close()
        await self._end_work([held.work for held in self._late.values()])
        await self._unlock(list(self._locked))

    def is_full(self, held: HeldQueue) -> bool:
        return held.locked_until_s < self.clock.monotonic_s()

    def arrived(self, held: HeldQueue) -> None:
        """Do nothing: the task of the queue takes the messages."""

    # --- locks ----------------------------------------------------------------------------------------

    async def allowed(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        free = [queue for queue in queues if queue not in self._late]
        locked: set[Queue] = set()
        for broker, own in _by_broker(free).items():
            locked |= await self._lock(broker, own) or set()
            self._locked |= locked
        return [queue for queue in free if queue in locked]

    async def not_taken(self, queues: Sequence[Queue]) -> None:
        await self._unlock([queue for queue in queues if queue in self._locked and queue not in self._late])

    def taken(self, held: HeldQueue) -> None:
        self._note_lock(held)
        held.work = self.consumer.client.spawn(self._consume(held), self._context.copy())

    def _note_lock(self, held: HeldQueue) -> None:
        held.locked_until_s = self.clock.monotonic_s() + LOCK_S
        held.locked_at_ms = self.clock.wall_ms()
        held.room.set()

    async def _lock(self, broker: str, queues: Sequence[Queue]) -> set[Queue] | None:
        """Lock queues of a broker and return the locked ones; None if the outcome is unknown."""
        client = self.consumer.client
        try:
            address = client.address(broker, exact=True)
            locked = await self._calls.lock(broker, queues)
            if client.address(broker, exact=True) != address:
                return None  # the broker is not the leader any more
        except KeroloxError as error:
            log.warning("not_locked group=%s broker=%s error=%r", self.consumer.group, broker, str(error))
            return None
        self._locked_at[broker] = address
        self._locked_over[broker] = client.dialer.connected_peer(client.vip(address))
        return locked

    def _is_locked(self, held: HeldQueue) -> bool:
        """Return True while the queue's lock is valid: it is recent, and its connection is open."""
        if held.locked_until_s <= self.clock.monotonic_s():
            return False
        peer = self._locked_over.get(held.queue.broker)
        if peer is not None and not peer.is_closed:
            return True
        held.locked_until_s = 0.0
        self._lock_now.set()
        return False

    def route_changed(self, route: Route) -> None:
        moved = {
            broker
            for broker, addresses in route.brokers.items()
            if self._locked_at.get(broker, addresses.get(MASTER)) != addresses.get(MASTER)
        }
        for held in (*self.consumer.held.values(), *self._late.values()):
            if held.queue.broker in moved and held.locked_until_s:
                held.locked_until_s = 0.0
                self._lock_now.set()

    async def _keep_locked(self) -> None:
        pause_s = RELOCK_S
        while True:
            timer = self.clock.call_later(pause_s, self._lock_now.set)
            try:
                await self._lock_now.wait()
            finally:
                timer.cancel()
            self._lock_now.clear()
            pause_s = RELOCK_S if await self._relock() else RELOCK_SOON_S

    async def _relock(self) -> bool:
        """Renew the locks of all queues. Return True if all brokers answered."""
        mine = {**self.consumer.held, **self._late}
        complete = True
        for broker, queues in _by_broker(mine).items():
            locked = await self._lock(broker, queues)
            if locked is None:
                complete = False
                continue
            for queue in queues:
                held = mine[queue]
                if queue in locked:
                    self._note_lock(held)
                elif not held.dropped:
                    complete = False
                    if held.locked_until_s:
                        log.warning("lock_lost group=%s queue=%s", self.consumer.group, queue)
                    held.locked_until_s = 0.0
        return complete

    async def released(self, queues: Sequence[HeldQueue]) -> None:
        at_work = {call.held for call in self._at_work} if self.consumer.is_open else set()
        free = [held for held in queues if held not in at_work]
        for held in queues:
            if held in at_work:  # no other member may get the queue before this handler has ended
                self._late[held.queue] = held
                self._start(self._release_late(held))
        await self._end_work([held.work for held in free])
        await self._unlock([held.queue for held in free])

    async def _release_late(self, held: HeldQueue) -> None:
        if held.work is not None:
            await asyncio.wait([held.work])
        await self.consumer.save([held])
        await self._unlock([held.queue])
        del self._late[held.queue]

    async def _end_work(self, tasks: Sequence[asyncio.Task[None] | None]) -> None:
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _unlock(self, queues: Sequence[Queue]) -> None:
        self._locked.difference_update(queues)
        for broker, own in _by_broker(queues).items():
            try:
                await self._calls.unlock(broker, own)
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
            async with self._slots:
                if held.is_gone():
                    return
                if not self._is_locked(held):
                    rest_s = LOCK_LOOK_S  # another member may hold the lock
                else:
                    rest_s = await self._consume_next(held)
            if rest_s:
                await self.clock.sleep(rest_s)
            if self._is_context_changed() and not held.is_gone():
                held.work = self.consumer.client.spawn(self._consume(held), self._context.copy())
                return

    async def _consume_next(self, held: HeldQueue) -> float:
        """Call the handler with the next messages. Return the pause of the queue, seconds."""
        topic = held.waiting[0].topic
        handler = self.consumer.handler_of(topic)
        chunk = list(takewhile(lambda message: message.topic == topic, islice(held.waiting, handler.count)))
        call = self._begin(held, handler, chunk)
        began_s = call.began_s
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
            for message in chunk:
                if held.waiting and held.waiting[0] is message:  # not when it was dropped meanwhile
                    held.waiting.popleft()
            return 0.0
        except Exception:
            log.exception("worker_failed group=%s queue=%s", self.consumer.group, held.queue)
            return self.options.suspend_s
        finally:
            self._end(call)

    async def _past_limit(self, chunk: Sequence[Received], error: Exception) -> bool:
        """Return True if messages that failed too often were stored as dead letters, so that the queue
        continues without them."""
        limit = self.options.attempts_max
        too_often = limit >= 0 and all(message.reconsume_times >= limit for message in chunk)
        if not too_often and not isinstance(error, DeadLetter):
            return False
        send = self.consumer.send_back.send_again
        sent = [await send(message, -1, reason_of(error)) for message in chunk]
        return all(sent)


def _by_broker(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    found: dict[str, list[Queue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found
