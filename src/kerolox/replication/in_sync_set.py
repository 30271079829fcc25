"""The in-sync set of a leader under a controller: who has all that is acknowledged, and may lead next.

The controller keeps the set and elects nobody else. So the leader counts, for what it acknowledges and shows,
everybody in the set it knows *and* in the one it has asked for and not been answered about: the controller
may have either. Somebody is taken out when the controller has said so, not before.

A follower that has caught up under load is always a little behind. So before the controller is asked to take
it in, it is counted here already: for a moment nothing is confirmed that it lacks, it arrives there, and from
then on it has all that is confirmed.

Plain decisions: connections tell what followers have, whoever talks to the controller asks :meth:`wanted`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kerolox.clock import Clock, TimerHandle
from kerolox.replication.settings import InSyncSettings
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

JOIN_GAP_BYTES = 4 << 20  # who lacks more is not waited for
JOIN_S = 1.0  # nor for longer than this
JOIN_AGAIN_S = 1.0  # who did not come that far is not waited for again so soon; then twice as long
JOIN_AGAIN_MAX_S = 30.0
MEMBERS_MAX = 65  # of a set, the leader counted
NOTHING_YET = -1


class MemberStatus(NamedTuple):
    """One replica, for people."""

    id: int
    in_set: bool
    connected: bool
    is_learner: bool
    acked: int  # -1: nothing was heard of it


@dataclass(slots=True)
class _Follower:
    """One replica beside the leader, as far as anything was heard of it."""

    acked: int = NOTHING_YET
    connected: bool = False
    is_learner: bool = False
    is_ours: bool = False
    caught_up: bool = False  # at some time since it is connected
    there_s: float = 0.0  # when it last had all there was
    not_before_s: float = 0.0  # it is not waited for
    again_s: float = JOIN_AGAIN_S  # for so long the next time

    def not_now(self, now_s: float) -> None:
        """It was waited for in vain."""
        self.not_before_s = now_s + self.again_s
        self.again_s = min(JOIN_AGAIN_MAX_S, self.again_s * 2)


class InSyncSet:
    """The set, as long as this broker leads."""

    def __init__(self, store: MessageStore, settings: InSyncSettings, clock: Clock) -> None:
        self.own_id = 0
        self.members: frozenset[int] = frozenset()  # as the controller has said
        self.set_epoch = 0  # the number of that set
        self.master_epoch = 0
        self.leads = False
        self.on_wanted: list[Callable[[], None]] = []  # hear that wanted() may have an answer now
        self._asked: frozenset[int] | None = None  # and not been answered about
        self._joining: dict[int, float] = {}  # counted before they are asked for, and until when
        self._followers: dict[int, _Follower] = {}
        self._epoch_start = 0
        self._timer: TimerHandle | None = None
        self._progress = store.progress
        self._copies = store.copies
        self._settings = settings
        self._clock = clock

    # --- told by whoever talks to the controller ---------------------------------------------------------

    def lead(self, own_id: int, members: Iterable[int], set_epoch: int, master_epoch: int) -> None:
        """This broker leads. To be called when the log is whole and its epoch has begun, before anything is
        appended. Alone in its set, all of its log is confirmed from now on."""
        self.own_id = own_id
        self.members = self._checked(members)
        self.set_epoch = set_epoch
        self.master_epoch = master_epoch
        self.leads = True
        self._asked = None
        self._joining.clear()
        self._epoch_start = self._progress.committed
        self._count()
        self._look()

    def rest(self) -> None:
        """It does not lead any more. Whoever waits for the set is told that this did not come to pass."""
        self.leads = False
        self.members = frozenset()
        self._asked = None
        self._joining.clear()
        self._set_timer(None)
        self._copies.lose()

    def adopt(self, members: Iterable[int], set_epoch: int) -> bool:
        """The controller has this set: answered, or found by asking. False when it is not newer, and says
        nothing: a question that was not answered may still be carried out."""
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
        """The controller is asked for this set. Both count until it has answered: call it before the question
        leaves."""
        if self.leads:
            self._asked = self._checked(members)
            for one in self._asked:
                self._joining.pop(one, None)
            self._count()

    def refused(self) -> None:
        """It has said no, so the question will not be carried out. Not for one that was not answered; nor
        when it says that its set, or its master, is another one: it may have carried out an earlier one then,
        and :meth:`adopt` tells when the newer set is known."""
        if self.leads and self._asked is not None:
            for one in self._asked - self.members:
                if one in self._followers:
                    self._followers[one].not_now(self._clock.monotonic_s())
            self._asked = None
            self._count()

    # --- told by the connections ---------------------------------------------------------------------

    def joined(self, id: int, *, is_learner: bool = False, is_ours: bool = False) -> None:
        """A follower is connected, and goes on where its log ends. ``is_ours``: it is no broker of
        RocketMQ."""
        self._joining.pop(id, None)
        self._followers[id] = _Follower(
            connected=True, is_learner=is_learner, is_ours=is_ours, there_s=self._clock.monotonic_s()
        )

    def acked(self, id: int, offset: int) -> None:
        """It has the log up to here."""
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
        """It has all that there was at that time."""
        follower = self._followers.get(id)
        if follower is not None:
            follower.caught_up = True
            follower.there_s = max(follower.there_s, at_s)

    def left(self, id: int) -> None:
        """It is not connected any more."""
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

    # --- asked -------------------------------------------------------------------------------------------

    def wanted(self) -> frozenset[int] | None:
        """The set the controller should have; None: the one it has, or it is being asked already. For now and
        then as well: who is slow is found out by time."""
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
        """Whether all others that could be elected have said since then that they have everything."""
        others = [self._followers.get(id) for id in self._union - {self.own_id}]
        return self.leads and all(
            follower is not None and follower.connected and follower.there_s >= since_s for follower in others
        )

    @property
    def electable(self) -> frozenset[int]:
        """The ids of the followers that may lead next, as far as this leader knows."""
        return self._union - {self.own_id}

    @property
    def electable_ours(self) -> frozenset[int]:
        """Those of them that are no brokers of RocketMQ."""
        known = self._followers
        return frozenset(id for id in self.electable if id in known and known[id].is_ours)

    def confirmed_end(self) -> int:
        """Up to where the log is acknowledged and seen."""
        return self._progress.confirmed

    def status(self) -> list[MemberStatus]:
        """All that are known, by id; while this broker leads."""
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
        """Work out how far all that count have the log. One pass over them for each report."""
        if not self.leads:
            return
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
                # Nobody knows what it has, and nothing is taken back.
                end = progress.confirmed if progress.replicated is None else progress.replicated
                break
            end = min(end, follower.acked)
        copies.reach(end, size)

    def _look(self) -> None:
        for told in self.on_wanted:
            told()

    # --- followers that do not arrive ----------------------------------------------------------------------

    def _set_timer(self, delay_s: float | None) -> None:
        if delay_s is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self._clock.call_later(delay_s, self._give_up)

    def _give_up(self) -> None:
        """Wait no longer for who is still behind, or whom nobody asks for: what all others have is
        confirmed."""
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
            raise ValueError(f"an in-sync set of {len(found)} members: at most {MEMBERS_MAX}")
        return found
