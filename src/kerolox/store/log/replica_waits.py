"""Waits for enough replicas: one entry for each write, and one timer for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kerolox.clock import Clock, TimerHandle
from kerolox.store.log.safe import Safe, Told
from kerolox.store.options import StoreOptions

Waiting = tuple[int, float, Told]  # end offset, deadline, callback


class Copies(Protocol):
    """Copies of the log: on all followers, or on those that may lead next."""

    on_acked: list[Callable[[], None]]  # called when a copy has grown
    on_left: list[Callable[[], None]]  # called when there are fewer copies

    def having(self, offset: int) -> int: ...
    def in_sync(self, end: int) -> int: ...
    def reached(self, count: int) -> int: ...


class ReplicaWaits:
    """Callbacks for the time when enough replicas have the log up to an offset, or cannot have it.

    Missing followers are not awaited: a write that needs more replicas than are in sync is answered
    immediately, and so are all waiting writes when a follower leaves. That also limits the number of waiting
    writes, to ``haMaxGapNotInSync`` bytes of the log.
    """

    def __init__(self, replicas: Copies, options: StoreOptions, clock: Clock) -> None:
        self._replicas = replicas
        self._options = options
        self._clock = clock
        # By number of needed replicas; offsets and deadlines increase
        self._waiting: dict[int, deque[Waiting]] = {}
        self._timer: TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []  # futures that wait until no write waits
        replicas.on_acked.append(self._acked)
        replicas.on_left.append(self._left)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, end: int, needed: int, told: Told) -> None:
        """Call ``told`` when ``needed`` replicas have the log up to ``end``."""
        replicas = self._replicas
        if replicas.having(end) >= needed:
            told(Safe.YES)
        elif replicas.in_sync(end) < needed:
            told(Safe.NO_REPLICA)
        else:
            timeout_s = self._options.replica_timeout_ms / 1000
            entry = (end, self._clock.monotonic_s() + timeout_s, told)
            self._waiting.setdefault(needed, deque()).append(entry)
            if self._timer is None:
                self._timer = self._clock.call_later(timeout_s, self._give_up_late)

    def cut(self, offset: int) -> None:
        """Report to writes that wait for messages after a cut of the log at ``offset`` that these are
        gone."""
        gone: list[Waiting] = []
        for needed, waiting in self._waiting.items():
            gone += [entry for entry in waiting if entry[0] > offset]
            self._waiting[needed] = deque(entry for entry in waiting if entry[0] <= offset)
        self._tell(gone, Safe.CUT)

    async def idle(self) -> None:
        """Wait until no write waits."""
        if self._waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    def close(self) -> None:
        """Report a timeout to all waiting writes, because no more acknowledgements will arrive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = [entry for waiting in self._waiting.values() for entry in waiting]
        self._waiting.clear()
        self._tell(left, Safe.REPLICA_TIMEOUT)

    # --- what happens meanwhile ------------------------------------------------------------------------

    def _acked(self) -> None:
        if not self._waiting:
            return
        done: list[Waiting] = []
        for needed, waiting in self._waiting.items():
            reached = self._replicas.reached(needed)
            while waiting and waiting[0][0] <= reached:
                done.append(waiting.popleft())
        self._tell(done, Safe.YES)

    def _left(self) -> None:
        gone: list[Waiting] = []
        for needed, waiting in self._waiting.items():
            if waiting and self._replicas.in_sync(waiting[0][0]) < needed:
                gone += waiting
                waiting.clear()
        self._tell(gone, Safe.NO_REPLICA)

    def _give_up_late(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        late: list[Waiting] = []
        for waiting in self._waiting.values():
            while waiting and waiting[0][1] <= now_s:
                late.append(waiting.popleft())
        first_s = min((waiting[0][1] for waiting in self._waiting.values() if waiting), default=None)
        if first_s is not None:
            self._timer = self._clock.call_later(first_s - now_s, self._give_up_late)
        self._tell(late, Safe.REPLICA_TIMEOUT)

    def _tell(self, entries: list[Waiting], how: Safe) -> None:
        """Call the callbacks of entries that are no longer in the lists: a callback may wait again."""
        for needed in [needed for needed, waiting in self._waiting.items() if not waiting]:
            del self._waiting[needed]
        for _, _, told in entries:
            told(how)
        if not self._waiting:
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()
