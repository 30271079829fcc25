"""Search for the broker of the leading member: members know only each other's ports, name servers know
brokers.

A follower needs the broker to copy tables: topics, groups, progress. RocketMQ's follower learns it at its
next regular registration, up to 30 s later, and may lead meanwhile with old progress (apache/rocketmq#7790).
kerolox asks at once, and repeats the question until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.role.leadership import Leadership
from kerolox.clock import Clock
from kerolox.replication.dledger.member import Member

log = logging.getLogger(__name__)

AGAIN_FIRST_S = 0.2
AGAIN_MAX_S = 5.0


class LeaderSearch:
    """Search for the leader. ``ask`` registers at the name servers, which report the leader."""

    def __init__(
        self, leadership: Leadership, member: Member, clock: Clock, *, ask: Callable[[], None]
    ) -> None:
        self._leadership = leadership
        self._member = member
        self._clock = clock
        self._ask = ask
        self._led_by: str | None = None
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Search again after a change of role: the earlier leader no longer leads."""
        if self._member.leader != self._led_by:
            self._led_by = self._member.leader
            self._leadership.led_by(None)
        self.stop()
        if self._member.is_follower:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        again_s = AGAIN_FIRST_S
        while self._member.is_follower and self._leadership.leader is None:
            await self._clock.sleep(again_s)
            self._ask()
            again_s = min(AGAIN_MAX_S, again_s * 1.5)
