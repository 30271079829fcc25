"""Delayed messages: by delay levels, and by any time."""

from __future__ import annotations

from kerolox.broker.base import Base, Room
from kerolox.broker.figures.room import Figures
from kerolox.broker.later.cut_deliveries import CutDeliveries
from kerolox.broker.later.delays import SCHEDULE_GROUP, Delays
from kerolox.broker.later.timer_figures import TimerFigures
from kerolox.broker.later.timer_sends import TimerSends
from kerolox.broker.later.timers import Timers
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.room import WritePath
from kerolox.protocol.reserved import SCHEDULE_TOPIC

TIMER_COUNTS_MS = 10_000  # interval of saving the timer's counts


class Scheduling(Room):
    def __init__(
        self,
        base: Base,
        tables: Tables,
        figures: Figures,
        path: WritePath,
    ) -> None:
        options, clock, store, outlet = base.options, base.clock, base.store, path.outlet
        self._stats, self._options = figures.stats, options
        self.delays = Delays(store, path.intake, path.delivery, tables.delay_offsets, options, clock, outlet)
        self.timers = Timers(store, path.intake, path.delivery, tables.timer_counts, options, clock, outlet)
        self.cut_deliveries = CutDeliveries(store, tables.delay_offsets)
        self.timer_sends = TimerSends(options, clock, self.timers.waiting_at)
        self.timer_figures = TimerFigures(self.timers, clock)
        if options.timer_wheel:
            tables.saver.keep(tables.timer_counts, lambda: max(options.timer_flush_ms, TIMER_COUNTS_MS))

    async def start(self) -> None:
        await self.timers.open()

    async def close(self) -> None:
        await self.timers.close()

    def count_delayed(self, queue_id: int, topic: str, size_bytes: int, messages: int) -> None:
        if self._options.delay_stats:
            self._stats.delivered_later(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id, topic, size_bytes, messages)
