"""Copies of the log: this broker's for its followers while it leads, its leader's here while it follows."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.net.dialer import Dialer
from kerolox.replication.follower import Follower
from kerolox.replication.leader import Leader


class Replication:
    """Both ends; one of them is at work. ``follower.lead_by`` is for who knows the leader."""

    def __init__(self, base: Base) -> None:
        options = base.options
        self._dialer = Dialer(clock=base.clock, tls=options.own_tls)  # for questions to the leader
        self.leader = Leader(base.store, options, base.clock)
        self.follower = Follower(
            base.store, options, base.clock, self._dialer, ha_address=options.ha_master_address
        )
        base.leadership.follow_by(self.follower)

    async def close(self) -> None:
        await self.leader.follow()
        await self.follower.stop()
        await self._dialer.close()
