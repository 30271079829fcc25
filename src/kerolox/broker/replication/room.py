"""Copies of the log: this broker's for its followers while it leads, its leader's here while it follows."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.leadership import LeaderAddress
from kerolox.net.dialer import Dialer
from kerolox.replication.follower import Follower
from kerolox.replication.leader import Leader


class Replication:
    """Both ends; one of them is at work."""

    def __init__(self, base: Base) -> None:
        options = base.options
        self._dialer = Dialer(clock=base.clock, tls=options.own_tls)  # for questions to the leader
        self.leader = Leader(base.store, options, base.clock)
        self.follower = Follower(
            base.store, options, base.clock, self._dialer, ha_address=options.ha_master_address
        )
        base.leadership.follow_by(self.follower)
        base.leadership.on_leader.append(self._leader_changed)

    def _leader_changed(self, found: LeaderAddress | None) -> None:
        """Name servers tell of another leader, or of none."""
        if found is None:
            self.follower.lead_by("", "")
        else:
            self.follower.lead_by(found.ha_address, found.address)

    async def close(self) -> None:
        await self.leader.follow()
        await self.follower.stop()
        await self._dialer.close()
