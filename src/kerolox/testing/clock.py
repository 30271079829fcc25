"""Clock that tests can move."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable

from kerolox.clock import Clock

# When time is moved far, a beat is called about this many times on the way, unless it would be called less;
# but at least every half an hour, because some callbacks check the hour of the day.
BEATS_MAX = 10
BEAT_GAP_S_MAX = 1800.0


class _Timer:
    __slots__ = ("beat_s", "callback", "cancelled", "set_s")

    def __init__(self, callback: Callable[[], object], set_s: float, beat_s: float = 0.0) -> None:
        self.callback = callback
        self.cancelled = False
        self.set_s = set_s
        self.beat_s = beat_s  # interval of a beat; 0 for a timer with a fixed time

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock(Clock):
    """Clock that stands still until :meth:`advance` moves it and fires the due timers in order.

    An hour of a real broker takes some hundred timers: timers with a fixed time fire at that time, regular
    checks (:meth:`Clock.beat`) only some of the times.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic_s = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self.fired = 0  # number of timers fired so far

    def wall_ms(self) -> int:
        return int(self._wall_ms + 0.001)  # see advance

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def cpu_s(self) -> float:
        return self._monotonic_s  # work takes no time

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback, self._monotonic_s)
        self._push(self._monotonic_s + max(0.0, delay_s), timer)
        return timer

    def beat(self, delay_s: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback, self._monotonic_s, max(0.001, delay_s))
        self._push(self._monotonic_s + timer.beat_s, timer)
        return timer

    def _push(self, due_s: float, timer: _Timer) -> None:
        heapq.heappush(self._timers, (due_s, next(self._numbers), timer))

    async def sleep(self, delay_s: float) -> None:
        done = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            timer.cancel()

    @property
    def pending(self) -> int:
        """Return the number of waiting timers."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def step_wall(self, delta_ms: int) -> None:
        """Set the wall clock forwards or back, as an administrator would. Timers are not affected."""
        self._wall_ms += delta_ms

    async def advance(self, seconds: float) -> None:
        """Let time pass. Each due timer fires at its own time, and the tasks it wakes run before the next.

        Beats fire at their times too, but not at all of them; always at the last one.
        """
        end_s = self._monotonic_s + seconds
        gap_s = min(seconds / BEATS_MAX, BEAT_GAP_S_MAX)
        await _settle()
        # The sum of many small steps is slightly wrong: a nanosecond does not count.
        while self._timers and self._timers[0][0] <= end_s + 1e-9:
            due_s, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            later_s = _later(timer, due_s, gap_s, end_s)
            if later_s > due_s:
                self._push(later_s, timer)
                continue
            self.fired += 1
            self._move_to(due_s)  # code that reads the time finds its moment reached
            timer.callback()
            await _settle()
        self._move_to(max(end_s, self._monotonic_s))
        await _settle()

    def _move_to(self, moment_s: float) -> None:
        self._wall_ms += (moment_s - self._monotonic_s) * 1000
        self._monotonic_s = moment_s


def _later(timer: _Timer, due_s: float, gap_s: float, end_s: float) -> float:
    """Return the time at which a beat is called instead of its next time: its last time before the gap is
    over, or before time stands still again."""
    beat_s, timer.beat_s = timer.beat_s, 0.0  # postponed only once: then it is due
    if not beat_s:
        return due_s
    until_s = min(timer.set_s + gap_s, end_s)
    return due_s + max(0, math.floor((until_s - due_s) / beat_s + 1e-9)) * beat_s


async def _settle(rounds: int = 10) -> None:
    # A fired timer wakes tasks, which wake others: a few rounds of the loop let them all run.
    for _ in range(rounds):
        await asyncio.sleep(0)
