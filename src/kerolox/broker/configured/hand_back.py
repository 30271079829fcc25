"""Return of a leader while a follower may be acting for it: the steps before it leads again.

The leader asks name servers for its followers and announces its return to each (EXCHANGE_BROKER_HA_INFO); an
acting follower stops acting. It waits until they copy from it, so that it does not lead without them, and
takes over their progress. Only then it begins to deliver, accepts clients, and registers. If no follower may
act, there is no announcement and no wait.
"""

from __future__ import annotations

import logging
from collections import Counter

from kerolox.broker.base import Base
from kerolox.broker.configured.followers_progress import FollowersProgress
from kerolox.broker.nameservers.group_members import GroupMembers
from kerolox.broker.options import BrokerOptions
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.replication import HaInfo
from kerolox.replication.leader import Leader

log = logging.getLogger(__name__)

ASK_S = 3.0
CONNECT_S = 10.0  # time for a follower to begin to copy; then the round is repeated
ROUNDS = 3  # after these the leader continues without the missing followers
LOOK_S = 0.05
PAUSE_S = 1.0


class HandBack:
    """Steps of the return. ``leader``: the connections of the followers that copy from here."""

    def __init__(
        self, base: Base, members: GroupMembers, progress: FollowersProgress, leader: Leader
    ) -> None:
        self._dialer = base.dialer
        self._options = base.options
        self._endpoints = base.endpoints
        self._store = base.store
        self._clock = base.clock
        self._group = members
        self._progress = progress
        self._leader = leader

    async def take(self) -> None:
        """Take over from the followers. A follower that does not answer, or does not copy, is logged and
        skipped."""
        followers = await self._followers()
        if self._options.acting:
            followers = await self._meet(followers)
        await self._progress.take(followers)

    async def _meet(self, followers: list[str]) -> list[str]:
        """Announce the return, and wait for the followers. Return those that are registered in the end."""
        for number in range(1, ROUNDS + 1):
            why = await self._tell(followers)
            if not why and waits_for_followers(self._options):
                why = await self._connected(followers)
            if not why:
                break
            log.warning("followers_awaited round=%d of=%d reason=%r", number, ROUNDS, why)
            await self._clock.sleep(PAUSE_S)
            followers = await self._followers()
        else:
            log.error(
                "leads_without_followers followers=%r next='find out why they do not follow: kerolox broker "
                "followers; a follower that still acts may deliver the same messages'", followers,
            )  # fmt: skip
        return followers

    async def _followers(self) -> list[str]:
        """Return the addresses of the followers in the order of their ids."""
        found: dict[int, str] = {}
        for members in await self._group.ask_all():
            found |= members
        own = self._endpoints.address
        return list(dict.fromkeys(at for id, at in sorted(found.items()) if id and at != own))

    @property
    def _copying(self) -> list[str]:
        """Hosts of the followers that copy from here, one for each connection."""
        return [one.address.rpartition(":")[0] for one in self._leader.followers if one.joined]

    async def _tell(self, followers: list[str]) -> str:
        """Announce the return to the followers. Return the error if one of them may not have received it."""
        back = HaInfo(
            master_ha_address=self._endpoints.ha_address,
            master_flush_offset=self._store.progress.flushed,
            master_address=self._endpoints.address,
        )
        why = ""
        for address in followers:
            try:
                answer = await self._dialer.call(
                    address, RequestCode.EXCHANGE_BROKER_HA_INFO, back, timeout_s=ASK_S
                )
                if answer.code != 0:
                    raise RequestFailed(
                        answer.code, answer.remark, address=address, request="EXCHANGE_BROKER_HA_INFO"
                    )
            except KeroloxError as error:
                why = str(error)
        return why

    async def _connected(self, followers: list[str]) -> str:
        """Wait until each follower copies from here. Return an error that names those that do not."""
        wanted = Counter(address.rpartition(":")[0] for address in followers)
        until_s = self._clock.monotonic_s() + CONNECT_S
        while missing := wanted - Counter(self._copying):
            if self._clock.monotonic_s() >= until_s:
                return f"after {CONNECT_S:.0f} s no follower at {', '.join(missing)} copies from here"
            await self._clock.sleep(LOOK_S)
        return ""


def waits_for_followers(options: BrokerOptions) -> bool:
    """True if a starting leader accepts no clients until its followers are connected."""
    return options.acting and options.total_replicas > 1 and not options.skip_pre_online
