"""Locks of queues that count when most brokers of a name grant them (lockInStrictMode).

A client that loses its leader asks a follower for its locks. Without this option the follower grants them,
even if the leader has granted them to another client; with it, both brokers are asked.
"""

from __future__ import annotations

import asyncio

from kerolox.broker.base import Base
from kerolox.broker.fellows.group_watch import GroupWatch
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode

ASK_S = 1.0


class StrictLocks:
    """The other brokers of this name, for :class:`kerolox.broker.fellows.lock_requests.LockRequests`."""

    def __init__(self, base: Base, watch: GroupWatch) -> None:
        self._options = base.options
        self._watch = watch
        self._dialer = base.dialer
        self._address = base.endpoints.address

    @property
    def needed(self) -> int:
        options = self._options
        return options.total_replicas // 2 + 1 if options.strict_locks else 1

    async def lock(self, asked: LockRequest) -> list[frozenset[MessageQueue]]:
        body = asked.encode()
        found = await asyncio.gather(*[self._lock(address, body) for address in self._others()])
        return [granted for granted in found if granted is not None]

    async def unlock(self, asked: LockRequest) -> None:
        body = asked.encode()
        await asyncio.gather(*[self._unlock(address, body) for address in self._others()])

    def _others(self) -> list[str]:
        return [address for address in self._watch.members.values() if address != self._address]

    async def _lock(self, address: str, body: bytes) -> frozenset[MessageQueue] | None:
        try:
            answer = await self._dialer.call(address, RequestCode.LOCK_BATCH_MQ, None, body, timeout_s=ASK_S)
            return LockAnswer.decode(answer.body).lock_ok_mq_set if answer.code == 0 else None
        except KeroloxError:
            return None

    async def _unlock(self, address: str, body: bytes) -> None:
        try:
            await self._dialer.call(address, RequestCode.UNLOCK_BATCH_MQ, None, body, timeout_s=ASK_S)
        except KeroloxError:
            pass  # the lock expires
