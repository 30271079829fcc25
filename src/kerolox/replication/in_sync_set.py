"""The in-sync set of a leader under a controller: the replicas with all acknowledged messages, which may be
elected.

The controller stores the set and elects only its members. So an offset is confirmed only if all replicas in
the known set *and* in a requested, unanswered set have it: the controller may have either. A replica is
removed only after the controller has answered.

A follower that has caught up under load is always slightly behind. So before the controller is asked to add
it, it already counts here: until it reaches that offset nothing that it lacks is confirmed, and afterwards it
has everything that is confirmed.

Decisions only: connections report the followers' progress, and the part that calls the controller asks
:meth:`wanted`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kerolox.clock import Clock, TimerHandle
from kerolox.observers import Observers
from kerolox.replication.settings import InSyncSettings
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

JOIN_GAP_BYTES = 4 << 20  # a follower that lacks more may not join
JOIN_S = 1.0  # limit of waiting for a joining follower
JOIN_AGAIN_S = 1.0  # pause after a failed join; doubles each time
JOIN_AGAIN_MAX_S = 30.0
MEMBERS_MAX = 65  # per set, including the leader
NOTHING_YET = -1


class MemberStatus(NamedTuple):
    """One replica, for display."""

    id: int
    in_set: bool
    connected: bool
    is_learner: bool
    acked: int  # -1: no report yet


@dataclass(slots=True)
class _Follower:
    """A replica other than the leader, as far as it is known."""

    acked: int = NOTHING_YET
    connected: bool = False
    is_learner: bool = False
    is_ours: bool = False
    caught_up: bool = False  # at some time during this connection
    there_s: float = 0.0  # last time at which it had everything
    not_before_s: float = 0.0  # it may not join before
    again_s: float = JOIN_AGAIN_S  # next pause after a failed join

    def not_now(self, now_s: float) -> None:
        """Record a failed join."""
        self.not_before_s = now_s + self.again_s
        self.again_s = min(JOIN_AGAIN_MAX_S, self.again_s * 2)


class InSyncSet:
    """The set, while this broker leads."""

    def __init__(self, store: MessageStore, settings: InSyncSettings, clock: Clock) -> None:
        self.own_id = 0
        self.members: frozenset[int] = frozenset()  # as the controller answered last
        self.set_epoch = 0  # the number of that set
        self.master_epoch = 0
        # called when wanted() may have changed
        self.on_wanted: Observers[[]] = Observers("wanted set changed")
        self._asked: frozenset[int] | None = None  # requested from the controller, not answered yet
        self._joining: dict[int, float] = {}  # joining replicas, which count already, with their deadline
        self._followers: dict[int, _Follower] = {}
        self._epoch_start = 0
        self._timer: TimerHandle | None = None
        self._progress = store.progress
        self._copies = store.copies
        self._settings = settings
        self._clock = clock

    @property
    def leads(self) -> bool:
        """True between :meth:`lead` and :meth:`rest`, which belong to the change of the broker's role."""
        return self._copies.leads

    # --- called by the part that talks to the controller ------------------------------------------------

    def lead(self, own_id: int, members: Iterable[int], set_epoch: int, master_epoch: int) -> None:
        """Begin to lead. Call it when the log is complete and its epoch has begun, before anything is
        appended. If the set contains only this broker, all of its log is confirmed at once."""
        self.own_id = own_id
        self.members = self._checked(members)
        self.set_epoch = set_epoch
        self.master_epoch = master_epoch
        self._asked = None
        self._joining.clear()
        self._epoch_start = self._progress.committed
        self._reach()
        self._look()

    def rest(self) -> None:
        """Stop leading. Waiting sends are told that the set did not confirm them."""
        self.members = frozenset()
        self._asked = None
        self._joining.clear()
        self._set_timer(None)
        self._copies.lose()

    def adopt(self, members: Iterable[int], set_epoch: int) -> bool:
        """Take over a set from an answer of the controller. Return False if it is not newer, which proves
        nothing: an unanswered request may still be carried out."""
        if not self.leads or set_epoch <= self.set_epoch:
            return False
        before, self.members = self.members, self._checked(members)
        self.set_epoch = set_epoch
        self._asked = None
        for one in self.members:
            self._joining.pop(one, None)
        log.info(
            "in_sync_set members=%r before=%r number=%d confirmed=%d",
            sorted(self.members), sorted(before), set_epoch, self._progress.confirmed,
        )  # fmt: skip
        self._count()
        self._look()
        return True

    def asked(self, members: Iterable[int]) -> None:
        """Record a request for this set. Both sets count until it is answered, so call it before the request
        is sent."""
        if self.leads:
            self._asked = self._checked(members)
            for one in self._asked:
                self._joining.pop(one, None)
            self._count()

    def refused(self) -> None:
        """The controller rejected the request, so it will not be carried out.

        Do not call it for an unanswered request, nor if the controller reports another set or master: it may
        have carried out an earlier request then, and :meth:`adopt` is called once the newer set is known.
        """
        if self.leads and self._asked is not None:
            for one in self._asked - self.members:
                if one in self._followers:
                    self._followers[one].not_now(self._clock.monotonic_s())
            self._asked = None
            self._count()

    # --- called by connections -----------------------------------------------------------------------

    def joined(self, id: int, *, is_learner: bool = False, is_ours: bool = False) -> None:
        """A follower is connected and replicates from its log end. ``is_ours``: it is a kerolox broker."""
        self._joining.pop(id, None)
        self._followers[id] = _Follower(
            connected=True, is_learner=is_learner, is_ours=is_ours, there_s=self._clock.monotonic_s()
        )

    def acked(self, id: int, offset: int) -> None:
        """Record that a follower has the log up to this offset."""
        follower = self._followers.get(id)
        if follower is None or not follower.connected:
            return
        follower.acked = offset
        if offset >= self._progress.committed:
            follower.caught_up = True
            follower.there_s = self._clock.monotonic_s()
        if not self.leads:
            return
        if self._counts(id):
            self._count()
            if id in self._joining and offset >= self._progress.confirmed:
                self._look()
        elif self._may_join(follower):
            self._joining[id] = self._clock.monotonic_s() + JOIN_S
            self._set_timer(JOIN_S)
            self._count()
            if offset >= self._progress.confirmed:
                self._look()

    def caught_up(self, id: int, at_s: float) -> None:
        """Record that a follower has everything up to the log end at that time."""
        follower = self._followers.get(id)
        if follower is not None:
            follower.caught_up = True
            follower.there_s = max(follower.there_s, at_s)

    def left(self, id: int) -> None:
        """Record that a follower is disconnected."""
        follower = self._followers.get(id)
        if follower is None:
            return
        follower.connected = False
        self._joining.pop(id, None)
        if id in self._union:
            self._count()
            self._look()
        else:
            del self._followers[id]
            self._count()

    # --- queries -----------------------------------------------------------------------------------------

    def wanted(self) -> frozenset[int] | None:
        """Return the set to request from the controller; None if it has it, or a request is open. Call it
        regularly, because slow followers are detected by time."""
        if not self.leads or self._asked is not None:
            return None
        slow_s = self._clock.monotonic_s() - self._settings.ha_catch_up_ms / 1000
        wanted = {self.own_id}
        for id in self.members:
            follower = self._followers.get(id)
            if follower is None or not follower.connected:
                continue
            if follower.acked >= self._progress.committed or follower.there_s >= slow_s:
                wanted.add(id)
        for id in self._joining:
            if self._followers[id].acked >= self._progress.confirmed:
                wanted.add(id)
        return None if wanted == self.members else frozenset(wanted)

    def is_followed_since(self, since_s: float) -> bool:
        """Return whether all other electable replicas have reported since then that they have everything."""
        others = [self._followers.get(id) for id in self._union - {self.own_id}]
        return self.leads and all(
            follower is not None and follower.connected and follower.there_s >= since_s for follower in others
        )

    @property
    def electable(self) -> frozenset[int]:
        """Ids of the followers that may be elected, as far as this leader knows."""
        return self._union - {self.own_id}

    @property
    def electable_ours(self) -> frozenset[int]:
        """The electable followers that are kerolox brokers."""
        known = self._followers
        return frozenset(id for id in self.electable if id in known and known[id].is_ours)

    def confirmed_end(self) -> int:
        """Return the offset up to which the log is acknowledged and readable."""
        return self._progress.confirmed

    def status(self) -> list[MemberStatus]:
        """Return all known replicas by id, while this broker leads."""
        return [
            MemberStatus(
                id,
                id in self.members,
                id == self.own_id or (id in self._followers and self._followers[id].connected),
                id in self._followers and self._followers[id].is_learner,
                self._progress.committed
                if id == self.own_id
                else self._followers[id].acked
                if id in self._followers
                else NOTHING_YET,
            )
            for id in sorted(self.members | self._followers.keys())
        ]

    # --- counting ------------------------------------------------------------------------------------------

    @property
    def _union(self) -> frozenset[int]:
        return self.members if self._asked is None else self.members | self._asked

    def _counts(self, id: int) -> bool:
        return id in self._union or id in self._joining

    def _may_join(self, follower: _Follower) -> bool:
        now_s = self._clock.monotonic_s()
        return (
            self._asked is None
            and not follower.is_learner
            and follower.caught_up
            and follower.acked >= max(self._epoch_start, self._progress.committed - JOIN_GAP_BYTES)
            and now_s >= follower.not_before_s
            and len(self._joining) + len(self.members) < MEMBERS_MAX
        )

    def _count(self) -> None:
        """Compute the offset that all counting replicas have, in one pass per report."""
        if self.leads:
            self._reach()

    def _reach(self) -> None:
        progress, copies = self._progress, self._copies
        copies.all_ack = self._settings.all_ack
        size = max(len(self.members), 0 if self._asked is None else len(self._asked))
        others = (self._union | self._joining.keys()) - {self.own_id}
        if not others:
            copies.reach(None, size)
            return
        end = progress.committed
        for id in others:
            follower = self._followers.get(id)
            if follower is None or not follower.connected:
                # Its progress is unknown, and confirmed offsets never decrease.
                end = progress.confirmed if progress.replicated is None else progress.replicated
                break
            end = min(end, follower.acked)
        copies.reach(end, size)

    def _look(self) -> None:
        self.on_wanted()

    # --- followers that do not arrive ----------------------------------------------------------------------

    def _set_timer(self, delay_s: float | None) -> None:
        if delay_s is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self._clock.call_later(delay_s, self._give_up)

    def _give_up(self) -> None:
        """Stop waiting for joining followers that are still behind or were not requested in time: the offset
        that all others have is confirmed."""
        self._timer = None
        now_s = self._clock.monotonic_s()
        for id, until_s in list(self._joining.items()):
            if until_s <= now_s:
                del self._joining[id]
                self._followers[id].not_now(now_s)
        if self._joining:
            self._set_timer(JOIN_S)
        self._count()

    def _checked(self, members: Iterable[int]) -> frozenset[int]:
        found = frozenset(members)
        if len(found) > MEMBERS_MAX:
            raise ValueError(f"an in-sync set of {len(found)} members, the limit is {MEMBERS_MAX}")
        return found
