"""Role changes one after the other. Of several waiting ones only the newest counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kerolox.clock import Clock
from kerolox.errors import KeroloxError

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # pause after a failed role change

W = TypeVar("W")


class RoleTurns(Generic[W]):
    """Queue of the role changes that an election asks for. ``take`` makes one; ``failed`` logs the error of
    one, and returns the pause before the next attempt, or None for no further attempt."""

    def __init__(
        self,
        take: Callable[[W], Awaitable[None]],
        failed: Callable[[W, KeroloxError | OSError], float | None],
        clock: Clock,
    ) -> None:
        self.waiting: W | None = None  # the newest one that is not begun
        self._take = take
        self._failed = failed
        self._clock = clock
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._unexpected = ""  # the last logged error that no elector expects

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Take no more roles. A change in progress is completed."""
        if self._task is not None:
            async with self._turn:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def offer(self, wanted: W) -> None:
        """Make this change next, in place of one that still waits."""
        self.waiting = wanted
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted, self.waiting = self.waiting, None
            if wanted is not None:
                await self._make(wanted)

    async def _make(self, wanted: W) -> None:
        again_s: float | None
        try:
            async with self._turn:
                await self._take(wanted)
            return
        except (KeroloxError, OSError) as error:
            again_s = self._failed(wanted, error)
        except Exception as error:
            if repr(error) != self._unexpected:
                self._unexpected = repr(error)
                log.exception("role_not_taken wanted=%r next='retried'", wanted)
            again_s = AGAIN_S
        if again_s is not None:
            await self._clock.sleep(again_s)
            if self.waiting is None:
                self.offer(wanted)
