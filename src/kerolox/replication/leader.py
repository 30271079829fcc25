"""The leader's end: all followers that copy this broker's log.

A follower says where its log ends, and gets what comes then, as soon as it is written here: nobody polls.
Each connection takes what its socket takes and no more, so one that is slow holds up nobody. What a follower
reports is believed only where it can be true: not beyond the end of this log, nor beyond what it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

from kerolox.clock import Clock, TimerHandle
from kerolox.replication.entrance import ENTER_S_MAX, ENTERING_MAX, Trust
from kerolox.replication.epoch_connection import EpochConnection
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.follower_connection import FollowerConnection
from kerolox.replication.hot_ranges import HotRanges
from kerolox.replication.link_state import resync_command
from kerolox.replication.settings import HaSettings
from kerolox.replication.turned_away import Why
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

FOLLOWERS_MAX = 64
LOOK_S = 1.0  # how often heartbeats and silence are looked at
TELL_AGAIN_S = 60.0  # of one peer that is turned away again and again
PEERS_KNOWN_MAX = 1000
LATELY_S = 600.0  # so long it is told to people who ask
LATELY_MAX = 16  # peers and reasons


@dataclass(frozen=True)
class TurnedAwayPeer:
    """The last connection of a host that was closed for a reason, and how many there were lately."""

    address: str
    why: Why
    text: str
    at_ms: int
    at_s: float
    count: int


class Leader:
    """Serves followers while this broker leads. Part of its leadership."""

    def __init__(
        self,
        store: MessageStore,
        settings: HaSettings,
        clock: Clock,
        *,
        broker_address: str = "",
        mode: EpochMode | None = None,
        trust: Trust | None = None,
    ) -> None:
        """``mode``: of a broker under a controller. Its epoch has begun, and the in-sync set is known, before
        it leads. ``trust``: who may copy; None: everybody."""
        self.store = store
        self.mode = mode
        self.trust = trust
        self.resync = resync_command("STORE", broker_address)  # for a follower whose log does not fit
        self.settings = settings
        self.clock = clock
        self.ranges = HotRanges(store)
        self.followers: set[FollowerConnection] = set()
        self._entering: dict[FollowerConnection, float] = {}  # who has not proved who it is → since when
        self.refused: Counter[Why] = Counter()
        self.since_ms = 0  # it leads
        self._turned_away: OrderedDict[tuple[str, Why], TurnedAwayPeer] = OrderedDict()  # by host
        self._leads = False
        self._woken = False
        self._look: TimerHandle | None = None
        self._told_s: dict[str, float] = {}  # address of a peer → when it was last told of
        self._by_id: dict[int, FollowerConnection] = {}  # those who said who they are
        self._gone = asyncio.Event()
        store.progress.on_committed.append(self._wake)

    # --- whether it leads -----------------------------------------------------------------------------

    async def lead(self) -> None:
        self._leads = True
        self.since_ms = self.clock.wall_ms()
        self.ranges.forget()
        if self._look is None:
            self._look_soon()

    async def follow(self) -> None:
        """Send nobody anything any more: what is in this log may be cut. First those who wait for a copy of
        what is stored hear whether there is one; nothing more may be stored."""
        await self.store.acks.settle()
        self._leads = False
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for follower in (*self.followers, *self._entering):
            follower.close()
        while self.followers:
            self._gone.clear()
            await self._gone.wait()

    # --- connections ----------------------------------------------------------------------------------

    def accept(self) -> FollowerConnection:
        return FollowerConnection(self) if self.mode is None else EpochConnection(self, self.mode)

    def enters(self, follower: FollowerConnection) -> None:
        """Somebody has connected who has to prove that they may copy. Whoever does so is quick, so those who
        only take up room make room for others."""
        self._entering[follower] = self.clock.monotonic_s()
        if len(self._entering) > ENTERING_MAX:
            first = next(iter(self._entering))
            self.turn_away(first, Why.TOO_MANY, f"{ENTERING_MAX} others want to prove who they are")

    def connected(self, follower: FollowerConnection) -> None:
        self._entering.pop(follower, None)
        if not self._leads:
            self.turn_away(
                follower, Why.NOT_LEADING, "this broker does not lead, so nothing is copied from it"
            )
            return
        if len(self.followers) >= FOLLOWERS_MAX:
            silent = [one for one in self.followers if not one.joined]
            if not silent:
                self.turn_away(follower, Why.TOO_MANY, f"{FOLLOWERS_MAX} followers are there already")
                return
            first = min(silent, key=lambda one: one.heard_s)
            self.disconnected(first)
            self.turn_away(
                first, Why.TOO_MANY, f"{FOLLOWERS_MAX} connections are there, and this one asks for nothing"
            )
        self.followers.add(follower)

    def disconnected(self, follower: FollowerConnection) -> None:
        self._entering.pop(follower, None)
        if follower not in self.followers:
            return
        self.followers.remove(follower)
        self._gone.set()
        if follower.joined:
            log.info(
                "follower_left peer=%s%s acked=%d",
                follower.address, _id_of(follower), follower.acked,
            )  # fmt: skip
            self.store.replicas.left(follower.address)
        id = follower.follower_id
        if self.mode is not None and id is not None and self._by_id.get(id) is follower:
            del self._by_id[id]
            self.mode.in_sync.left(id)

    def greeted(self, follower: EpochConnection, id: int) -> None:
        """A follower has said who it is. One that came back before its last connection was found to be dead
        has two: the new one counts."""
        before, self._by_id[id] = self._by_id.get(id), follower
        if before is not None:
            self.turn_away(before, Why.REPLACED, f"follower {id} has connected anew, from {follower.address}")

    def other_process(self, id: int, start: int | None) -> str | None:
        """Return the address of another process that is connected with this id, if there is one."""
        before = self._by_id.get(id)
        if start is None or not isinstance(before, EpochConnection) or before.start in (None, start):
            return None
        return before.address

    def joined(self, follower: FollowerConnection) -> None:
        log.info(
            "follower_joined peer=%s%s from=%d behind=%d",
            follower.address, _id_of(follower), follower.next, self.store.progress.committed - follower.next,
        )  # fmt: skip
        self.store.replicas.joined(follower.address)
        if self.mode is not None and follower.follower_id is not None:
            said = follower if isinstance(follower, EpochConnection) else None
            self.mode.in_sync.joined(
                follower.follower_id,
                is_learner=said is not None and said.is_learner,
                is_ours=said is not None and said.start is not None,
            )

    def acked(self, follower: FollowerConnection, offset: int) -> None:
        self.store.replicas.acked(follower.address, offset)
        if self.mode is not None and follower.follower_id is not None:
            self.mode.in_sync.acked(follower.follower_id, offset)

    def turn_away(self, follower: FollowerConnection, why: Why, text: str) -> None:
        """Close it, and say so: once a minute for each peer, for it comes again every few seconds."""
        self._entering.pop(follower, None)
        self.refused[why] += 1
        host = follower.address.rpartition(":")[0]
        now_s = self.clock.monotonic_s()
        before = self._turned_away.pop((host, why), None)
        count = before.count + 1 if before is not None and now_s - before.at_s < LATELY_S else 1
        self._turned_away[host, why] = TurnedAwayPeer(
            follower.address, why, text, self.clock.wall_ms(), now_s, count
        )
        if len(self._turned_away) > LATELY_MAX:
            self._turned_away.popitem(last=False)
        if now_s - self._told_s.get(host, -TELL_AGAIN_S) >= TELL_AGAIN_S:
            if len(self._told_s) >= PEERS_KNOWN_MAX:
                self._told_s.clear()
            self._told_s[host] = now_s
            log.warning("follower_refused peer=%s why=%s reason=%r", follower.address, why.value, text)
        follower.close()

    def turned_away(self) -> list[TurnedAwayPeer]:
        """Who was, lately, the last one first."""
        since_s = self.clock.monotonic_s() - LATELY_S
        return [one for one in reversed(self._turned_away.values()) if one.at_s > since_s]

    # --- what they are sent ---------------------------------------------------------------------------

    def _wake(self) -> None:
        """More was written. All get it in the next turn of the loop, when the senders have their answers."""
        if self.followers and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        for follower in list(self.followers):
            follower.pump()

    def _look_soon(self) -> None:
        settings = self.settings
        look_s = min(LOOK_S, settings.ha_heartbeat_ms / 2000, settings.ha_silence_ms / 4000)
        self._look = self.clock.beat(look_s, self._look_at_all)

    def _look_at_all(self) -> None:
        self._look_soon()
        for follower in list(self.followers):
            follower.look()
        now_s = self.clock.monotonic_s()
        for follower, since_s in list(self._entering.items()):
            if now_s - since_s > ENTER_S_MAX:
                self.turn_away(
                    follower, Why.TOO_SLOW, f"it has not proved in {ENTER_S_MAX:.0f} s that it may copy"
                )


def _id_of(follower: FollowerConnection) -> str:
    return "" if follower.follower_id is None else f" id={follower.follower_id}"
