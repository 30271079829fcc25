"""Who waits until enough replicas have a message: one entry for each write, and one timer for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kerolox.clock import Clock, TimerHandle
from kerolox.store.log.safe import Safe, Told
from kerolox.store.options import StoreOptions

Waiting = tuple[int, float, Told]  # end offset, deadline, who is told


class Copies(Protocol):
    """Who has what of the log: all followers, or those that may lead next."""

    on_acked: list[Callable[[], None]]  # hear that there is more of it somewhere
    on_left: list[Callable[[], None]]  # hear that there are fewer

    def having(self, offset: int) -> int: ...
    def in_sync(self, end: int) -> int: ...
    def reached(self, count: int) -> int: ...


class ReplicaWaits:
    """Tells once so many replicas have the log up to an offset, or that this did not come to pass.

    Nobody waits for followers that are not there: who needs more than are in sync is told so at once, and so
    is everybody who waits already when a follower leaves. That bounds what waits, too: it is no more than
    ``haMaxGapNotInSync`` bytes of the log.
    """

    def __init__(self, replicas: Copies, options: StoreOptions, clock: Clock) -> None:
        self._replicas = replicas
        self._options = options
        self._clock = clock
        self._waiting: dict[int, deque[Waiting]] = {}  # by how many are needed; offsets and deadlines grow
        self._timer: TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []  # who waits until nobody does
        replicas.on_acked.append(self._acked)
        replicas.on_left.append(self._left)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, end: int, needed: int, told: Told) -> None:
        """Tell when so many replicas have the log up to ``end``."""
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
        """The log ends here now: who waits for what lay behind is told that it is gone."""
        gone: list[Waiting] = []
        for needed, waiting in self._waiting.items():
            gone += [entry for entry in waiting if entry[0] > offset]
            self._waiting[needed] = deque(entry for entry in waiting if entry[0] <= offset)
        self._tell(gone, Safe.CUT)

    async def idle(self) -> None:
        """Wait until nobody waits."""
        if self._waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    def close(self) -> None:
        """Nothing more will be heard: who still waits is told that it took too long."""
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
        """They are off the lists already: whoever is told may come again."""
        for needed in [needed for needed, waiting in self._waiting.items() if not waiting]:
            del self._waiting[needed]
        for _, _, told in entries:
            told(how)
        if not self._waiting:
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()
