"""Writes that wait until the log has reached an offset somewhere: one entry for each, one timer for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kerolox.clock import Clock, TimerHandle
from kerolox.store.log.safe import OnSafe, Safe


class Waits:
    """List of callbacks, in the order of their offsets. A callback may wait again."""

    def __init__(self, clock: Clock, timeout_s: Callable[[], float], late: Safe) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._late = late  # result when the time limit is over
        self._waiting: deque[tuple[int, float, OnSafe]] = deque()  # end offset, deadline, callback
        self._timer: TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []  # futures that wait until no write waits

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first(self) -> int:
        """Return the lowest offset that a write waits for. There must be one."""
        return self._waiting[0][0]

    def add(self, end: int, on_safe: OnSafe) -> None:
        """Call ``on_safe`` when ``end`` is reached, or when the time limit is over."""
        timeout_s = self._timeout_s()
        self._waiting.append((end, self._clock.monotonic_s() + timeout_s, on_safe))
        if self._timer is None:
            self._timer = self._clock.call_later(timeout_s, self._give_up_late)

    def reach(self, offset: int) -> None:
        """Report the writes up to this offset as safe."""
        waiting = self._waiting
        done: list[OnSafe] = []
        while waiting and waiting[0][0] <= offset:
            done.append(waiting.popleft()[2])
        self._tell(done, Safe.YES)

    def cut(self, offset: int) -> None:
        """Report the writes after a cut of the log at ``offset`` as gone."""
        gone = [on_safe for end, _, on_safe in self._waiting if end > offset]
        self._waiting = deque(entry for entry in self._waiting if entry[0] <= offset)
        self._tell(gone, Safe.CUT)

    def end(self, how: Safe) -> None:
        """Report this result to all writes that wait."""
        left, self._waiting = self._waiting, deque()
        self._tell([on_safe for _, _, on_safe in left], how)

    async def idle(self) -> None:
        """Wait until no write waits."""
        if self._waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    def close(self, how: Safe) -> None:
        """End all waits: nothing is reached any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.end(how)

    def _give_up_late(self) -> None:
        self._timer = None
        waiting, now_s = self._waiting, self._clock.monotonic_s()
        late: list[OnSafe] = []
        while waiting and waiting[0][1] <= now_s:
            late.append(waiting.popleft()[2])
        if waiting:
            self._timer = self._clock.call_later(waiting[0][1] - now_s, self._give_up_late)
        self._tell(late, self._late)

    def _tell(self, done: list[OnSafe], how: Safe) -> None:
        """Call callbacks that are no longer in the list."""
        for on_safe in done:
            on_safe(how)
        if self._idle and not self._waiting:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)
