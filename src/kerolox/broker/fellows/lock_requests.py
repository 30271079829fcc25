"""Requests for the locks of ordered queues: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

With strict locks (lockInStrictMode) the other brokers of the name are asked, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec

from kerolox.access.needs.consuming import LOCK
from kerolox.broker.members.queue_locks import BELIEVED_S, QueueLocks
from kerolox.errors import InvalidRequest
from kerolox.front.requests import Answer, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import BoundLockRequest, LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode


class OtherBrokers(Protocol):
    """Brokers of the same name, for locks that need the votes of most of them."""

    @property
    def needed(self) -> int:
        """Number of brokers that must grant a lock, including this one."""

    async def lock(self, asked: LockRequest) -> list[frozenset[MessageQueue]]:
        """Return the queues that each of the other brokers grants, for those that answer in time."""

    async def unlock(self, asked: LockRequest) -> None: ...


class LockRequests:
    """Handlers of both requests. ``others``: the brokers of the same name, None without any."""

    def __init__(self, locks: QueueLocks, others: OtherBrokers | None) -> None:
        self._locks = locks
        self._others = others

    @serves(RequestCode.LOCK_BATCH_MQ, None, LOCK)
    def lock_batch(self, request: Request[None]) -> Answer | Later:
        """Lock queues for an ordered consumer."""
        asked = BoundLockRequest.decode(request.body)
        group, client_id = _who(asked)
        others = self._others
        if others is None or asked.only_this_broker or others.needed <= 1:
            caller = None if asked.only_this_broker else request.caller
            believed_s = 0.0 if asked.until_disconnected else BELIEVED_S
            return _granted(self._locks.lock(group, client_id, asked.mq_set, caller, believed_s))
        return lambda: self._lock_everywhere(others, asked)

    @serves(RequestCode.UNLOCK_BATCH_MQ, None, LOCK)
    def unlock_batch(self, request: Request[None]) -> Answer | Later:
        """Unlock queues of an ordered consumer."""
        asked = LockRequest.decode(request.body)
        group, client_id = _who(asked)
        self._locks.unlock(group, client_id, asked.mq_set)
        others = self._others
        if others is None or asked.only_this_broker or others.needed <= 1:
            return Answer()

        async def unlock_everywhere() -> Answer:
            await others.unlock(msgspec.structs.replace(asked, only_this_broker=True))
            return Answer()

        return unlock_everywhere

    async def _lock_everywhere(self, others: OtherBrokers, asked: LockRequest) -> Answer:
        """Grant the queues that enough brokers grant. The others are released at all brokers: otherwise two
        clients that ask at the same time would block each other for a minute."""
        group, client_id = _who(asked)
        own = self._locks.lock(group, client_id, asked.mq_set)
        here_only = msgspec.structs.replace(asked, only_this_broker=True)
        votes = Counter(own)
        for granted in await others.lock(here_only):
            votes.update(granted & asked.mq_set)
        enough = frozenset(queue for queue in own if votes[queue] >= others.needed)
        if lacking := asked.mq_set - enough:
            self._locks.unlock(group, client_id, lacking & own)
            await others.unlock(msgspec.structs.replace(here_only, mq_set=lacking))
        return _granted(enough)


def _granted(queues: frozenset[MessageQueue]) -> Answer:
    return Answer(body=LockAnswer(lock_ok_mq_set=queues).encode())


def _who(asked: LockRequest) -> tuple[str, str]:
    if asked.consumer_group is None or asked.client_id is None:
        raise InvalidRequest("a lock needs consumerGroup and clientId")
    return asked.consumer_group, asked.client_id
