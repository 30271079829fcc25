"""Outgoing messages: reads by groups, pulls, waits, filters, queries, and the progress of groups."""

from __future__ import annotations

import asyncio

from kerolox.broker.base import Base, Room
from kerolox.broker.consume.filters import SAVE_MS, Filters
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


class Consuming(Room):
    def __init__(
        self, base: Base, tables: Tables, membership: Membership, figures: Figures, filters: Filters
    ) -> None:
        topics, offsets, groups = tables.topics, tables.offsets, membership.groups
        self.filters = filters
        self.waits = MessageWaits(base.clock)
        self.reads = GroupReads(base, topics, groups, offsets, filters, self.waits)
        figures.stats.count_misses(lambda: self.reads.misses)
        self.pulls = Pulls(base, self.reads)
        self.queries = Queries(base.store, groups, filters, base.guard)
        self.group_offsets = GroupOffsets(base, topics, groups, offsets)
        self.resets = Resets(
            base, topics, groups, membership.members, offsets, self.waits, tables.offset_saver.save
        )
        self.slow_groups = SlowGroups(groups, figures.stats.behind_by_group, base.options, base.clock)
        tables.saver.keep(filters.table, lambda: SAVE_MS)
        self._store = base.store

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._store.keeper, self.filters.load)
        self.slow_groups.start()
        self.filters.start()

    async def close(self) -> None:
        await self.group_offsets.close()
        await self.pulls.close()
        self.waits.close()
        self.filters.close()
        self.slow_groups.close()

    def rows(self) -> list[Row]:
        return rows_of(self.pulls, self.queries, self.group_offsets, self.resets)
