"""Statistics and metrics of a broker."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.figures.metrics import Metrics
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables


class Figures:
    def __init__(self, base: Base, tables: Tables, membership: Membership) -> None:
        self.stats = Statistics(base.options.cluster, base.clock, tables.topics.is_system)
        self.metrics = Metrics(
            base.options,
            base.store,
            tables.topics,
            membership.groups,
            membership.members,
            tables.offsets,
            self.stats,
            base.lanes,
            base.clock,
        )
        tables.topics.on_removed.append(self.stats.forget_topic)
        membership.groups.on_enabled.append(self.stats.forget_behind)
