"""Time you can move."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from kerolox.clock import Clock


class _Timer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock(Clock):
    """A clock that stands still until :meth:`advance` moves it, firing what became due, in order."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic_s = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def wall_ms(self) -> int:
        return int(self._wall_ms + 0.001)  # see advance

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._monotonic_s + max(0.0, delay_s), next(self._numbers), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        done = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            timer.cancel()

    @property
    def pending(self) -> int:
        """How many timers wait."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def step_wall(self, delta_ms: int) -> None:
        """Set the wall clock forwards or back, as an administrator would: timers do not notice."""
        self._wall_ms += delta_ms

    async def advance(self, seconds: float) -> None:
        """Let time pass. Each due timer fires at its own moment, and what it wakes runs before the next."""
        end_s = self._monotonic_s + seconds
        await _settle()
        # Many small steps add up to a little more or less than their sum: a nanosecond does not count.
        while self._timers and self._timers[0][0] <= end_s + 1e-9:
            due_s, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._move_to(min(due_s, end_s))
            timer.callback()
            await _settle()
        self._move_to(end_s)
        await _settle()

    def _move_to(self, moment_s: float) -> None:
        self._wall_ms += (moment_s - self._monotonic_s) * 1000
        self._monotonic_s = moment_s


async def _settle(rounds: int = 10) -> None:
    # A fired timer wakes tasks, which wake others: a few turns of the loop let them all run.
    for _ in range(rounds):
        await asyncio.sleep(0)
