"""Search for the replication address of the leader. It is asked of the leader itself, until it answers.

The controller knows the address for clients; name servers learn the replication address when the leader
registers, up to 30 s later. The leader itself knows it as soon as it leads.
"""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.role.leadership import Leadership
from kerolox.broker.role.value import LeaderAddress
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.replication import HaInfo

log = logging.getLogger(__name__)

ASK_S = 3.0
AGAIN_FIRST_S = 0.02
AGAIN_MAX_S = 1.0
TELL_AFTER = 10  # answers without an address


async def _direct(found: LeaderAddress) -> LeaderAddress:
    return found


class LeaderSearch:
    """Search for one leader at a time. The result is passed to the leadership."""

    def __init__(self, leadership: Leadership, dialer: Dialer, clock: Clock) -> None:
        self.way = _direct  # address under which the leader is reached; tests insert a faulty network
        self._leadership = leadership
        self._dialer = dialer
        self._clock = clock
        self._address = ""
        self._task: asyncio.Task[None] | None = None

    def look_for(self, address: str) -> None:
        """Search for the leader at this address."""
        if self._task is not None and not self._task.done():
            if address == self._address:
                return
            self._task.cancel()
        self._address = address
        self._task = asyncio.get_running_loop().create_task(self._look_for(address))

    def stop(self) -> None:
        """End the search, because this broker leads."""
        if self._task is not None:
            self._task.cancel()
        self._address = ""

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_for(self, address: str) -> None:
        again_s = AGAIN_FIRST_S
        asked = 0
        while True:
            found = await self._ask(address)
            if isinstance(found, LeaderAddress):
                self._leadership.led_by(await self.way(found))
                return
            asked += 1
            if asked == TELL_AFTER:
                log.warning("leader_not_ready leader=%r reason=%r next='retried'", address, found)
            await self._clock.sleep(again_s)
            again_s = min(AGAIN_MAX_S, again_s * 1.5)

    async def _ask(self, address: str) -> LeaderAddress | str:
        """Return the replication address, or the reason why it is unknown."""
        try:
            answer = await self._dialer.call(
                address, RequestCode.EXCHANGE_BROKER_HA_INFO, HaInfo(), timeout_s=ASK_S
            )
            told = answer.header(HaInfo) if answer.code == 0 else HaInfo()
        except KeroloxError as error:
            return str(error)
        if not told.master_ha_address:
            return answer.remark or "it does not lead yet"
        return LeaderAddress(address, told.master_ha_address)
