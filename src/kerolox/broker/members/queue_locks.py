"""Locks of ordered queues. A lock names the client that may consume the queue.

A lock expires ``HELD_S`` after it was last requested, as in RocketMQ. It expires earlier when the connection
of its owner has closed: ``GRACE_S`` after the first request of another client, so that the owner may
reconnect and request it again. kerolox clients release a lock with their connection, and announce that.
RocketMQ's clients rely on a lock for ``BELIEVED_S`` after a request; no other client gets it before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kerolox.broker.bounds import QUEUE_LOCKS_MAX, too_many
from kerolox.clock import Clock
from kerolox.front.caller import Caller
from kerolox.protocol.bodies.body import MessageQueue

log = logging.getLogger(__name__)

HELD_S = 60.0
BELIEVED_S = 30.0  # REBALANCE_LOCK_MAX_LIVE_TIME of RocketMQ's clients
GRACE_S = 5.0


class QueueLock:
    """Lock of one queue."""

    __slots__ = ("believed_s", "caller", "owner", "since_s", "sought_s")

    def __init__(self, owner: str, since_s: float, caller: Caller | None, believed_s: float) -> None:
        self.owner = owner  # client id
        self.since_s = since_s  # time of the last request
        self.caller = caller  # connection of the last request; None: another broker asked for the client
        self.believed_s = believed_s  # time that the owner relies on it after its connection has closed
        self.sought_s: float | None = None  # first request of another client after the connection closed

    def is_over(self, now_s: float, held_s: float) -> bool:
        """Return True if another client may lock the queue now."""
        if now_s - self.since_s > held_s:
            return True
        if self.caller is None or not self.caller.is_closed:
            return False
        if self.sought_s is None:
            self.sought_s = now_s
        return now_s > max(self.sought_s, self.since_s + self.believed_s) + GRACE_S


class QueueLocks:
    """Table of the locks."""

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
        self._locks: dict[str, dict[MessageQueue, QueueLock]] = {}  # by group
        self._swept_s = clock.monotonic_s()

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        caller: Caller | None = None,
        believed_s: float = BELIEVED_S,
    ) -> frozenset[MessageQueue]:
        """Lock those of the queues that are free, already owned by the client, or expired. Return them."""
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
            known = locks.get(queue)
            if known is not None and known.owner != client_id:
                if not known.is_over(now_s, self._held_s):
                    continue
                log.warning(
                    "queue_lock_expired group=%r topic=%r queue=%d was=%r now=%r",
                    group, queue.topic, queue.queue_id, known.owner, client_id,
                )  # fmt: skip
            locks[queue] = QueueLock(client_id, now_s, caller, believed_s)
            granted.add(queue)
        if not locks:
            self._locks.pop(group, None)
        return frozenset(granted)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of the queues that the client owns."""
        locks = self._locks.get(group, {})
        for queue in queues:
            known = locks.get(queue)
            if known is not None and known.owner == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client that holds the lock now."""
        known = self._locks.get(group, {}).get(queue)
        if known is None or self._clock.monotonic_s() - known.since_s > self._held_s:
            return None
        return known.owner

    def held(self, group: str) -> bool:
        """True if a member of the group holds a lock now, which means that it consumes in order."""
        now_s = self._clock.monotonic_s()
        return any(now_s - lock.since_s <= self._held_s for lock in self._locks.get(group, {}).values())

    def _sweep(self, now_s: float) -> None:
        """Remove expired locks: of groups that are gone, and of deleted queues."""
        self._swept_s = now_s
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if now_s - lock.since_s > self._held_s]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._locks[group]
