"""Progress of the in-sync set: the brokers that a controller may elect as the next leader.

A leader under a controller acknowledges, and shows readers, only what every one of them has.
:class:`kerolox.replication.in_sync_set.InSyncSet` knows the members, and reports to this module. Without a
controller it is not used.
"""

from __future__ import annotations

from kerolox.observers import Observers
from kerolox.store.log.progress import Progress

ALL = 1 << 30  # more replicas than possible: all of the set


class SetCopies:
    """Copies of the log on the in-sync set. A broker that does not lead has no set: then nothing more becomes
    safe."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.doubted = False  # True while it is unknown if this broker leads
        self.alone = False  # True if the set has no other member: messages are safe once written here
        self.size = 0  # number of members, including this broker; 0: it does not lead
        self.all_ack = True  # True if all members must have a message before it is acknowledged
        # called when the set has more of the log
        self.on_acked: Observers[[]] = Observers("copies acknowledged")
        # called when no more progress is expected
        self.on_left: Observers[[]] = Observers("copies given up")

    @property
    def leads(self) -> bool:
        return self.size > 0

    # --- reports ----------------------------------------------------------------------------------------

    def reach(self, end: int | None, size: int) -> None:
        """Record that this broker leads, and that the whole set has the log up to ``end``; None: it is the
        only member."""
        self.alone = end is None
        self.size = max(1, size)
        self._progress.replicated = end
        self._progress.advance()
        if not self.doubted:
            self.on_acked()

    def doubt(self) -> None:
        """Stop reporting messages as safe, because it is unknown if this broker still leads."""
        self.doubted = True
        self.on_left()

    def trust(self) -> None:
        """Report messages as safe again, because this broker is known to lead."""
        self.doubted = False
        self.on_acked()

    def lose(self) -> None:
        """Stop leading: confirmed messages stay confirmed, and waiting messages are reported as not
        replicated."""
        if self.leads:
            self.alone = False
            self.size = 0
            self._progress.replicated = self._progress.confirmed
            self.on_left()

    # --- queries of waiting messages -------------------------------------------------------------------

    def having(self, offset: int) -> int:
        return ALL if self.leads and not self.doubted and offset <= self.reached(ALL) else 0

    def in_sync(self, end: int) -> int:
        return ALL if self.leads and not self.doubted else 0

    def reached(self, count: int) -> int:
        """Return the offset up to which the set has the log."""
        replicated = self._progress.replicated
        return self._progress.committed if replicated is None else replicated
