"""The leader's connection to one follower under a controller.

The follower sends a hello with its id and receives the epochs of this log. It truncates its log to the last
common offset and reports its end; from then on it receives the following ranges, each with its epoch and the
confirmed offset. kerolox followers and Apache's are served alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.errors import ProtocolError
from kerolox.protocol.ha_epochs import (
    EPOCH_RANGE_BYTES_MAX,
    NO_EPOCH,
    Epoch,
    FollowerFrames,
    Hello,
    ProcessNumber,
    pack_epoch_head,
    pack_welcome,
)
from kerolox.protocol.limits import INT64_MAX
from kerolox.replication.epoch_history import epoch_at, epoch_end
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.follower_connection import FollowerConnection
from kerolox.replication.turned_away import Why
from kerolox.store.disk.epoch_file import Epochs

if TYPE_CHECKING:
    from kerolox.replication.leader import Leader


class EpochConnection(FollowerConnection):
    """Connection that also reports the follower's progress to the in-sync set."""

    batch_bytes_max = EPOCH_RANGE_BYTES_MAX

    def __init__(self, leader: Leader, mode: EpochMode) -> None:
        super().__init__(leader)
        self._mode = mode
        self._frames = FollowerFrames()
        self._hello: Hello | None = None
        self.start: int | None = None  # number of the follower's process, if sent
        self._entries: Epochs = ()  # epochs of this log from which the next two were computed
        self._epoch = Epoch(NO_EPOCH, 0)  # epoch of the next range,
        self._epoch_end = -1  # and the end of that epoch
        self._confirmed = -1  # confirmed offset sent last
        self._head = self._pack_head

    @property
    def is_learner(self) -> bool:
        return self._hello is not None and self._hello.is_learner

    @property
    def in_sync(self) -> bool:
        """True if the follower may be elected leader."""
        return self.follower_id in self._mode.in_sync.members

    @property
    def epoch(self) -> int:
        """The epoch of the range sent last; -1 before the first."""
        return self._epoch.number

    # --- received ---------------------------------------------------------------------------------

    def _hear(self, data: bytes) -> None:
        report: int | None = None
        for said in self._frames.feed(data):
            if isinstance(said, ProcessNumber):
                self.start = said.start
            elif isinstance(said, Hello):
                self._greet(said)
            elif self._hello is None:
                raise ProtocolError(f"the follower reported {said} before its hello")
            else:
                report = said  # the last one counts
        if report is not None and self._transport is not None and not self._transport.is_closing():
            self._reported(report)

    def _greet(self, hello: Hello) -> None:
        """Answer a hello, once. Apache's follower repeats its hello every 5 s until it has read the answer,
        and treats a second answer as an error of the leader."""
        if self._hello == hello or self._transport is None:
            return
        leader, history = self._leader, self._mode.history
        if self._hello is not None:
            leader.turn_away(
                self,
                Why.OTHER_ID,
                f"it identifies as follower {hello.follower_id}, and as {self._hello.follower_id} before",
            )
        elif hello.follower_id == self._mode.own_id:
            leader.turn_away(
                self,
                Why.OTHER_ID,
                f"it identifies as {hello.follower_id}, which is this leader's own id. Two brokers have "
                "one identity: was a store directory copied? Remove brokerIdentity from the copy",
            )
        elif (other := leader.other_process(hello.follower_id, self.start)) is not None:
            leader.turn_away(
                self,
                Why.OTHER_ID,
                f"it identifies as follower {hello.follower_id}, and so does another process, which is "
                f"connected from {other}. Two brokers have one identity: was a store directory copied? "
                "Remove brokerIdentity* and epochFileCheckpoint* from the copy. A restarted follower is "
                "accepted once its previous connection has closed or timed out",
            )
        elif not history.entries:
            leader.turn_away(self, Why.NOT_LEADING, "this broker has no epoch yet, so it is not a leader")
        else:
            self._hello, self.follower_id = hello, hello.follower_id
            leader.greeted(self, hello.follower_id)
            self._transport.write(pack_welcome(leader.store.progress.committed, history.entries))

    def _first(self, low: int, end: int) -> int:
        if self._hello is not None and self._hello.from_last_file:
            return max(low, end - end % self._leader.store.segments.size)
        return low

    def _heard_again(self) -> None:
        self._leader.acked(self, self.acked)  # the follower may meanwhile be ready to join the set

    def _look_at_mark(self, end: int) -> None:
        reached = 0 <= self._mark <= self.acked
        super()._look_at_mark(end)
        if reached and self.follower_id is not None:
            self._mode.in_sync.caught_up(self.follower_id, self._was_there_s)

    # --- sent -------------------------------------------------------------------------------------

    def _available(self) -> int:
        """Return the number of bytes that can be sent together: all of one epoch."""
        self._find_epoch()
        return min(super()._available(), self._epoch_end - self.next)

    def _find_epoch(self) -> None:
        entries = self._mode.history.entries
        if entries is not self._entries or self.next >= self._epoch_end:
            self._entries = entries
            self._epoch = epoch_at(entries, self.next) if entries else Epoch(NO_EPOCH, 0)
            self._epoch_end = epoch_end(entries, self.next) if entries else INT64_MAX

    def _pack_head(self, offset: int, length: int) -> bytes:
        if not length:
            self._find_epoch()
        self._confirmed = self._leader.store.progress.confirmed
        return pack_epoch_head(offset, length, self._epoch, self._confirmed)

    def _has_news(self) -> bool:
        """Return whether a higher confirmed offset must be sent: the follower's consumers read up to it."""
        return self._leader.store.progress.confirmed > self._confirmed
