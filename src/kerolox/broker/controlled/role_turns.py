"""The one place where a broker under a controller changes its role: one change after the other, and of those
that wait the newest counts.

No turn waits for the network. To lead, an epoch is begun on the disk, the parts of a leader start, and name
servers are told; to follow, those end, and the leader is looked for in the background. An epoch that is older
than the one that is known is told in the log, and nothing else: RocketMQ 5.5's controllers fall back at times
(DLedger 0.3.2), and a broker that serves goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.controlled.known_sets import KnownSets
from kerolox.broker.controlled.leader_search import LeaderSearch
from kerolox.broker.controlled.mastership import NONE_YET, Mastership, News, news
from kerolox.broker.leadership import Leadership
from kerolox.broker.tables.room import Tables
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # after a role that could not be taken


class CannotLead(KeroloxError):
    """It was elected, and its disk does not let it lead."""


class RoleTurns:
    """``heeded`` is the mastership this broker acts by. ``on_role`` hears when it has taken a role."""

    def __init__(
        self,
        store: MessageStore,
        leadership: Leadership,
        tables: Tables,
        history: EpochHistory,
        in_sync: InSyncSet,
        search: LeaderSearch,
        known: KnownSets,
        clock: Clock,
    ) -> None:
        self.id = 0
        self.heeded = NONE_YET
        self.on_role: list[Callable[[], None]] = []
        self._store = store
        self._leadership = leadership
        self._tables = tables
        self._history = history
        self._in_sync = in_sync
        self._search = search
        self._known = known
        self._clock = clock
        self._waiting: Mastership | None = None
        self._why = ""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lost_s: float | None = None  # when this epoch's leader was missed first
        self._began_at = 0  # where the log was when this broker began to lead
        self._not_taken_told = ""
        self._told_older = -1  # the epoch that was last told of as over
        self._turn = asyncio.Lock()

    def start(self, id: int) -> None:
        self.id = id
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Take no more roles; the one that is being taken is taken."""
        if self._task is not None:
            async with self._turn:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- what is told ---------------------------------------------------------------------------------

    def offer(self, told: Mastership, why: str) -> News:
        """What a controller says. It is heeded in its turn, unless something newer comes before."""
        found = news(self.heeded, told)
        if found is News.OLDER:
            if told.epoch != self._told_older:
                self._told_older = told.epoch
                log.warning(
                    "epoch_fell_back told=%d known=%d master=%d by=%r next='this broker goes on as it is; "
                    "restore the controller if it lost its state'",
                    told.epoch, self.heeded.epoch, told.id, why,
                )  # fmt: skip
        elif found is News.OTHER_MASTER:
            log.error(
                "two_masters_in_one_epoch epoch=%d known=%d told=%d by=%r next='this broker goes on as it "
                "is; elect one by kerolox controller elect'",
                told.epoch, self.heeded.id, told.id, why,
            )  # fmt: skip
        elif found is not News.NONE and told.is_there:
            if self._waiting is None or news(self._waiting, told) in (News.EPOCH, News.MOVED, News.IN_SYNC):
                self._waiting, self._why = told, why
            self._wake.set()
        return found

    def is_followed_since(self, since_s: float | None) -> bool:
        """Whether this broker leads, and nobody else can: all that could be elected have said since that time
        that they follow it."""
        return since_s is not None and self._leadership.leads and self._in_sync.is_followed_since(since_s)

    def lost_leader(self) -> None:
        """The connection to the leader is gone: nobody takes messages, as far as this broker knows."""
        if self._lost_s is None:
            self._lost_s = self._clock.monotonic_s()

    # --- heeding it -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            told, self._waiting = self._waiting, None
            if told is None:
                continue
            try:
                async with self._turn:
                    await self._heed(told)
            except (KeroloxError, OSError) as error:
                self._not_taken(told, error)
                await self._clock.sleep(AGAIN_S)
                if self._waiting is None:
                    self._waiting = told
                self._wake.set()
            except Exception:
                log.exception(
                    "role_not_taken epoch=%d next='tried again when the controller tells'", told.epoch
                )

    def _not_taken(self, told: Mastership, error: Exception) -> None:
        text = f"{told.epoch} {error}"
        if text != self._not_taken_told:
            self._not_taken_told = text
            log.error(
                "role_not_taken epoch=%d master=%d error=%r next='tried again'",
                told.epoch, told.id, str(error),
            )  # fmt: skip
        if not self._leadership.leads:
            self._leadership.wait(f"it cannot take its role in epoch {told.epoch}: {error}")

    async def _heed(self, told: Mastership) -> None:
        found = news(self.heeded, told)
        if found is News.EPOCH:
            if told.id == self.id:
                await self._lead(told)
            else:
                await self._follow(told)
            self.heeded, self._lost_s = told, None
            for hears in self.on_role:
                hears()
        elif found is News.MOVED:
            self.heeded = told
            if told.id != self.id:
                self._search.look_for(told.address)
        elif found is News.IN_SYNC:
            if self._leadership.leads:
                await self._known.keep(told)
                self._in_sync.adopt(told.in_sync, told.in_sync_epoch)
            self.heeded = told
        if not self._leadership.leads:
            await self._note(told)

    async def _note(self, told: Mastership) -> None:
        """Write down what a follower heard. Nothing rests on it, so it follows all the same if it cannot."""
        try:
            await self._known.keep(told)
        except KeroloxError as error:
            log.warning(
                "set_not_noted epoch=%d set_epoch=%d error=%r", told.epoch, told.in_sync_epoch, str(error)
            )

    async def _lead(self, told: Mastership) -> None:
        fenced = self._store.state.obstacles.get(Obstacle.FENCED)
        if fenced is not None:
            raise CannotLead(f"{fenced}; start this broker again when its disk is in order")
        began_s = self._clock.monotonic_s()
        before = self.heeded
        self._search.stop()
        if self._leadership.leads:
            # Elected again: nobody else was. What is written from now on is of another epoch.
            self._in_sync.rest()
            await self._leadership.follow(f"epoch {told.epoch} begins", leaderless=True)
        try:
            await self._leadership.lead(lambda: self._begin(told))
        except BaseException:
            self._in_sync.rest()
            raise
        without_s = 0.0 if self._lost_s is None else self._clock.monotonic_s() - self._lost_s
        log.info(
            "broker_elected id=%d epoch=%d from=%d in_sync=%r before=%d by=%r took_ms=%.0f "
            "without_leader_ms=%.0f",
            self.id, told.epoch, self._began_at, sorted(told.in_sync), before.id, self._why,
            (self._clock.monotonic_s() - began_s) * 1000, without_s * 1000,
        )  # fmt: skip

    async def _begin(self, told: Mastership) -> None:
        """Nothing more is copied, the log is whole and flushed: it is this broker's from here on."""
        self._began_at = self._store.log.max_offset
        await self._history.begin(told.epoch, self._began_at)
        await self._known.keep(told)
        self._in_sync.lead(self.id, told.in_sync, told.in_sync_epoch, told.epoch)
        for table in (self._tables.topics.table, self._tables.groups):
            table.state_version = told.epoch
            table.bump()

    async def _follow(self, told: Mastership) -> None:
        why = f"broker {told.id} at {told.address} leads in epoch {told.epoch}"
        led = self._leadership.leads
        # What it finds while this broker parts would be forgotten, and found again it would be nothing new.
        self._search.stop()
        if led:
            self._in_sync.rest()
            await self._leadership.follow(why, leaderless=True)
        else:
            await self._leadership.part()
        self._leadership.follow_as(self.id, why)
        for table in (self._tables.topics.table, self._tables.groups):
            table.state_version = told.epoch
        self._search.look_for(told.address)
        log.info(
            "broker_follows_elected id=%d epoch=%d leader=%d address=%r led_before=%r end=%d confirmed=%d "
            "by=%r",
            self.id, told.epoch, told.id, told.address, led, self._store.log.max_offset,
            self._store.progress.confirmed, self._why,
        )  # fmt: skip
