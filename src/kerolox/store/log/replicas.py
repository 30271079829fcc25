"""Who has what of this broker's log: the followers that are connected, and how far each of them is.

The leader's end of the connections tells it. Followers are believed as far as they can be right: one that
claims more than was ever appended here has another history, and what it says does not count. A follower
counts as in sync from its first word on, while it lacks less than ``haMaxGapNotInSync`` bytes.

All numbers of replicas count the leader, as RocketMQ's settings do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kerolox.errors import KeroloxError
from kerolox.store.log.progress import Progress
from kerolox.store.options import StoreOptions

REPLICAS_MAX = 64  # connected at once
NOTHING_YET = -1


class TooManyReplicas(KeroloxError):
    """Another follower cannot join."""

    retriable = True


@dataclass(slots=True)
class Replica:
    """One follower that is connected."""

    name: str
    acked: int = NOTHING_YET  # it has the log up to here


class Replicas:
    """The followers of one log, by names that are unique as long as they are connected."""

    def __init__(self, progress: Progress, options: StoreOptions) -> None:
        self._progress = progress
        self._options = options
        self._by_name: dict[str, Replica] = {}
        self.on_acked: list[Callable[[], None]] = []  # hear that a follower has more
        self.on_left: list[Callable[[], None]] = []  # hear that there is one less

    # --- told by the leader's end of the connections ---------------------------------------------------

    def joined(self, name: str) -> None:
        """It is connected. It counts when it has said what it has."""
        if name in self._by_name:
            raise ValueError(f"replica {name!r} is here already: it has to leave first")
        if len(self._by_name) >= REPLICAS_MAX:
            raise TooManyReplicas(f"follower {name!r} cannot join: {REPLICAS_MAX} have, which is the limit")
        self._by_name[name] = Replica(name)

    def acked(self, name: str, offset: int) -> bool:
        """It says that it has the log up to here. False when that cannot be, and does not count: it is ahead
        of this log, or nobody of that name is connected."""
        replica = self._by_name.get(name)
        if replica is None or not 0 <= offset <= self._progress.appended:
            return False
        grew = offset > replica.acked
        replica.acked = offset
        if grew:
            for told in self.on_acked:
                told()
        return True

    def left(self, name: str) -> None:
        """It is not connected any more, or cannot be used."""
        if self._by_name.pop(name, None) is not None:
            for told in self.on_left:
                told()

    def cut(self, offset: int) -> None:
        """The log ends here now: nobody has more of it."""
        for replica in self._by_name.values():
            replica.acked = min(replica.acked, offset)

    # --- asked -------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where the leader's own log ends."""
        return self._progress.appended

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_name.values())

    def in_sync(self, end: int) -> int:
        """How many could have the log up to ``end`` soon: those that lack less than may be lacking."""
        return self.having(self._in_sync_from(end))

    def having(self, offset: int) -> int:
        """How many have the log up to this offset."""
        count = 1
        for replica in self._by_name.values():
            if replica.acked >= offset:
                count += 1
        return count

    def reached(self, count: int) -> int:
        """Up to where so many have the log; -1 when there are not so many."""
        if count <= 1:
            return self._progress.appended
        acked = sorted([replica.acked for replica in self._by_name.values()], reverse=True)
        return acked[count - 2] if count - 2 < len(acked) else NOTHING_YET

    def behind(self) -> list[Replica]:
        """Those that are connected and not in sync."""
        low = self._in_sync_from(self._progress.appended)
        return [replica for replica in self._by_name.values() if replica.acked < low]

    def _in_sync_from(self, end: int) -> int:
        return max(0, end - self._options.replica_gap_bytes + 1)
