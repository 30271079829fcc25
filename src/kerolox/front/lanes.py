"""Lanes: the classes of requests (send, pull, query, heartbeat, admin, ...), each bounded on its own.

A flood of one kind must not starve the others, and a request nobody will wait for any more must not
be worked on. So each lane runs a bounded number of coroutine handlers at once, holds a bounded number
that wait, and answers SYSTEM_BUSY, with how long it waited, to any that waits too long. Handlers that
are plain functions run at once and only have their age checked.

The words in brackets are RocketMQ's; tools look for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.front.requests import Answer, Request
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.limits import FRAME_BYTES_MAX

BODY_BYTES_MAX = 1 << 20  # for lanes whose bodies are no messages, and are read as a whole on the loop
WAITING_BYTES_MAX = 64 << 20  # all bodies that wait in one lane
RUNNING_BYTES_MAX = 128 << 20  # all bodies whose requests run in one lane; others wait

HandlerRun = Callable[[], Coroutine[Any, Any, None]]


class Lane:
    """One class of requests."""

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
        self.held = False  # nothing is begun; what comes waits
        self.running = 0
        self.refused_full = 0
        self.refused_old = 0
        self._clock = clock
        self._waiting: deque[tuple[Request[Any], HandlerRun]] = deque()
        self._waiting_bytes = 0  # of their bodies
        self._running_bytes = 0  # of the bodies of those that run
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

    def too_long(self, request: Request[Any]) -> Answer:
        """The refusal for a body that is too long: it is read as a whole, which would keep other requests
        waiting."""
        return Answer(
            code=ResponseCode.SYSTEM_ERROR,
            remark=f"a body of {len(request.body)} bytes, the limit for this request is "
            f"{self.body_bytes_max} (lane {self.name}). Send it in parts.",
        )

    def submit(self, request: Request[Any], run: HandlerRun) -> None:
        """Run a coroutine handler now, later, or not at all."""
        if self._has_room:
            self._start(request, run)
            return
        if len(self._waiting) >= self.waiting_max or self._waiting_bytes > WAITING_BYTES_MAX:
            self.refused_full += 1
            request.answer(
                Answer(
                    code=ResponseCode.SYSTEM_BUSY,
                    remark=f"[OVERLOAD]system busy, start flow control for a while: lane {self.name} "
                    f"has {len(self._waiting)} requests of {self._waiting_bytes} bytes waiting, the limits "
                    f"are {self.waiting_max} and {WAITING_BYTES_MAX}",
                )
            )
            return
        self._waiting.append((request, run))
        self._waiting_bytes += len(request.body)
        if self._sweep is None:
            self._sweep = self._clock.call_later(self.age_s_max, self._refuse_old)

    def hold(self) -> None:
        """Begin nothing more until :meth:`release`: what comes waits, as long as requests may."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self._go_on()

    async def close(self) -> None:
        """Forget the requests that wait and stop those that run."""
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
                request.answer(refusal)
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
            request.answer(refusal)
