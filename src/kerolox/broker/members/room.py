"""Connected clients, their groups, and the locks of ordered queues."""

from __future__ import annotations

from kerolox.broker.base import Base, Room
from kerolox.broker.members.compiled_filters import CompiledFilters
from kerolox.broker.members.groups import Groups
from kerolox.broker.members.heartbeats import Heartbeats
from kerolox.broker.members.members import Members
from kerolox.broker.members.queue_locks import QueueLocks
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.tables.room import Tables
from kerolox.front.rows import Row, rows_of


class Membership(Room):
    def __init__(
        self, base: Base, tables: Tables, nameservers: NameServers, filters: CompiledFilters
    ) -> None:
        options, clock = base.options, base.clock
        self.members = Members(options, clock)
        self.groups = Groups(tables.groups, self.members, options, tables.group_saver.save)
        self.heartbeats = Heartbeats(
            self.members, self.groups, tables.topics, options, filters, nameservers.announced
        )
        self.queue_locks = QueueLocks(clock, options.queue_lock_ms / 1000, exists=tables.topics.has_queue)

    async def start(self) -> None:
        self.members.start()

    async def close(self) -> None:
        self.members.close()

    def rows(self) -> list[Row]:
        return rows_of(self.heartbeats)
