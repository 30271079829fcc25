"""Time and timers behind one object, so that tests of a three-day delay take a millisecond.

All code that reads the time or waits takes a :class:`Clock`. The system clock is used everywhere except in
tests; :class:`kerolox.testing.clock.ManualClock` advances only when a test moves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """Return value of ``call_later``: a timer that can be cancelled."""

    def cancel(self) -> None: ...


class Clock:
    """The system's time, and timers of the running event loop."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970 of the operating system's clock, which may step in either
        direction."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary start; never decreases. For deadlines and ages."""
        return time.monotonic()

    def cpu_s(self) -> float:
        """Return the processor time of this thread in seconds: the cost of work, independent of the machine's
        load."""
        return time.thread_time()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Call back on the running event loop after ``delay_s`` seconds."""
        import asyncio  # here, because users without an event loop need not load it

        return asyncio.get_running_loop().call_later(delay_s, callback)

    def beat(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Schedule the next of many periodic checks; the callback schedules the following one.

        Events due at a certain time use ``call_later``. No single beat matters: a manual clock that is moved
        by hours skips most of them instead of calling tens of thousands.
        """
        return self.call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        import asyncio

        await asyncio.sleep(delay_s)


class StoreTime:
    """Wall time that never decreases.

    Searching an offset by time is a binary search over store times, so store times must not decrease when an
    administrator or NTP sets the clock back: the last time is then repeated until the system clock has caught
    up.
    """

    __slots__ = ("_clock", "_last_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = 0

    def not_before(self, floor_ms: int) -> None:
        """Raise the minimum of future times to this one, the store time of existing messages."""
        self._last_ms = max(self._last_ms, floor_ms)

    def now_ms(self) -> int:
        now_ms = self._clock.wall_ms()
        if now_ms < self._last_ms:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms


SYSTEM_CLOCK = Clock()
