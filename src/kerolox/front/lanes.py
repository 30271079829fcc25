"""Lanes: classes of requests (send, pull, query, heartbeat, admin, ...), each with its own limits.

A flood of one class must not starve the others, and a request whose caller has given up must not be
processed. So each lane runs a limited number of coroutine handlers at a time, queues a limited number of
further ones, and answers SYSTEM_BUSY, with the waiting time, to a request that waits too long. Handlers that
are plain functions run at once; only their age is checked.

The words in brackets are RocketMQ's; tools search for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.front.refusals import BODY_TOO_LONG, LANE_FULL, QUEUED_TOO_LONG, Refusal
from kerolox.front.requests import Request
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.limits import FRAME_BYTES_MAX

BODY_BYTES_MAX = 1 << 20  # for lanes whose bodies are not messages: they are decoded as a whole on the loop
WAITING_BYTES_MAX = 64 << 20  # all waiting bodies in one lane
RUNNING_BYTES_MAX = 128 << 20  # all bodies of running requests in one lane; beyond it requests wait

HandlerRun = Callable[[], Coroutine[Any, Any, None]]


class Lane:
    """A class of requests with its own limits."""

    __slots__ = (
        "_clock",
        "_running_bytes",
        "_sweep",
        "_tasks",
        "_waiting",
        "_waiting_bytes",
        "age_s_max",
        "body_bytes_max",
        "held",
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
        body_bytes_max: int = FRAME_BYTES_MAX,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.body_bytes_max = body_bytes_max
        self.running_max = running_max
        self.waiting_max = waiting_max
        self.age_s_max = age_s_max
        self.held = False  # no request is started; new ones wait
        self.running = 0
        self.refused_full = 0
        self.refused_old = 0
        self._clock = clock
        self._waiting: deque[tuple[Request[Any], HandlerRun]] = deque()
        self._waiting_bytes = 0  # of the waiting bodies
        self._running_bytes = 0  # of the bodies of running requests
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def head_wait_s(self) -> float:
        """Return the age of the oldest waiting request."""
        if not self._waiting:
            return 0.0
        return self._clock.monotonic_s() - self._waiting[0][0].received_s

    def too_old(self, request: Request[Any], now_s: float) -> Refusal | None:
        """Return the rejection of a request that is older than age_s_max, when its caller has given up; None
        if it is younger."""
        waited_s = now_s - request.received_s
        if waited_s <= self.age_s_max:
            return None
        self.refused_old += 1
        return Refusal(
            QUEUED_TOO_LONG,
            ResponseCode.SYSTEM_BUSY,
            f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_s * 1000:.0f}ms, limit {self.age_s_max * 1000:.0f}ms, "
            f"lane {self.name}, waiting {len(self._waiting)}",
        )

    def too_long(self, request: Request[Any]) -> Refusal:
        """Return the rejection of a body that is too long: it would be decoded as a whole and delay other
        requests."""
        return Refusal(
            BODY_TOO_LONG,
            ResponseCode.SYSTEM_ERROR,
            f"the body has {len(request.body)} bytes, the limit for this request is "
            f"{self.body_bytes_max} (lane {self.name}). Send it in parts.",
        )

    def submit(self, request: Request[Any], run: HandlerRun) -> None:
        """Run a coroutine handler now or later, or reject the request."""
        if self._has_room:
            self._start(request, run)
            return
        if len(self._waiting) >= self.waiting_max or self._waiting_bytes > WAITING_BYTES_MAX:
            self.refused_full += 1
            refusal = Refusal(
                LANE_FULL,
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, start flow control for a while: lane {self.name} has "
                f"{len(self._waiting)} requests of {self._waiting_bytes} bytes waiting, the limits are "
                f"{self.waiting_max} and {WAITING_BYTES_MAX}",
            )
            request.answer(refusal.answer())
            return
        self._waiting.append((request, run))
        self._waiting_bytes += len(request.body)
        if self._sweep is None:
            self._sweep = self._clock.call_later(self.age_s_max, self._refuse_old)

    def hold(self) -> None:
        """Start no further request until :meth:`release`; requests wait within the lane's limits."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self._go_on()

    async def close(self) -> None:
        """Drop the waiting requests and cancel the running ones."""
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _has_room(self) -> bool:
        is_free = self.running < self.running_max and self._running_bytes <= RUNNING_BYTES_MAX
        return is_free and not self.held

    def _start(self, request: Request[Any], run: HandlerRun) -> None:
        size_bytes = len(request.body)
        self.running += 1
        self._running_bytes += size_bytes
        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, size_bytes))

    def _ended(self, task: asyncio.Task[None], size_bytes: int) -> None:
        self._tasks.discard(task)
        self.running -= 1
        self._running_bytes -= size_bytes
        self._go_on()

    def _go_on(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._waiting and self._has_room:
            request, run = self._next()
            refusal = self.too_old(request, now_s)
            if refusal is not None:
                request.answer(refusal.answer())
            else:
                self._start(request, run)

    def _next(self) -> tuple[Request[Any], HandlerRun]:
        request, run = self._waiting.popleft()
        self._waiting_bytes -= len(request.body)
        return request, run

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
            self._next()
            request.answer(refusal.answer())
