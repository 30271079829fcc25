"""Acknowledgement under a controller: all brokers that may lead next have the message, too."""

from __future__ import annotations

import asyncio

from kerolox.clock import Clock
from kerolox.store.log.acks import Acks, Both
from kerolox.store.log.flush import LogFlusher
from kerolox.store.log.replica_waits import ReplicaWaits
from kerolox.store.log.replicas import Replicas
from kerolox.store.log.safe import OnSafe
from kerolox.store.log.set_copies import ALL, SetCopies
from kerolox.store.options import StoreOptions
from kerolox.store.state import StoreState


class SetAcks(Acks):
    """Acknowledgements of a leader under a controller.

    With ``allAckInSyncStateSet`` they wait for the whole in-sync set; without, for any ``inSyncReplicas``
    replicas, as without a controller.
    """

    def __init__(
        self,
        flusher: LogFlusher,
        replicas: Replicas,
        options: StoreOptions,
        state: StoreState,
        *,
        clock: Clock,
        copies: SetCopies,
    ) -> None:
        super().__init__(flusher, replicas, options, state, clock=clock)
        self._set = copies
        self._of_set = ReplicaWaits(copies, options, clock)

    @property
    def wait(self) -> bool:
        if self._set.all_ack:
            return not self._set.alone or self._wait_for_flush
        return super().wait

    @property
    def lacks_replicas(self) -> str | None:
        low, there = self._options.replicas_min, self._set.size
        if low <= 1 or there >= low:
            return None
        return f"{there} of at least {low} (minInSyncReplicas) are in the in-sync set"

    @property
    def needed(self) -> int:
        return self._set.size if self._set.all_ack else super().needed

    @property
    def promises_copies(self) -> bool:
        return self.wait_for_replicas

    def when_safe(self, end: int, on_safe: OnSafe) -> None:
        if not self._set.all_ack:
            super().when_safe(end, on_safe)
            return
        if self._wait_for_flush:
            if self._set.alone:
                self._flusher.wait_safe(end, on_safe)
                return
            on_safe = Both(on_safe)
            self._flusher.wait_safe(end, on_safe)
        self._of_set.wait(end, ALL, on_safe)

    def cut(self, offset: int, stored_ms: int) -> None:
        super().cut(offset, stored_ms)
        self._of_set.cut(offset)

    async def settle(self) -> None:
        try:
            async with asyncio.timeout(self._options.replica_timeout_ms / 1000):
                await self._of_set.idle()
        except TimeoutError:
            pass
        self._of_set.close()
        await super().settle()

    def close(self) -> None:
        self._of_set.close()
        super().close()
