"""Role of a broker without elections. Its settings give the role, and operators change it. Name servers
report the leader, and every registration looks for a second one."""

from __future__ import annotations

from kerolox.broker.base import Base, Room
from kerolox.broker.configured.second_leader import SecondLeader
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.role.value import LeaderAddress
from kerolox.replication.follower import Follower


class ByNameServers(Room):
    """Elector of a broker that has neither a controller nor a DLedger group."""

    refuses_claims = ""
    in_sync = None

    def __init__(
        self, base: Base, registrations: Registrations, second_leader: SecondLeader, follower: Follower
    ) -> None:
        self.place = f"settings {base.options.broker_id}"
        self._leadership = base.leadership
        self._registrations = registrations
        self._second_leader = second_leader
        self._follower = follower

    @property
    def agrees(self) -> bool:
        return self._follower.agrees

    async def start(self) -> None:
        await self._registrations.start(self)

    def doubt(self) -> None:
        # The connection to a dead leader also breaks at the name servers: they report another one, or none.
        self._registrations.register_all()

    async def before_registering(self, nameserver: str) -> None:
        await self._second_leader.check(nameserver)

    def reported(self, leader: LeaderAddress | None) -> None:
        self._leadership.led_by(leader)

    def status(self) -> None:
        return None

    def runtime_info(self) -> dict[str, object]:
        return {}
