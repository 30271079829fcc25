"""Waits for enough replicas."""

from __future__ import annotations

from typing import Protocol

from kerolox.clock import Clock
from kerolox.observers import Observers
from kerolox.store.log.safe import OnSafe, Safe
from kerolox.store.log.waits import Waits
from kerolox.store.options import StoreOptions


class Copies(Protocol):
    """Copies of the log: on all followers, or on those that may lead next."""

    on_acked: Observers[[]]  # called when a copy has grown
    on_left: Observers[[]]  # called when there are fewer copies

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
        self._by_needed: dict[int, Waits] = {}  # by number of needed replicas, of which there are a few
        replicas.on_acked.append(self._acked)
        replicas.on_left.append(self._left)

    def __bool__(self) -> bool:
        return any(self._by_needed.values())

    def wait(self, end: int, needed: int, on_safe: OnSafe) -> None:
        """Call ``on_safe`` when ``needed`` replicas have the log up to ``end``."""
        replicas = self._replicas
        if replicas.having(end) >= needed:
            on_safe(Safe.YES)
        elif replicas.in_sync(end) < needed:
            on_safe(Safe.NO_REPLICA)
        else:
            waits = self._by_needed.get(needed)
            if waits is None:
                waits = Waits(self._clock, self._timeout_s, Safe.REPLICA_TIMEOUT)
                self._by_needed[needed] = waits
            waits.add(end, on_safe)

    def _timeout_s(self) -> float:
        return self._options.replica_timeout_ms / 1000

    def cut(self, offset: int) -> None:
        """Report to writes that wait for messages after a cut of the log at ``offset`` that these are
        gone."""
        for waits in list(self._by_needed.values()):
            waits.cut(offset)

    async def idle(self) -> None:
        """Wait until no write waits."""
        while self:
            for waits in list(self._by_needed.values()):
                await waits.idle()

    def close(self) -> None:
        """Report a timeout to all waiting writes, because no more acknowledgements will arrive."""
        for waits in list(self._by_needed.values()):
            waits.close(Safe.REPLICA_TIMEOUT)

    def _acked(self) -> None:
        for needed, waits in list(self._by_needed.items()):
            if waits:
                waits.reach(self._replicas.reached(needed))

    def _left(self) -> None:
        for needed, waits in list(self._by_needed.items()):
            if waits and self._replicas.in_sync(waits.first) < needed:
                waits.end(Safe.NO_REPLICA)
