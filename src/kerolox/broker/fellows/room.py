"""The other brokers of this broker's name: questions to them, the watch over those that live, and locks of
queues that they grant together."""

from __future__ import annotations

from kerolox.broker.base import Base, Room
from kerolox.broker.fellows.fellows import Fellows
from kerolox.broker.fellows.group_watch import GroupWatch
from kerolox.broker.fellows.lock_requests import LockRequests
from kerolox.broker.fellows.strict_locks import StrictLocks
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.replication.room import Replication
from kerolox.broker.tables.room import Tables


class Fellowship(Room):
    def __init__(
        self,
        base: Base,
        tables: Tables,
        nameservers: NameServers,
        membership: Membership,
        replication: Replication,
    ) -> None:
        self.fellows = Fellows(base, nameservers.members)
        self.watch = GroupWatch(
            base,
            tables.topics,
            nameservers.members,
            copying=lambda: replication.follower.copying,
            changed=nameservers.registrations.register_all,
        )
        self.locks = LockRequests(membership.queue_locks, StrictLocks(base, self.watch))

    async def start(self) -> None:
        self.watch.start()

    async def close(self) -> None:
        await self.watch.close()
