"""Delayed messages: by delay levels, and by any time."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.later.cut_deliveries import CutDeliveries
from kerolox.broker.later.delays import SCHEDULE_GROUP, Delays
from kerolox.broker.later.timer_figures import TimerFigures
from kerolox.broker.later.timer_sends import TimerSends
from kerolox.broker.later.timers import Timers
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.room import WritePath
from kerolox.protocol.reserved import SCHEDULE_TOPIC

TIMER_COUNTS_MS = 10_000  # interval of saving the timer's counts


class Scheduling:
    def __init__(
        self,
        base: Base,
        tables: Tables,
        figures: Figures,
        path: WritePath,
        outlet: Outlet | None = None,
    ) -> None:
        options, clock, store = base.options, base.clock, base.store
        self._stats, self._options = figures.stats, options
        self.delays = Delays(store, path.intake, path.delivery, tables.delay_offsets, options, clock, outlet)
        self.timers = Timers(store, path.intake, path.delivery, tables.timer_counts, options, clock, outlet)
        store.on_truncated += [CutDeliveries(store, tables.delay_offsets).truncated, self.timers.truncated]
        self.timer_sends = TimerSends(options, clock, self.timers.waiting_at)
        # A level takes precedence over a time, so it is checked first.
        path.intake.rewrites += [self.delays.park, self.timer_sends.park]
        self.delays.on_delivered.append(self._count_delayed)
        figures.metrics.more.append(self.delays.metrics)
        self.timers.delivery.on_stored.append(figures.stats.stored)
        tables.topics.on_removed.append(tables.timer_counts.forget)
        self.timer_figures = TimerFigures(self.timers, clock)
        if options.timer_wheel:
            figures.metrics.more.append(self.timer_figures.metrics)
            tables.saver.keep(tables.timer_counts, lambda: max(options.timer_flush_ms, TIMER_COUNTS_MS))

    def _count_delayed(self, queue_id: int, topic: str, size_bytes: int, messages: int) -> None:
        if self._options.delay_stats:
            self._stats.delivered_later(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id, topic, size_bytes, messages)
