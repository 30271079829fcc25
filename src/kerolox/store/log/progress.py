"""Progress of a log: how far it is appended, flushed, replicated and confirmed.

Flush and replication follow *appended*. Dispatch follows *confirmed*, the part that the promised safety
allows readers to see: the flushed part under synchronous flush, the part in the files under the transient
buffer, all appended data otherwise; with replication, no more than the replicas have.

The ends of the log in its files are kept only by the files (:class:`kerolox.store.disk.segments.Segments`);
this module adds what the files do not know.
"""

from __future__ import annotations

from typing import Protocol

from kerolox.observers import Observers


class Ends(Protocol):
    """Ends of a log in its files."""

    wrote: int
    committed: int
    flushed: int


class Progress:
    """Progress of a log, as offsets. They only increase, except by :meth:`reset` and :meth:`cut`."""

    __slots__ = (
        "_ends",
        "_reported",
        "confirmed",
        "on_committed",
        "on_confirmed",
        "replicated",
        "wait_for_flush",
    )

    def __init__(self, ends: Ends, *, wait_for_flush: bool, replicated: int | None = None) -> None:
        self._ends = ends
        self.wait_for_flush = wait_for_flush
        self.replicated = replicated  # end of the data on enough replicas; None if none are required
        self.confirmed = 0  # end of the data that readers may see
        self.on_confirmed: Observers[[]] = Observers(
            "messages confirmed"
        )  # called when ``confirmed`` has grown
        # Called when ``committed`` has grown: there is more to copy
        self.on_committed: Observers[[]] = Observers("messages committed")
        self._reported = 0  # ``committed`` at their last call

    @property
    def appended(self) -> int:
        """Return the end of the data handed to the operating system, or to the transient buffer."""
        return self._ends.wrote

    @property
    def committed(self) -> int:
        """Return the end of the data handed to the operating system. A flush under way may increase it."""
        return self._ends.committed

    @property
    def flushed(self) -> int:
        """Return the end of the data on the medium. A flush under way may increase it."""
        return self._ends.flushed

    def reset(self) -> None:
        """Confirm the whole log, after recovery."""
        self.confirmed = self._reported = self._ends.wrote
        if self.replicated is not None:
            self.replicated = self.confirmed

    def confirm_to(self, offset: int) -> None:
        """Confirm the log up to ``offset``: enough replicas had it before the start."""
        self.confirmed = self.replicated = offset

    def cut(self, offset: int) -> None:
        """Lower the offsets after a cut of the log at ``offset``."""
        self.confirmed = min(self.confirmed, offset)
        self._reported = min(self._reported, offset)
        if self.replicated is not None:
            self.replicated = min(self.replicated, offset)

    def advance(self) -> None:
        """Compute the confirmed offset, and call the followers if it has grown. The callbacks in
        ``on_committed`` come first, because they may confirm more."""
        ends = self._ends
        if ends.committed > self._reported:
            self._reported = ends.committed
            self.on_committed.tell()
        confirmed = ends.flushed if self.wait_for_flush else ends.committed
        if self.replicated is not None and self.replicated < confirmed:
            confirmed = self.replicated
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            self.on_confirmed.tell()

    def __repr__(self) -> str:
        return (
            f"<appended {self.appended}, committed {self.committed}, flushed {self.flushed}, "
            f"replicated {self.replicated}, confirmed {self.confirmed}>"
        )
