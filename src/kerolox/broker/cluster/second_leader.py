"""A leader that was cut off, or asleep, and finds another one in its place.

Of two leaders the one that was promoted last goes on: :mod:`kerolox.broker.tables.promotions`. The other one
takes no message from then on, and registers no more: what it took meanwhile is in its log, and the new leader
does not have it.
"""

from __future__ import annotations

import logging

from kerolox.broker.cluster.fellows import AnotherLeads, Fellows
from kerolox.broker.leadership import Leadership
from kerolox.broker.tables.promotions import Promotions
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)


class SecondLeader:
    """Looks for another leader of the name whenever this one registers."""

    def __init__(
        self,
        fellows: Fellows,
        leadership: Leadership,
        promotions: Promotions,
        store: MessageStore,
        own_address: str,
    ) -> None:
        self._fellows = fellows
        self._leadership = leadership
        self._promotions = promotions
        self._store = store
        self._own_address = own_address
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
            other = await self._fellows.leader(address)
            own = self._promotions.number
            if other is None or not other.precedes(own, self._store.log.max_offset, self._own_address):
                continue  # gone, or about to give way
            root = str(self._store.root)
            self._gave_way = self._fellows.another_leads(address, root, own, other.promotion)
            log.error(
                "gave_way leader=%r promotion=%d own=%d reason=%r",
                address, other.promotion, own, str(self._gave_way),
            )  # fmt: skip
            await self._leadership.follow(f"{address} leads under this broker's name")
            raise self._gave_way
