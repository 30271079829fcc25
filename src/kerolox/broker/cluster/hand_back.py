"""A leader returns, and a follower may be acting for it: what happens before it leads again.

It asks name servers for its followers and tells each that it is back (EXCHANGE_BROKER_HA_INFO): whoever acts
ends that. It waits until they copy from it, so that none finds it leading without them. Then it takes over
what they did. Only then it begins to deliver, lets clients in, and registers. Where nobody may act for a
leader, nobody is told or waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from kerolox.broker.cluster.followers_progress import FollowersProgress
from kerolox.broker.cluster.group_members import GroupMembers
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.replication import HaInfo

log = logging.getLogger(__name__)

ASK_S = 3.0
CONNECT_S = 10.0  # a follower has so long to copy from here, then all is done once more
ROUNDS = 3  # then it goes on without those that do not come
LOOK_S = 0.05
PAUSE_S = 1.0


class HandBack:
    """``copying``: hosts of the followers that copy from here, one for each connection."""

    def __init__(
        self,
        dialer: Dialer,
        options: BrokerOptions,
        endpoints: Endpoints,
        progress: FollowersProgress,
        clock: Clock,
        *,
        nameservers: Iterable[str],
        flushed: int,
        copying: Callable[[], Iterable[str]],
        old: set[str] | None = None,
    ) -> None:
        self._dialer = dialer
        self._options = options
        self._endpoints = endpoints
        self._progress = progress
        self._clock = clock
        self._nameservers = list(nameservers)
        self._flushed = flushed
        self._copying = copying
        self._group = GroupMembers(dialer, options, old)

    async def take(self) -> None:
        """Take over. Goes on without a follower that does not answer, or does not come, and says so."""
        followers = await self._followers()
        if self._options.acting:
            followers = await self._meet(followers)
        await self._progress.take(followers)

    async def _meet(self, followers: list[str]) -> list[str]:
        """Tell followers, and wait for them; those that are still there in the end."""
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
                "leads_without_followers followers=%r next='see why they do not follow: kerolox broker "
                "followers; one that acts for this broker may deliver what it delivers too'", followers,
            )  # fmt: skip
        return followers

    async def _followers(self) -> list[str]:
        """Their addresses, in the order of their ids."""
        found: dict[int, str] = {}
        for members in await asyncio.gather(*[self._group.ask(one, ASK_S) for one in self._nameservers]):
            found |= members or {}
        own = self._endpoints.address
        return list(dict.fromkeys(at for id, at in sorted(found.items()) if id and at != own))

    async def _tell(self, followers: list[str]) -> str:
        """Say that this broker is back; why one of them cannot have heard it."""
        back = HaInfo(
            master_ha_address=self._endpoints.ha_address,
            master_flush_offset=self._flushed,
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
        """Wait until each of them copies from here; which do not."""
        wanted = Counter(address.rpartition(":")[0] for address in followers)
        until_s = self._clock.monotonic_s() + CONNECT_S
        while missing := wanted - Counter(self._copying()):
            if self._clock.monotonic_s() >= until_s:
                return f"after {CONNECT_S:.0f} s nobody copies from here at {', '.join(missing)}"
            await self._clock.sleep(LOOK_S)
        return ""


def waits_for_followers(options: BrokerOptions) -> bool:
    """Whether a leader that starts stays to itself until its followers are there."""
    return options.acting and options.total_replicas > 1 and not options.skip_pre_online
