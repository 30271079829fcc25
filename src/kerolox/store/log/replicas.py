"""Followers of this broker's log: those connected, and the acknowledged offset of each.

The leader's end of the connections reports them. A follower is trusted as far as it can be right: one that
claims more than was ever appended here has another history, and its report is ignored. A follower counts as
in sync from its first report on, while it lags by less than ``haMaxGapNotInSync`` bytes.

All numbers of replicas include the leader, as in RocketMQ's settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.store.log.progress import Progress
from kerolox.store.options import StoreOptions

REPLICAS_MAX = 64  # connected at the same time
NOTHING_YET = -1


class TooManyReplicas(KeroloxError):
    """Follower that cannot join, because the limit is reached."""

    retriable = True


@dataclass(slots=True)
class Replica:
    """Connected follower."""

    name: str
    acked: int = NOTHING_YET  # offset up to which it has the log


class Replicas:
    """Followers of one log, by names that are unique while they are connected."""

    def __init__(self, progress: Progress, options: StoreOptions) -> None:
        self._progress = progress
        self._options = options
        self._by_name: dict[str, Replica] = {}
        # called when a follower has more of the log
        self.on_acked: Observers[[]] = Observers("copies acknowledged")
        # called when a follower has left
        self.on_left: Observers[[]] = Observers("follower left")

    # --- reports of the leader's connections -------------------------------------------------------------

    def joined(self, name: str) -> None:
        """Add a connected follower. It counts once it has acknowledged an offset."""
        if name in self._by_name:
            raise ValueError(f"replica {name!r} is connected already: it must leave first")
        if len(self._by_name) >= REPLICAS_MAX:
            raise TooManyReplicas(
                f"follower {name!r} cannot join: {REPLICAS_MAX} are connected, which is the limit"
            )
        self._by_name[name] = Replica(name)

    def acked(self, name: str, offset: int) -> bool:
        """Record the offset that a follower acknowledges. Return False, and ignore it, if it is ahead of this
        log, or no follower of this name is connected."""
        replica = self._by_name.get(name)
        if replica is None or not 0 <= offset <= self._progress.appended:
            return False
        grew = offset > replica.acked
        replica.acked = offset
        if grew:
            self.on_acked()
        return True

    def left(self, name: str) -> None:
        """Remove a follower that is disconnected, or cannot be used."""
        if self._by_name.pop(name, None) is not None:
            self.on_left()

    def cut(self, offset: int) -> None:
        """Lower the acknowledged offsets after a cut of the log at ``offset``."""
        for replica in self._by_name.values():
            replica.acked = min(replica.acked, offset)

    # --- queries -----------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Return the end of the leader's own log."""
        return self._progress.appended

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_name.values())

    def in_sync(self, end: int) -> int:
        """Return the number of replicas that could have the log up to ``end`` soon: those that lag by less
        than the limit."""
        return self.having(self._in_sync_from(end))

    def having(self, offset: int) -> int:
        """Return the number of replicas that have the log up to this offset."""
        count = 1
        for replica in self._by_name.values():
            if replica.acked >= offset:
                count += 1
        return count

    def reached(self, count: int) -> int:
        """Return the offset up to which ``count`` replicas have the log; -1 if there are fewer replicas."""
        if count <= 1:
            return self._progress.appended
        acked = sorted([replica.acked for replica in self._by_name.values()], reverse=True)
        return acked[count - 2] if count - 2 < len(acked) else NOTHING_YET

    def behind(self) -> list[Replica]:
        """Return the connected followers that are not in sync."""
        low = self._in_sync_from(self._progress.appended)
        return [replica for replica in self._by_name.values() if replica.acked < low]

    def _in_sync_from(self, end: int) -> int:
        return max(0, end - self._options.replica_gap_bytes + 1)
