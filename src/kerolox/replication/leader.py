"""The leader: serves all followers that replicate this broker's log.

A follower reports the end of its log and receives the following bytes as soon as they are written; it does
not poll. Each connection receives only what its socket accepts, so a slow follower delays no other. A report
is accepted only if it is possible: not beyond the end of this log, nor beyond the bytes sent.
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
LOOK_S = 1.0  # interval of heartbeats and checks of silence
TELL_AGAIN_S = 60.0  # interval of warnings about the same rejected peer
PEERS_KNOWN_MAX = 1000
LATELY_S = 600.0  # time for which a rejection is shown in the status
LATELY_MAX = 16  # peers and reasons shown


@dataclass(frozen=True)
class TurnedAwayPeer:
    """The last rejected connection of a host, and the number of recent rejections."""

    address: str
    why: Why
    text: str
    at_ms: int
    at_s: float
    count: int


class Leader:
    """Serves followers while this broker leads. Part of a broker's leadership."""

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
        """``mode``: set for a broker under a controller; its epoch has begun, and the in-sync set is known,
        before it leads. ``trust``: followers that may replicate; None: all."""
        self.store = store
        self.mode = mode
        self.trust = trust
        # command for a follower whose log does not match
        self.resync = resync_command("STORE", broker_address)
        self.settings = settings
        self.clock = clock
        self.ranges = HotRanges(store)
        self.followers: set[FollowerConnection] = set()
        self._entering: dict[FollowerConnection, float] = {}  # unauthenticated connections, with their start
        self.refused: Counter[Why] = Counter()
        self.since_ms = 0  # start of its leadership
        self._turned_away: OrderedDict[tuple[str, Why], TurnedAwayPeer] = OrderedDict()  # by host
        self._woken = False
        self._look: TimerHandle | None = None  # runs while this broker leads
        self._told_s: dict[str, float] = {}  # address of a peer → time of the last warning
        self._by_id: dict[int, FollowerConnection] = {}  # followers that have sent their id
        self._gone = asyncio.Event()
        store.progress.on_committed.append(self._wake)

    # --- leadership -----------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        return self._look is not None

    async def lead(self) -> None:
        self.since_ms = self.clock.wall_ms()
        self.ranges.forget()
        if self._look is None:
            self._look_soon()

    async def follow(self) -> None:
        """Stop sending: this log may be truncated. First all waiting sends are told whether their message has
        a copy; no message may be stored after that."""
        await self.store.acks.settle()
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
        """A connection that must authenticate was opened. Authentication is fast, so beyond the limit the
        oldest unfinished connection is closed."""
        self._entering[follower] = self.clock.monotonic_s()
        if len(self._entering) > ENTERING_MAX:
            first = next(iter(self._entering))
            self.turn_away(first, Why.TOO_MANY, f"{ENTERING_MAX} newer connections are authenticating")

    def connected(self, follower: FollowerConnection) -> None:
        self._entering.pop(follower, None)
        if not self._leads:
            self.turn_away(follower, Why.NOT_LEADING, "this broker does not lead, so it serves no followers")
            return
        if len(self.followers) >= FOLLOWERS_MAX:
            silent = [one for one in self.followers if not one.joined]
            if not silent:
                self.turn_away(follower, Why.TOO_MANY, f"{FOLLOWERS_MAX} followers are connected, the limit")
                return
            first = min(silent, key=lambda one: one.heard_s)
            self.disconnected(first)
            self.turn_away(
                first,
                Why.TOO_MANY,
                f"{FOLLOWERS_MAX} connections are open, and this one has requested nothing",
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
        """A follower has sent its id. If it reconnected before its previous connection was found dead, the
        new connection replaces the old one."""
        before, self._by_id[id] = self._by_id.get(id), follower
        if before is not None:
            self.turn_away(before, Why.REPLACED, f"follower {id} has reconnected from {follower.address}")

    def other_process(self, id: int, start: int | None) -> str | None:
        """Return the address of another process that is connected with this id; None if there is none."""
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
        """Close a connection and log the reason: once a minute per peer, because followers retry every few
        seconds."""
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
        """Return the recent rejections, newest first."""
        since_s = self.clock.monotonic_s() - LATELY_S
        return [one for one in reversed(self._turned_away.values()) if one.at_s > since_s]

    # --- sending --------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Send newly written bytes in the next turn of the loop, after the producers' answers."""
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
                self.turn_away(follower, Why.TOO_SLOW, f"it did not authenticate within {ENTER_S_MAX:.0f} s")


def _id_of(follower: FollowerConnection) -> str:
    return "" if follower.follower_id is None else f" id={follower.follower_id}"
