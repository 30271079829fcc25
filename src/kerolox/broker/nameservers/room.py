"""Name servers: the registrations of this broker, and the brokers of its name that they report."""

from __future__ import annotations

from kerolox.broker.base import Base, Room
from kerolox.broker.nameservers.group_members import GroupMembers
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.tables.room import Tables


class NameServers(Room):
    def __init__(self, base: Base, tables: Tables) -> None:
        self.members = GroupMembers(base.dialer, base.options)
        self.addresses = self.members.nameservers
        self.registrations = Registrations(base, tables.topics, self.addresses)
        self._topics = tables.topics

    async def settled(self) -> None:
        """Wait until changed topics are on disk and registered at the name servers."""
        await self._topics.unsaved.all_saved()
        await self.registrations.settled()

    async def announced(self, topic: str) -> None:
        """Wait until this new topic is on disk and registered at the name servers."""
        await self._topics.unsaved.saved(topic)
        await self.registrations.settled()

    async def register_role(self) -> None:
        """Register the present role, and wait until the name servers that answer know it."""
        self.registrations.register_all()
        await self.registrations.settled()

    async def close(self) -> None:
        await self.registrations.close()
