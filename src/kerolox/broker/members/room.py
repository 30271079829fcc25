"""Connected clients, their groups, and the locks of ordered queues."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.members.groups import Groups
from kerolox.broker.members.heartbeats import Heartbeats
from kerolox.broker.members.members import Members
from kerolox.broker.members.queue_locks import QueueLocks
from kerolox.broker.tables.room import Tables
from kerolox.front.rows import Row, rows_of


class Membership:
    def __init__(self, base: Base, tables: Tables) -> None:
        options, clock = base.options, base.clock
        self.members = Members(options, clock)
        self.groups = Groups(tables.groups, self.members, options)
        self.groups.unsaved.save = tables.group_saver.save
        self.groups.on_change.append(lambda _: tables.group_saver.save())
        self.heartbeats = Heartbeats(self.members, self.groups, tables.topics, options)
        self.queue_locks = QueueLocks(clock, options.queue_lock_ms / 1000, exists=tables.topics.has_queue)

    def rows(self) -> list[Row]:
        return rows_of(self.heartbeats, self.queue_locks)
