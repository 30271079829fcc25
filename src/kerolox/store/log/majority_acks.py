"""Acknowledgement in a DLedger group: a majority of the members has the message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kerolox.clock import Clock
from kerolox.store.log.acks import Acks
from kerolox.store.log.flush import LogFlusher
from kerolox.store.log.majority_waits import TIMEOUT_S, WAITING_MAX, MajorityWaits
from kerolox.store.log.replicas import Replicas
from kerolox.store.log.safe import OnSafe
from kerolox.store.options import StoreOptions
from kerolox.store.state import StoreState


class MajorityAcks(Acks):
    """Acknowledgements that wait until the log is confirmed. Under synchronous flush this includes this
    member's disk; Apache's members do not wait for the disk."""

    def __init__(
        self,
        flusher: LogFlusher,
        replicas: Replicas,
        options: StoreOptions,
        state: StoreState,
        *,
        clock: Clock,
        waits: MajorityWaits,
        uncommitted: Callable[[], int],
    ) -> None:
        super().__init__(flusher, replicas, options, state, clock=clock)
        self._waits = waits
        self._uncommitted = uncommitted

    @property
    def wait(self) -> bool:
        return True

    @property
    def lacks_replicas(self) -> str | None:
        waiting = self._uncommitted()
        return None if waiting <= WAITING_MAX else f"{waiting} entries wait for a majority of the group"

    @property
    def needed(self) -> int:
        return 1

    def when_safe(self, end: int, on_safe: OnSafe) -> None:
        self._waits.wait(end, on_safe)
        self.hasten(end)

    def cut(self, offset: int, stored_ms: int) -> None:
        super().cut(offset, stored_ms)
        self._waits.cut(offset)

    async def settle(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._waits.idle()
        except TimeoutError:
            pass
        self._waits.close()
        await super().settle()

    def close(self) -> None:
        self._waits.close()
        super().close()
