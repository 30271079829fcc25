"""A leader that was cut off, or asleep, and finds another one in its place.

Whoever began to lead last was put there by somebody who knew. The other one takes no message from then on,
and registers no more: what it took meanwhile is in its log, and the new leader does not have it.
"""

from __future__ import annotations

import logging

from kerolox.broker.cluster.fellows import AnotherLeads, Fellows
from kerolox.broker.leadership import Leadership
from kerolox.replication.leader import Leader

log = logging.getLogger(__name__)


class SecondLeader:
    def __init__(self, fellows: Fellows, leadership: Leadership, leader: Leader, store: str) -> None:
        self._fellows = fellows
        self._leadership = leadership
        self._leader = leader
        self._store = store
        self._gave_way: AnotherLeads | None = None

    async def check(self, nameserver: str) -> None:
        """Before this broker tells the name server that it leads. Raises AnotherLeads."""
        if self._gave_way is not None:
            if self._leadership.id == 0:
                raise self._gave_way
            self._gave_way = None  # it was given a follower's number
        if not self._leadership.leads:
            return
        for address in await self._fellows.leaders_at(nameserver):
            since_ms = await self._fellows.leads_since_ms(address)
            if since_ms is None or since_ms < self._leader.since_ms:
                continue  # gone, or about to give way
            self._gave_way = self._fellows.another_leads(address, self._store)
            log.error("gave_way leader=%r reason=%r", address, str(self._gave_way))
            await self._leadership.follow(f"{address} leads under this broker's name")
            raise self._gave_way
