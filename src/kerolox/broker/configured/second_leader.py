"""Detection of a second leader: this broker was cut off, or asleep, and another one leads in its place.

The leader that was promoted last continues: :mod:`kerolox.broker.tables.promotions`. The other one accepts no
more messages and stops registering as a leader. Messages it accepted meanwhile are in its log only.
"""

from __future__ import annotations

import logging

from kerolox.broker.base import Base
from kerolox.broker.fellows.fellows import AnotherLeads, Fellows
from kerolox.broker.tables.promotions import Promotions

log = logging.getLogger(__name__)


class SecondLeader:
    """Search for another leader of the name, done whenever this broker registers."""

    def __init__(self, base: Base, promotions: Promotions, fellows: Fellows) -> None:
        self._fellows = fellows
        self._leadership = base.leadership
        self._promotions = promotions
        self._store = base.store
        self._own_address = base.endpoints.address
        self._gave_way: AnotherLeads | None = None

    async def check(self, nameserver: str) -> None:
        """Raise AnotherLeads if another leader takes precedence. Called before this broker registers as the
        leader."""
        if self._gave_way is not None and not self._leadership.leads and self._leadership.id == 0:
            raise self._gave_way
        self._gave_way = None  # it leads again, or became a follower with an id
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
