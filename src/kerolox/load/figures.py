"""Figures that a load prints while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kerolox.clock import SYSTEM_CLOCK
from kerolox.times import time_text

SNAPSHOTS = 10  # a line covers the last ten seconds


class LoadFigures:
    """Figures of a run: a snapshot every second, and periodic lines about the last ten snapshots."""

    def __init__(
        self,
        snapshot: Callable[[], tuple[float, ...]],
        line: Callable[[float, tuple[float, ...], tuple[float, ...]], str],
        interval_ms: int,
        say: Callable[[str], object],
    ) -> None:
        self._say = say
        self._snapshot = snapshot
        self._line = line
        self._interval_s = interval_ms / 1000
        self._taken: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=SNAPSHOTS)
        self.snap()
        self._first = self._taken[0]

    async def run(self) -> None:
        began_s = printed_s = SYSTEM_CLOCK.monotonic_s()
        step_s = min(1.0, self._interval_s)
        while True:
            await SYSTEM_CLOCK.sleep(step_s)
            now_s = SYSTEM_CLOCK.monotonic_s()
            if now_s - self._taken[-1][0] >= min(0.99, step_s):
                self.snap()
            if now_s - printed_s >= self._interval_s - step_s / 2 and now_s > began_s:
                printed_s = now_s
                now = time_text(SYSTEM_CLOCK.wall_ms()).replace(".", ",")
                self._say(f"Current Time: {now} | {self._text(self._taken[0])}")

    def snap(self) -> None:
        self._taken.append((SYSTEM_CLOCK.monotonic_s(), self._snapshot()))

    def since_start(self) -> str:
        return self._text(self._first)

    @property
    def seconds(self) -> float:
        return max(self._taken[-1][0] - self._first[0], 1e-9)

    def _text(self, first: tuple[float, tuple[float, ...]]) -> str:
        last = self._taken[-1]
        return self._line(max(last[0] - first[0], 1e-9), first[1], last[1])
