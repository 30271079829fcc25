"""Four offsets of a log, kept apart: appended, flushed, replicated, confirmed.

Flush and replication follow *appended*. Dispatch follows *confirmed*, which is what the promised
safety allows readers to see: the flushed part under synchronous flush, what is in the file under the
transient buffer, all that was appended otherwise; with replication, no more than the replicas have.
"""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """How far the log is, in each of its four senses. Offsets only grow, except by :meth:`reset` and
    :meth:`cut`."""

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
        self.appended = 0  # given an offset and handed to the operating system, or to the transient buffer
        self.committed = 0  # handed to the operating system
        self.flushed = 0  # on the medium
        self.replicated: int | None = None  # on enough replicas; None when none are asked for
        self.confirmed = 0  # may be seen
        self.followers: list[Callable[[], None]] = []  # woken when confirmed grew
        self.on_committed: list[Callable[[], None]] = []  # woken when committed grew: there is more to copy
        self._told = 0  # what was committed when they were

    def reset(self, offset: int) -> None:
        """All at one place: after recovery or truncation."""
        self.appended = self.committed = self.flushed = self.confirmed = self._told = offset
        if self.replicated is not None:
            self.replicated = offset

    def cut(self, offset: int) -> None:
        """The log ends here now; what was not flushed before this place still is not."""
        self.appended = min(self.appended, offset)
        self.committed = min(self.committed, offset)
        self.flushed = min(self.flushed, offset)
        self.confirmed = min(self.confirmed, offset)
        self._told = min(self._told, offset)
        if self.replicated is not None:
            self.replicated = min(self.replicated, offset)

    def advance(self) -> None:
        """Work out what is confirmed now, and wake the followers if that is more. Those who copy what is
        committed come first: what they do may confirm more."""
        if self.committed > self._told:
            self._told = self.committed
            for copier in self.on_committed:
                copier()
        confirmed = self.flushed if self.wait_for_flush else self.committed
        if self.replicated is not None and self.replicated < confirmed:
            confirmed = self.replicated
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            for follower in self.followers:
                follower()

    def __repr__(self) -> str:
        return (
            f"<appended {self.appended}, committed {self.committed}, flushed {self.flushed}, "
            f"replicated {self.replicated}, confirmed {self.confirmed}>"
        )
