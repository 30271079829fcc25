"""Role of a broker without elections. Its settings give the role, and operators change it. Name servers
report the leader, and every registration looks for a second one."""

from __future__ import annotations

from kerolox.broker.configured.second_leader import SecondLeader
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.role.value import LeaderAddress


class ByNameServers:
    """Elector of a broker that has neither a controller nor a DLedger group. ``id`` is the id in its
    settings at the start."""

    refuses_claims = ""

    def __init__(
        self, leadership: Leadership, registrations: Registrations, second_leader: SecondLeader, id: int
    ) -> None:
        self.place = f"settings {id}"
        self._leadership = leadership
        self._registrations = registrations
        self._second_leader = second_leader

    async def start(self) -> None:
        await self._registrations.start()

    async def close(self) -> None: ...

    def doubt(self) -> None:
        # The connection to a dead leader also breaks at the name servers: they report another one, or none.
        self._registrations.register_all()

    async def before_registering(self, nameserver: str) -> None:
        await self._second_leader.check(nameserver)

    def reported(self, leader: LeaderAddress | None) -> None:
        self._leadership.led_by(leader)

    def runtime_info(self) -> dict[str, object]:
        return {}
