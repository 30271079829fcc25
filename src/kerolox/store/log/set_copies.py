"""How far all of the in-sync set have this log: those a controller may let lead next.

A leader under a controller acknowledges, and shows readers, what every one of them has. Who they are is known
by :class:`kerolox.replication.in_sync_set.InSyncSet`, which tells it here. Without a controller nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable

from kerolox.store.log.progress import Progress

ALL = 1 << 30  # more replicas than there can be: all of the set


class SetCopies:
    """What the set has. A broker that does not lead has no set: then nothing more becomes safe."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.leads = False
        self.doubted = False  # whether it leads
        self.alone = False  # nobody else is in the set: what is written here is safe
        self.size = 0  # how many there are, this broker counted
        self.all_ack = True  # whether all of them have a message when it is acknowledged
        self.on_acked: list[Callable[[], None]] = []  # hear that the set has more
        self.on_left: list[Callable[[], None]] = []  # hear that nothing more is to be expected

    # --- told -------------------------------------------------------------------------------------------

    def reach(self, end: int | None, size: int) -> None:
        """This broker leads, and all of the set have the log up to here; None: it is the only one."""
        self.leads = True
        self.alone = end is None
        self.size = size
        self._progress.replicated = end
        self._progress.advance()
        if not self.doubted:
            for told in self.on_acked:
                told()

    def doubt(self) -> None:
        """It is not known any more whether this broker leads: nobody is told that anything is safe."""
        self.doubted = True
        for told in self.on_left:
            told()

    def trust(self) -> None:
        """It is known again."""
        self.doubted = False
        for told in self.on_acked:
            told()

    def lose(self) -> None:
        """This broker leads no longer: what was confirmed stays so, and who waits is told that it is over."""
        if self.leads:
            self.leads = self.alone = False
            self.size = 0
            self._progress.replicated = self._progress.confirmed
            for told in self.on_left:
                told()

    # --- asked by those who wait -----------------------------------------------------------------------

    def having(self, offset: int) -> int:
        return ALL if self.leads and not self.doubted and offset <= self.reached(ALL) else 0

    def in_sync(self, end: int) -> int:
        return ALL if self.leads and not self.doubted else 0

    def reached(self, count: int) -> int:
        """Up to where the set has the log."""
        replicated = self._progress.replicated
        return self._progress.committed if replicated is None else replicated
