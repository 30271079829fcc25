"""Whether this broker leads: takes messages, gives back those that waited, asks about transactions.

What only a leader does asks ``store.state.leads`` at the moment it does it, so that a change of role is one
call here and not a restart.
"""

from __future__ import annotations

import logging

from kerolox.broker.options import BrokerRole
from kerolox.store.state import Obstacle, StoreState

log = logging.getLogger(__name__)


class Leadership:
    """Leads or follows. While a broker follows, its store takes no messages but those of its leader."""

    def __init__(self, state: StoreState, role: BrokerRole) -> None:
        self._state = state
        if role is BrokerRole.SLAVE:
            self.follow("this broker is a SLAVE")

    @property
    def leads(self) -> bool:
        return self._state.leads

    def lead(self) -> None:
        if not self.leads:
            log.info("broker_leads")
            self._state.clear(Obstacle.FOLLOWER)

    def follow(self, why: str) -> None:
        """Take no messages from now on, for this reason."""
        if self.leads:
            log.info("broker_follows reason=%r", why)
            self._state.set(Obstacle.FOLLOWER, why)
