"""Waits for a majority of a DLedger group."""

from __future__ import annotations

from kerolox.clock import Clock
from kerolox.store.log.progress import Progress
from kerolox.store.log.safe import OnSafe, Safe
from kerolox.store.log.waits import Waits

TIMEOUT_S = 2.5  # the same as Apache's leader
WAITING_MAX = 10_000  # limit of uncommitted entries; above it, messages are rejected


class MajorityWaits:
    """Callbacks for the time when the log is confirmed up to an offset, or can no longer be."""

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self._progress = progress
        self._waits = waits = Waits(clock, lambda: TIMEOUT_S, Safe.NO_MAJORITY)
        self.cut = waits.cut
        self.idle = waits.idle
        progress.on_confirmed.append(lambda: waits.reach(progress.confirmed))

    def wait(self, end: int, on_safe: OnSafe) -> None:
        """Call ``on_safe`` when the log is confirmed up to ``end``."""
        if self._progress.confirmed >= end:
            on_safe(Safe.YES)
        else:
            self._waits.add(end, on_safe)

    def give_up(self) -> None:
        """Report to all waiting writes that their outcome is unknown, because this member no longer leads."""
        self._waits.end(Safe.NO_LEADER)

    def close(self) -> None:
        self._waits.close(Safe.NO_LEADER)
