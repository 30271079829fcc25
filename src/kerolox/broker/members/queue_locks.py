"""Locks of ordered queues: which client may consume a queue. A lock ends a minute after it was last asked
for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kerolox.broker.bounds import QUEUE_LOCKS_MAX, too_many
from kerolox.clock import Clock
from kerolox.errors import InvalidRequest
from kerolox.front.requests import Answer, Request, Row
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode

log = logging.getLogger(__name__)

HELD_S = 60.0


class QueueLocks:
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), and the table of locks."""

    def __init__(
        self,
        clock: Clock,
        held_s: float = HELD_S,
        *,
        exists: Callable[[MessageQueue], bool] = lambda queue: True,
    ) -> None:
        self._clock = clock
        self._exists = exists
        self._count = 0
        self._held_s = held_s
        self._locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}  # group → queue → owner, since
        self._swept_s = clock.monotonic_s()

    def rows(self) -> list[Row]:
        return [
            (RequestCode.LOCK_BATCH_MQ, self.lock_batch, None),
            (RequestCode.UNLOCK_BATCH_MQ, self.unlock_batch, None),
        ]

    def lock_batch(self, request: Request[None]) -> Answer:
        group, client_id, queues = _asked(request)
        return Answer(body=LockAnswer(lock_ok_mq_set=self.lock(group, client_id, queues)).encode())

    def unlock_batch(self, request: Request[None]) -> Answer:
        group, client_id, queues = _asked(request)
        self.unlock(group, client_id, queues)
        return Answer()

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock those of the queues that are free, the client's already, or held too long; which they are."""
        now_s = self._clock.monotonic_s()
        if now_s - self._swept_s > self._held_s:
            self._sweep(now_s)
        locks = self._locks.setdefault(group, {})
        granted: set[MessageQueue] = set()
        for queue in queues:
            if queue not in locks:
                if not self._exists(queue):
                    continue
                if self._count >= QUEUE_LOCKS_MAX:
                    self._sweep(now_s)
                    locks = self._locks.setdefault(group, {})
                    if self._count >= QUEUE_LOCKS_MAX:
                        raise too_many("locks of queues", "QUEUE_LOCKS_MAX", QUEUE_LOCKS_MAX)
                self._count += 1
            owner, since_s = locks.get(queue, (client_id, now_s))
            if owner != client_id:
                if now_s - since_s <= self._held_s:
                    continue
                log.warning(
                    "queue_lock_expired group=%r topic=%r queue=%d was=%r now=%r",
                    group, queue.topic, queue.queue_id, owner, client_id,
                )  # fmt: skip
            locks[queue] = (client_id, now_s)
            granted.add(queue)
        if not locks:
            self._locks.pop(group, None)
        return frozenset(granted)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free those of the queues that are the client's."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0.0))[0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds the lock now."""
        owner, since_s = self._locks.get(group, {}).get(queue, (None, 0.0))
        return owner if self._clock.monotonic_s() - since_s <= self._held_s else None

    def held(self, group: str) -> bool:
        """Whether anybody of the group holds a lock now: it consumes in order."""
        now_s = self._clock.monotonic_s()
        return any(now_s - since_s <= self._held_s for _, since_s in self._locks.get(group, {}).values())

    def _sweep(self, now_s: float) -> None:
        """Forget locks nobody asked for again: of groups that are gone, of queues that were deleted."""
        self._swept_s = now_s
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, (_, since_s) in locks.items() if now_s - since_s > self._held_s]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._locks[group]


def _asked(request: Request[None]) -> tuple[str, str, frozenset[MessageQueue]]:
    asked = LockRequest.decode(request.body)
    if asked.consumer_group is None or asked.client_id is None:
        raise InvalidRequest("a lock needs consumerGroup and clientId")
    return asked.consumer_group, asked.client_id, asked.mq_set
