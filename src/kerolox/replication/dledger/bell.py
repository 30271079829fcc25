"""Waiting for something to happen or for a time to pass, whichever is first."""

from __future__ import annotations

import asyncio

from kerolox.clock import Clock


class Bell:
    """One waits, others ring. A ring while nobody waits is kept, once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, delay_s: float) -> bool:
        """Wait for a ring. Return False if none comes within the time."""
        if not self._rung and delay_s > 0:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            timer = self._clock.call_later(
                delay_s, lambda: None if waiter.done() else waiter.set_result(None)
            )
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        rung, self._rung = self._rung, False
        return rung
