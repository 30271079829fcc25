"""Waits for a majority of a DLedger group: one entry per write, and one timer for all."""

from __future__ import annotations

import asyncio
from collections import deque

from kerolox.clock import Clock, TimerHandle
from kerolox.store.log.progress import Progress
from kerolox.store.log.safe import Safe, Told

TIMEOUT_S = 2.5  # the same as Apache's leader
WAITING_MAX = 10_000  # limit of uncommitted entries; above it, messages are rejected


class MajorityWaits:
    """Callbacks for the time when the log is confirmed up to an offset, or can no longer be."""

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self._waiting: deque[tuple[int, float, Told]] = deque()  # end offset, deadline, callback; in order
        self._timer: TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []  # futures that wait until no write waits
        progress.followers.append(self._confirmed)

    def wait(self, end: int, told: Told) -> None:
        """Call ``told`` when the log is confirmed up to ``end``."""
        if self._progress.confirmed >= end:
            told(Safe.YES)
            return
        self._waiting.append((end, self._clock.monotonic_s() + TIMEOUT_S, told))
        if self._timer is None:
            self._timer = self._clock.call_later(TIMEOUT_S, self._give_up_late)

    def cut(self, offset: int) -> None:
        """Report to writes that wait for messages after a cut of the log at ``offset`` that these are
        gone."""
        gone = [entry for entry in self._waiting if entry[0] > offset]
        self._waiting = deque(entry for entry in self._waiting if entry[0] <= offset)
        self._tell(gone, Safe.CUT)

    def give_up(self) -> None:
        """Report to all waiting writes that their outcome is unknown, because this member no longer leads."""
        left, self._waiting = list(self._waiting), deque()
        self._tell(left, Safe.NO_LEADER)

    async def idle(self) -> None:
        """Wait until no write waits."""
        if self._waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.give_up()

    def _confirmed(self) -> None:
        waiting, confirmed = self._waiting, self._progress.confirmed
        done: list[tuple[int, float, Told]] = []
        while waiting and waiting[0][0] <= confirmed:
            done.append(waiting.popleft())
        self._tell(done, Safe.YES)

    def _give_up_late(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        late: list[tuple[int, float, Told]] = []
        while self._waiting and self._waiting[0][1] <= now_s:
            late.append(self._waiting.popleft())
        if self._waiting:
            self._timer = self._clock.call_later(self._waiting[0][1] - now_s, self._give_up_late)
        self._tell(late, Safe.NO_MAJORITY)

    def _tell(self, entries: list[tuple[int, float, Told]], how: Safe) -> None:
        for _, _, told in entries:
            told(how)
        if not self._waiting:
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()
