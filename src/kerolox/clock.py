"""Time and timers behind one object, so that a three-day delay is tested in a millisecond.

Everything that asks the time or waits for it takes a :class:`Clock`. The system clock is used
everywhere but in tests; :class:`kerolox.testing.clock.ManualClock` stands still until moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """What ``call_later`` returns: a timer that can be called off."""

    def cancel(self) -> None: ...


class Clock:
    """The system's time, and timers of the running event loop."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the operating system has them; may step either way."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since some start; never runs backwards. For deadlines and ages."""
        return time.monotonic()

    def cpu_s(self) -> float:
        """Seconds of processor time used by this thread: the cost of work, however busy the machine is."""
        return time.thread_time()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Call back on the running event loop after ``delay_s`` seconds."""
        import asyncio  # here: who has no event loop asks the time too, and need not load it

        return asyncio.get_running_loop().call_later(delay_s, callback)

    def beat(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """The same for one of many regular looks at something, which sets the next one.

        What is due at a certain moment uses ``call_later``. Of beats no single one matters: a clock that is
        moved by hours leaves most of them out, or it would have tens of thousands to call in every hour.
        """
        return self.call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        import asyncio

        await asyncio.sleep(delay_s)


class StoreTime:
    """Wall time that never runs backwards.

    The look-up of an offset by time is a binary search over store times, so they must not fall
    even when an administrator or NTP sets the system clock back: then the last time given is
    given again until the system clock has caught up.
    """

    __slots__ = ("_clock", "_last_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = 0

    def not_before(self, floor_ms: int) -> None:
        """No time given from now on is earlier than this: what was stored before has it."""
        self._last_ms = max(self._last_ms, floor_ms)

    def now_ms(self) -> int:
        now_ms = self._clock.wall_ms()
        if now_ms < self._last_ms:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms


SYSTEM_CLOCK = Clock()
