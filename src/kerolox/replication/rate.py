"""How many bytes went in each second, and how many more may."""

from __future__ import annotations

from kerolox.clock import Clock


class Rate:
    """Counts bytes in windows of one second, as RocketMQ does; unlike there the log itself is counted, and
    not only the heads before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window = 0  # the second that is counted
        self._now = 0  # bytes in it
        self._before = 0  # in the one before

    def count(self, size: int) -> None:
        self._turn()
        self._now += size

    @property
    def per_second(self) -> int:
        """Bytes in the last whole second."""
        self._turn()
        return self._before

    def allowance(self, limit: int) -> int:
        """How many bytes may still go in this second."""
        self._turn()
        return max(0, limit - self._now)

    def next_window_s(self) -> float:
        """How long until the next second begins."""
        now_s = self._clock.monotonic_s()
        return int(now_s) + 1 - now_s

    def _turn(self) -> None:
        window = int(self._clock.monotonic_s())
        if window != self._window:
            self._before = self._now if window == self._window + 1 else 0
            self._window, self._now = window, 0
