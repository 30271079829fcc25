"""Search for the addresses of a leader that an election has named, until they are found.

A follower needs both addresses: one to copy the log from, one to copy tables from. Name servers learn them
when the leader registers, up to 30 s later, and RocketMQ's followers wait for that (apache/rocketmq#7790). So
an elector gives a question that is answered sooner, and the search repeats it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kerolox.broker.role.leadership import Leadership
from kerolox.broker.role.value import LeaderAddress
from kerolox.clock import Clock

log = logging.getLogger(__name__)

TELL_AFTER = 10  # answers without an address

Ask = Callable[[str], Awaitable[LeaderAddress | str]]


async def _direct(found: LeaderAddress) -> LeaderAddress:
    return found


class LeaderSearch:
    """Search for one leader at a time. The result is passed to the leadership. ``ask`` returns the addresses
    of the leader that the election named, or the reason why they are unknown. ``first_s`` and ``max_s`` are
    the first and the longest pause between two questions; ``at_once``: there is no pause before the first."""

    def __init__(
        self,
        leadership: Leadership,
        ask: Ask,
        clock: Clock,
        *,
        first_s: float,
        max_s: float,
        at_once: bool = True,
    ) -> None:
        self.way = _direct  # address under which the leader is reached; tests insert a faulty network
        self._leadership = leadership
        self._ask = ask
        self._clock = clock
        self._first_s = first_s
        self._max_s = max_s
        self._at_once = at_once
        self._named = ""
        self._task: asyncio.Task[None] | None = None

    def look_for(self, named: str) -> None:
        """Search for the leader with this name or address."""
        if self._task is not None and not self._task.done():
            if named == self._named:
                return
            self._task.cancel()
        self._named = named
        self._task = asyncio.get_running_loop().create_task(self._look_for(named))

    def stop(self) -> None:
        """End the search, because the role changes."""
        if self._task is not None:
            self._task.cancel()
        self._named = ""

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_for(self, named: str) -> None:
        again_s = self._first_s
        asked = 0
        if not self._at_once:
            await self._clock.sleep(again_s)
        while True:
            found = await self._ask(named)
            if isinstance(found, LeaderAddress):
                self._leadership.led_by(await self.way(found))
                return
            asked += 1
            if asked == TELL_AFTER:
                log.warning("leader_not_ready leader=%r reason=%r next='retried'", named, found)
            await self._clock.sleep(again_s)
            again_s = min(self._max_s, again_s * 1.5)
