"""Four offsets of a log: appended, flushed, replicated, confirmed.

Flush and replication follow *appended*. Dispatch follows *confirmed*, the part that the promised safety
allows readers to see: the flushed part under synchronous flush, the part in the files under the transient
buffer, all appended data otherwise; with replication, no more than the replicas have.
"""

from __future__ import annotations

from kerolox.observers import Observers


class Progress:
    """Progress of a log, as four offsets. They only increase, except by :meth:`reset` and :meth:`cut`."""

    __slots__ = (
        "_told",
        "appended",
        "committed",
        "confirmed",
        "flushed",
        "followers",
        "on_committed",
        "replicated",
        "wait_for_flush",
    )

    def __init__(self, *, wait_for_flush: bool) -> None:
        self.wait_for_flush = wait_for_flush
        self.appended = 0  # end of the data handed to the operating system, or to the transient buffer
        self.committed = 0  # end of the data handed to the operating system
        self.flushed = 0  # end of the data on the medium
        self.replicated: int | None = None  # end of the data on enough replicas; None if none are required
        self.confirmed = 0  # end of the data that readers may see
        self.followers: Observers[[]] = Observers("messages confirmed")  # called when ``confirmed`` has grown
        # Called when ``committed`` has grown: there is more to copy
        self.on_committed: Observers[[]] = Observers("messages committed")
        self._told = 0  # ``committed`` at their last call

    def reset(self, offset: int) -> None:
        """Set all offsets to one place, after recovery or truncation."""
        self.appended = self.committed = self.flushed = self.confirmed = self._told = offset
        if self.replicated is not None:
            self.replicated = offset

    def cut(self, offset: int) -> None:
        """Lower the offsets after a cut of the log at ``offset``; unflushed data before it stays
        unflushed."""
        self.appended = min(self.appended, offset)
        self.committed = min(self.committed, offset)
        self.flushed = min(self.flushed, offset)
        self.confirmed = min(self.confirmed, offset)
        self._told = min(self._told, offset)
        if self.replicated is not None:
            self.replicated = min(self.replicated, offset)

    def advance(self) -> None:
        """Compute the confirmed offset, and call the followers if it has grown. The callbacks in
        ``on_committed`` come first, because they may confirm more."""
        if self.committed > self._told:
            self._told = self.committed
            self.on_committed()
        confirmed = self.flushed if self.wait_for_flush else self.committed
        if self.replicated is not None and self.replicated < confirmed:
            confirmed = self.replicated
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            self.followers()

    def __repr__(self) -> str:
        return (
            f"<appended {self.appended}, committed {self.committed}, flushed {self.flushed}, "
            f"replicated {self.replicated}, confirmed {self.confirmed}>"
        )
