"""Elections by a controller: the role that this broker takes after each of them.

No change of the role waits for the network. To lead, the broker begins an epoch on the disk, starts the parts
of a leader, and registers. To follow, it stops those parts, and searches for the leader in the background. An
epoch older than the known one is only logged: RocketMQ 5.5's controllers fall back at times (DLedger 0.3.2),
and a serving broker continues.
"""

from __future__ import annotations

import logging

from kerolox.broker.base import Base
from kerolox.broker.controlled.known_sets import KnownSets
from kerolox.broker.role.leader_search import LeaderSearch
from kerolox.broker.role.mastership import Mastership, News, news
from kerolox.broker.role.turns import AGAIN_S, RoleTurns
from kerolox.broker.tables.room import Tables
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.replication.epoch_mode import EpochMode
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)


class CannotLead(KeroloxError):
    """This broker was elected, but its disk does not allow it to lead."""


class Elections:
    """Masterships that a controller reports, and their role changes. ``on_role`` is called after each change
    of role."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        mode: EpochMode,
        search: LeaderSearch,
        known: KnownSets,
    ) -> None:
        self.id = 0
        self.known = known
        self.on_role: Observers[[]] = Observers("role taken")
        self._store = base.store
        self._leadership = base.leadership
        self._tables = tables
        self._history = mode.history
        self._in_sync = mode.in_sync
        self._search = search
        self._clock = base.clock
        self._turns: RoleTurns[Mastership] = RoleTurns(self._take, self._not_taken, base.clock)
        self._why = ""
        self._lost_s: float | None = None  # time when this epoch's leader was first missed
        self._began_at = 0  # end of the log when this broker began to lead
        self._not_taken_told = ""
        self._reported_older = -1  # the last logged outdated epoch

    @property
    def mastership(self) -> Mastership:
        """The mastership in effect."""
        return self._leadership.role.mastership

    def start(self, id: int) -> None:
        self.id = id
        self._turns.start()

    async def close(self) -> None:
        """Take no more roles. A change in progress is completed."""
        await self._turns.close()

    # --- reports --------------------------------------------------------------------------------------

    def offer(self, offered: Mastership, why: str) -> News:
        """Offer a mastership that a controller reported. It takes effect in its turn, unless a newer one
        arrives before."""
        found = news(self.mastership, offered)
        if found is News.OLDER:
            if offered.epoch != self._reported_older:
                self._reported_older = offered.epoch
                log.warning(
                    "epoch_fell_back told=%d known=%d master=%d by=%r next='this broker continues; "
                    "restore the controller if it lost its state'",
                    offered.epoch, self.mastership.epoch, offered.id, why,
                )  # fmt: skip
        elif found is News.OTHER_MASTER:
            log.error(
                "two_masters_in_one_epoch epoch=%d known=%d told=%d by=%r next='this broker continues; "
                "elect one of them: kerolox controller elect'",
                offered.epoch, self.mastership.id, offered.id, why,
            )  # fmt: skip
        elif found is not News.NONE and offered.is_there:
            waiting = self._turns.waiting
            if waiting is None or news(waiting, offered) in (News.EPOCH, News.MOVED, News.IN_SYNC):
                self._why = why
                self._turns.offer(offered)
        return found

    def is_followed_since(self, since_s: float | None) -> bool:
        """True if this broker leads, and no other can: all replicas that could be elected have confirmed
        since that time that they follow it."""
        return since_s is not None and self._leadership.leads and self._in_sync.is_followed_since(since_s)

    def lost_leader(self) -> None:
        """Note the time at which the connection to the leader was lost."""
        if self._lost_s is None:
            self._lost_s = self._clock.monotonic_s()

    # --- changes --------------------------------------------------------------------------------------

    def _not_taken(self, offered: Mastership, error: KeroloxError | OSError) -> float:
        text = f"{offered.epoch} {error}"
        if text != self._not_taken_told:
            self._not_taken_told = text
            log.error(
                "role_not_taken epoch=%d master=%d error=%r next='retried'",
                offered.epoch, offered.id, str(error),
            )  # fmt: skip
        if not self._leadership.leads:
            self._leadership.wait(f"it cannot take its role in epoch {offered.epoch}: {error}")
        return AGAIN_S

    async def _take(self, offered: Mastership) -> None:
        found = news(self.mastership, offered)
        if found is News.EPOCH:
            if offered.id == self.id:
                await self._lead(offered)
            else:
                await self._follow(offered)
            self._lost_s = None
            self.on_role()
        elif found is News.MOVED:
            self._leadership.note(offered)
            if offered.id != self.id:
                self._search.look_for(offered.address)
        elif found is News.IN_SYNC:
            if self._leadership.leads:
                await self.known.keep(offered)
                self._in_sync.adopt(offered.in_sync, offered.in_sync_epoch)
            self._leadership.note(offered)
        if not self._leadership.leads:
            await self._note(offered)

    async def _note(self, offered: Mastership) -> None:
        """Store the mastership that a follower received. Nothing depends on it, so the broker follows even if
        this fails."""
        try:
            await self.known.keep(offered)
        except KeroloxError as error:
            log.warning(
                "set_not_noted epoch=%d set_epoch=%d error=%r",
                offered.epoch,
                offered.in_sync_epoch,
                str(error),
            )

    async def _lead(self, offered: Mastership) -> None:
        fenced = self._store.state.obstacles.get(Obstacle.FENCED)
        if fenced is not None:
            raise CannotLead(f"{fenced}; restart this broker when its disk is repaired")
        began_s = self._clock.monotonic_s()
        before = self.mastership
        self._search.stop()
        if self._leadership.leads:
            # Elected again, without another leader in between. New records belong to the new epoch.
            await self._leadership.follow(f"epoch {offered.epoch} begins", leaderless=True)
        await self._leadership.lead(lambda: self._begin(offered), offered)
        without_s = 0.0 if self._lost_s is None else self._clock.monotonic_s() - self._lost_s
        log.info(
            "broker_elected id=%d epoch=%d from=%d in_sync=%r before=%d by=%r took_ms=%.0f "
            "without_leader_ms=%.0f",
            self.id, offered.epoch, self._began_at, sorted(offered.in_sync), before.id, self._why,
            (self._clock.monotonic_s() - began_s) * 1000, without_s * 1000,
        )  # fmt: skip

    async def _begin(self, offered: Mastership) -> None:
        """Begin the epoch. Replication has stopped, and the log is whole and flushed."""
        self._began_at = self._store.log.max_offset
        await self._history.begin(offered.epoch, self._began_at)
        await self.known.keep(offered)
        self._in_sync.lead(self.id, offered.in_sync, offered.in_sync_epoch, offered.epoch)
        for table in (self._tables.topics.table, self._tables.groups):
            table.state_version = offered.epoch
            table.bump()

    async def _follow(self, offered: Mastership) -> None:
        why = f"broker {offered.id} at {offered.address} leads in epoch {offered.epoch}"
        led = self._leadership.leads
        # The search must not find a leader before the link is stopped: its result would be forgotten, and a
        # later one would not count as new.
        self._search.stop()
        if led:
            await self._leadership.follow(why, leaderless=True)
        else:
            await self._leadership.part()
        self._leadership.follow_as(self.id, why, offered)
        for table in (self._tables.topics.table, self._tables.groups):
            table.state_version = offered.epoch
        self._search.look_for(offered.address)
        log.info(
            "broker_follows_elected id=%d epoch=%d leader=%d address=%r led_before=%r end=%d confirmed=%d "
            "by=%r",
            self.id, offered.epoch, offered.id, offered.address, led, self._store.log.max_offset,
            self._store.progress.confirmed, self._why,
        )  # fmt: skip
