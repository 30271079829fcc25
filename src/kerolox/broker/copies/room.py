"""Tables on every broker of the name: a leader reports their changes, a follower copies them."""

from __future__ import annotations

from kerolox.broker.access.room import Access
from kerolox.broker.base import Base, Room
from kerolox.broker.copies.table_copy import TableCopy
from kerolox.broker.copies.table_watch import TableWatch
from kerolox.broker.later.room import Scheduling
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.role.elector import Elector
from kerolox.broker.tables.room import Tables


class Copies(Room):
    def __init__(
        self,
        base: Base,
        tables: Tables,
        access: Access,
        membership: Membership,
        later: Scheduling,
        nameservers: NameServers,
        elector: Elector,
    ) -> None:
        self.watch = TableWatch(base, tables.offsets, elector.in_sync)
        self.copy = TableCopy(
            base,
            tables,
            membership.groups,
            later.timers,
            access.file,
            nameservers.registrations,
            elector,
        )

    async def start(self) -> None:
        await self.copy.start()

    async def close(self) -> None:
        await self.copy.close()
