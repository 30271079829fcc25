"""Lanes: the classes of requests (send, pull, query, heartbeat, admin, ...), each bounded on its own.

A flood of one kind must not starve the others, and a request nobody will wait for any more must not
be worked on. So each lane runs a bounded number of coroutine handlers at once, holds a bounded number
that wait, and answers SYSTEM_BUSY, with how long it waited, to any that waits too long. Handlers that
are plain functions run at once and only have their age checked.

The words in brackets are the original's; tools look for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.net.requests import Answer, Request
from kerolox.protocol.codes import ResponseCode

Run = Callable[[], Coroutine[Any, Any, None]]


class Lane:
    """One class of requests."""

    __slots__ = (
        "_clock",
        "_sweep",
        "_tasks",
        "_waiting",
        "age_s_max",
        "name",
        "refused_full",
        "refused_old",
        "running",
        "running_max",
        "waiting_max",
    )

    def __init__(
        self,
        name: str,
        *,
        running_max: int = 64,
        waiting_max: int = 10_000,
        age_s_max: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.running_max = running_max
        self.waiting_max = waiting_max
        self.age_s_max = age_s_max
        self.running = 0
        self.refused_full = 0
        self.refused_old = 0
        self._clock = clock
        self._waiting: deque[tuple[Request[Any], Run]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def head_wait_s(self) -> float:
        """How long the oldest waiting request has waited."""
        if not self._waiting:
            return 0.0
        return self._clock.monotonic_s() - self._waiting[0][0].received_s

    def too_old(self, request: Request[Any], now_s: float) -> Answer | None:
        """The refusal for a request that waited longer than anybody will wait for its answer."""
        waited_s = now_s - request.received_s
        if waited_s <= self.age_s_max:
            return None
        self.refused_old += 1
        return Answer(
            code=ResponseCode.SYSTEM_BUSY,
            remark=f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_s * 1000:.0f}ms, limit {self.age_s_max * 1000:.0f}ms, "
            f"lane {self.name}, waiting {len(self._waiting)}",
        )

    def submit(self, request: Request[Any], run: Run) -> None:
        """Run a coroutine handler now, later, or not at all."""
        if self.running < self.running_max:
            self._start(run)
            return
        if len(self._waiting) >= self.waiting_max:
            self.refused_full += 1
            request.answer(
                Answer(
                    code=ResponseCode.SYSTEM_BUSY,
                    remark=f"[OVERLOAD]system busy, start flow control for a while: lane {self.name} "
                    f"has {len(self._waiting)} requests waiting, the limit is {self.waiting_max}",
                )
            )
            return
        self._waiting.append((request, run))
        if self._sweep is None:
            self._sweep = self._clock.call_later(self.age_s_max, self._refuse_old)

    async def close(self) -> None:
        """Forget those who wait and stop those who run."""
        self._waiting.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, run: Run) -> None:
        self.running += 1
        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.running -= 1
        now_s = self._clock.monotonic_s()
        while self._waiting and self.running < self.running_max:
            request, run = self._waiting.popleft()
            refusal = self.too_old(request, now_s)
            if refusal is not None:
                request.answer(refusal)
            else:
                self._start(run)

    def _refuse_old(self) -> None:
        self._sweep = None
        now_s = self._clock.monotonic_s()
        while self._waiting:
            request = self._waiting[0][0]
            refusal = self.too_old(request, now_s)
            if refusal is None:
                left_s = request.received_s + self.age_s_max - now_s
                self._sweep = self._clock.call_later(max(0.001, left_s), self._refuse_old)
                return
            self._waiting.popleft()
            request.answer(refusal)
