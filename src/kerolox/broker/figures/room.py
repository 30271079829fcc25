"""Statistics and metrics of a broker."""

from __future__ import annotations

from kerolox.access.metrics_server import metrics_server
from kerolox.broker.base import Base, Room
from kerolox.broker.figures.lag import Popped
from kerolox.broker.figures.meters import Meters
from kerolox.broker.figures.metrics import Metrics
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.net.http_server import HttpServer


class Figures(Room):
    """``meters``: None while the metrics are not exported. ``popped`` returns the progress of a group that
    pops."""

    def __init__(
        self, base: Base, tables: Tables, membership: Membership, meters: Meters | None, popped: Popped
    ) -> None:
        self.meters = meters
        self.popped = popped
        self.stats = Statistics(base.options.cluster, base.clock, tables.topics.is_system)
        self.metrics = Metrics(base, tables, membership, self.stats, popped)
        self.exporter: HttpServer | None = None
        if meters is not None:
            self.exporter = metrics_server(base.options, self.metrics.pages(), base.guard, base.clock)

    async def start(self) -> None:
        if self.exporter is not None:
            await self.exporter.start()
        self.stats.start()
        self.metrics.start()

    async def close(self) -> None:
        if self.exporter is not None:
            await self.exporter.close()
        self.metrics.close()
        self.stats.close()
