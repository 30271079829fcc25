"""A clock that a test moves from outside, while the process it belongs to runs: both see a page of memory."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from kerolox.clock import Clock, TimerHandle

# How far the wall clock is off in ms; how far the steady clock has leapt, in s; how fast it runs; the seed of
# the next loss of power; how often it was lost. Each is read alone, so none is ever seen half written.
WALL, LEAP, RATE, SEED, LOSSES = 0, 8, 16, 24, 32
WHOLE = struct.Struct("=q")
REAL = struct.Struct("=d")
PAGE_BYTES = 4096
LOOK_S = 0.02  # so often whoever waits looks whether the clock is right again


class ClockPage:
    """The page, as the test has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._page = _page(path)
        self.reset()

    def reset(self) -> None:
        self.wall(0)
        REAL.pack_into(self._page, LEAP, 0.0)
        self.rate(1.0)

    def wall(self, off_ms: int) -> None:
        """The wall clock is so far off from now on."""
        WHOLE.pack_into(self._page, WALL, off_ms)

    def leap(self, by_s: float) -> None:
        """The steady clock leaps ahead, as after a machine was suspended by one that counts that."""
        REAL.pack_into(self._page, LEAP, REAL.unpack_from(self._page, LEAP)[0] + by_s)

    def rate(self, rate: float) -> None:
        """The steady clock, and all timers set from now on, run so fast."""
        REAL.pack_into(self._page, RATE, rate)

    def lose_power(self, seed: int) -> None:
        """It will be lost once more: what of it is kept the seed says."""
        WHOLE.pack_into(self._page, SEED, seed)
        WHOLE.pack_into(self._page, LOSSES, WHOLE.unpack_from(self._page, LOSSES)[0] + 1)

    def close(self) -> None:
        self._page.close()


class ShiftedClock(Clock):
    """The clock, as the process has it."""

    def __init__(self, path: str) -> None:
        self._page = _page(Path(path))
        self._lock = threading.Lock()
        self._run = (super().monotonic_s(), super().monotonic_s(), 1.0)  # since when, from what, how fast

    @property
    def seed(self) -> int:
        number: int = WHOLE.unpack_from(self._page, SEED)[0]
        return number

    @property
    def losses(self) -> int:
        """How often the power was lost."""
        count: int = WHOLE.unpack_from(self._page, LOSSES)[0]
        return count

    def wall_ms(self) -> int:
        off_ms: int = WHOLE.unpack_from(self._page, WALL)[0]
        return super().wall_ms() + off_ms

    def monotonic_s(self) -> float:
        rate: float = REAL.unpack_from(self._page, RATE)[0]
        leap: float = REAL.unpack_from(self._page, LEAP)[0]
        now = super().monotonic_s()
        since, value, running = self._run
        if rate != running:
            with self._lock:
                since, value, running = self._run
                since, value, running = self._run = now, value + (now - since) * running, rate
        return value + max(0.0, now - since) * running + leap

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        if self.running == 1.0:
            return super().call_later(delay_s, callback)
        return _Timer(self, delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        until_s = self.monotonic_s() + delay_s
        while self.running != 1.0 and (left_s := until_s - self.monotonic_s()) > 0:
            await super().sleep(min(LOOK_S, left_s / self.running))
        await super().sleep(max(0.0, until_s - self.monotonic_s()))

    @property
    def running(self) -> float:
        """How fast."""
        rate: float = REAL.unpack_from(self._page, RATE)[0]
        return rate


class _Timer:
    """Of a clock that is not right: when that is mended, the timer is, too."""

    def __init__(self, clock: ShiftedClock, delay_s: float, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._until_s = clock.monotonic_s() + delay_s
        self._callback = callback
        self._wait()

    def cancel(self) -> None:
        self._handle.cancel()

    def _wait(self) -> None:
        left_s = self._until_s - self._clock.monotonic_s()
        loop = asyncio.get_running_loop()
        if left_s <= 0:
            self._handle = loop.call_soon(self._callback)
        else:
            self._handle = loop.call_later(min(LOOK_S, left_s / self._clock.running), self._wait)


def _page(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, PAGE_BYTES)
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)
