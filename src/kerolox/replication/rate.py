"""Bytes transferred per second, and the rest of a limit."""

from __future__ import annotations

from kerolox.clock import Clock


class Rate:
    """Counter of bytes in windows of one second, as in RocketMQ; unlike there it counts the log bytes, not
    only the heads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window = 0  # the current second
        self._now = 0  # bytes in the current second
        self._before = 0  # bytes in the previous second

    def count(self, size: int) -> None:
        self._turn()
        self._now += size

    @property
    def per_second(self) -> int:
        """Bytes in the last complete second."""
        self._turn()
        return self._before

    def allowance(self, limit: int) -> int:
        """Return the number of bytes that may still be sent in this second."""
        self._turn()
        return max(0, limit - self._now)

    def next_window_s(self) -> float:
        """Return the time until the next second begins."""
        now_s = self._clock.monotonic_s()
        return int(now_s) + 1 - now_s

    def _turn(self) -> None:
        window = int(self._clock.monotonic_s())
        if window != self._window:
            self._before = self._now if window == self._window + 1 else 0
            self._window, self._now = window, 0
