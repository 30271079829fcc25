"""Administrative requests of tools, collected from the classes of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kerolox.broker.admin.broker_admin import BrokerAdmin
from kerolox.broker.admin.client_admin import ClientAdmin
from kerolox.broker.admin.group_admin import GroupAdmin, ProgressAdmin
from kerolox.broker.admin.topic_admin import Settled, TopicAdmin
from kerolox.broker.base import Base
from kerolox.broker.configured.role_changes import RoleChanges
from kerolox.broker.figures.room import Figures
from kerolox.broker.figures.runtime_info import RuntimeInfo
from kerolox.broker.later.room import Scheduling
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.front.rows import Row, rows_of


class Admin:
    """Administrative requests, one part for each noun. ``settled`` waits until changed topics are registered
    at the name servers. ``found`` are values that the options leave open; ``changed`` is called with options
    that took new values."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        figures: Figures,
        later: Scheduling,
        *,
        settled: Settled,
        found: Mapping[str, object],
        changed: Callable[[Mapping[str, object]], None],
        roles: RoleChanges,
    ) -> None:
        options, clock, store = base.options, base.clock, base.store
        topics, offsets, delays = tables.topics, tables.offsets, tables.delay_offsets
        groups, members, stats = membership.groups, membership.members, figures.stats
        offsets_saved = tables.offset_saver.saved
        self.topics = TopicAdmin(
            store,
            topics,
            groups,
            offsets,
            members,
            stats,
            options,
            settled,
            offsets_saved,
            base.leadership,
        )
        self.groups = GroupAdmin(
            topics,
            groups,
            members,
            offsets,
            delays,
            tables.modes,
            stats,
            offsets_saved,
            address=base.endpoints.address,
        )
        self.groups.unsaved_modes.save = tables.mode_saver.save
        self.progress = ProgressAdmin(
            store, topics, groups, members, offsets, stats, options, clock, address=base.endpoints.address
        )
        self.clients = ClientAdmin(store, topics, groups, members, options, base.guard)
        self.runtime_info = RuntimeInfo(store, stats, delays, base.lanes, options, clock)
        self.broker = BrokerAdmin(
            store, found, stats, self.runtime_info, options, settled, changed, roles, base.leadership, clock
        )
        if options.timer_wheel:
            self.broker.timers = later.timers
            self.runtime_info.more.append(later.timer_figures.runtime_info)

    def rows(self) -> list[Row]:
        return rows_of(self.topics, self.groups, self.progress, self.clients, self.broker)

    async def close(self) -> None:
        await self.broker.close()
