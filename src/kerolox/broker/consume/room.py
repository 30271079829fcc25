"""Outgoing messages: reads by groups, pulls, waits, filters, queries, and the progress of groups."""

from __future__ import annotations

import asyncio

from kerolox.broker.base import Base
from kerolox.broker.consume.filters import Filters
from kerolox.broker.consume.group_offsets import GroupOffsets, Resets
from kerolox.broker.consume.group_reads import GroupReads
from kerolox.broker.consume.message_waits import MessageWaits
from kerolox.broker.consume.pulls import Pulls
from kerolox.broker.consume.queries import Queries
from kerolox.broker.figures.room import Figures
from kerolox.broker.members.groups import SlowGroups
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.front.rows import Row, rows_of


class Consuming:
    """Parts that serve consumers. Created by ``open``, which reads the filters."""

    def __init__(
        self, base: Base, tables: Tables, membership: Membership, figures: Figures, filters: Filters
    ) -> None:
        options, clock, store = base.options, base.clock, base.store
        topics, offsets, groups = tables.topics, tables.offsets, membership.groups
        stats = figures.stats
        self.waits = MessageWaits(clock)
        # Queue and key fillers were added first, so a resumed pull finds the message in its queue.
        store.dispatcher.listeners.append(self.waits.arrived)
        if options.multi_dispatch:
            store.dispatcher.listeners.append(self.waits.arrived_light)
        store.on_truncated.append(self.waits.truncated)
        self.reads = GroupReads(base, topics, groups, offsets, filters, self.waits)
        lumped = options.light_queues and not options.light_stats
        self.reads.on_served.append(stats.served_light if lumped else stats.served)
        self.reads.on_caught_up.append(stats.caught_up)
        self.reads.on_cold_read.append(stats.read_cold)
        stats.count_misses(lambda: self.reads.misses)
        self.pulls = Pulls(base, self.reads)
        base.leadership.on_leader.append(lambda leader: self.waits.wake_all())
        # A repeated pull is checked again, so a client that lost a right gets no more messages.
        base.guard.book.on_change.append(self.waits.wake_all)
        self.queries = Queries(store, groups, filters, base.guard)
        self.group_offsets = GroupOffsets(base, topics, groups, offsets)
        self.resets = Resets(base, topics, groups, membership.members, offsets, self.waits)
        self.resets.unsaved.save = tables.offset_saver.save
        self.slow_groups = SlowGroups(groups, stats.behind_by_group, options, clock)
        self.filters = filters
        filters.connect(membership.heartbeats, membership.members, tables.saver)

    @classmethod
    async def open(cls, base: Base, tables: Tables, membership: Membership, figures: Figures) -> Consuming:
        filters = await asyncio.get_running_loop().run_in_executor(
            base.store.keeper, Filters.of, base.store, base.options, base.clock
        )
        return cls(base, tables, membership, figures, filters)

    def rows(self) -> list[Row]:
        return rows_of(self.pulls, self.queries, self.group_offsets, self.resets)
