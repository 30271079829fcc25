"""Tables of a broker, loaded together, and saved at changes or at intervals."""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.absent import report_from_before
from kerolox.broker.base import Base
from kerolox.broker.tables.lost_tables import mind_lost_tables
from kerolox.broker.tables.saver import TablesSaver
from kerolox.broker.tables.topics import Topics
from kerolox.protocol.reserved import HALF_GROUP, HALF_TOPIC
from kerolox.store.disk.cut_note import Cut
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets, LightOffsets
from kerolox.store.tables.request_modes import RequestModes
from kerolox.store.tables.timer_counts import TimerCounts
from kerolox.store.tables.topics import TopicTable
from kerolox.store.tables.transaction_counts import TransactionCounts

log = logging.getLogger(__name__)


class Tables:
    """All tables and their savers. Created by ``open``."""

    def __init__(self, base: Base) -> None:
        options, clock, files = base.options, base.clock, base.store.files
        directory = base.store.path("config")
        self.topics = Topics(TopicTable(files, directory, clock=clock), options)
        self.groups = GroupTable(files, directory, clock=clock)
        self.offsets = (LightOffsets if options.light_queues else ConsumerOffsets)(
            files, directory, clock=clock, version_step=options.offsets_version_step
        )
        self.delay_offsets = DelayOffsets(
            files, directory, clock=clock, version_step=options.delays_version_step
        )
        self.modes = RequestModes(files, directory, clock=clock)
        self.transaction_counts = TransactionCounts(files, directory, clock=clock)
        self.timer_counts = TimerCounts(files, directory, clock=clock)  # loaded by the timer

    @classmethod
    async def open(cls, base: Base) -> Tables:
        """Load the tables. Lost ones are rebuilt; raises TableLost if that is impossible.

        Call it only while holding the store's lock, because loading may replace a broken file by its backup.
        Nothing is saved before all tables are correct.
        """
        made = cls(base)
        loaded = (made.topics.table, made.groups, made.offsets, made.delay_offsets, made.modes)

        def load() -> None:
            for table in loaded:
                table.load()
            made.transaction_counts.load()

        await asyncio.get_running_loop().run_in_executor(base.store.keeper, load)
        report_from_before(made.topics.table.topics)
        made.topics.create_system_topics()
        made.groups.create_system_groups()
        mind_lost_tables(base.store, made.topics, made.groups, made.offsets, made.modes)
        made._start_saving(base)
        if not made.topics.table.was_loaded:
            # A new store. A follower copies messages before it has its leader's topics; if it is killed then,
            # the next start must see that no table was lost.
            await made.topic_saver.saved()
        return made

    def _start_saving(self, base: Base) -> None:
        options = base.options

        def interval_ms() -> int:
            return options.save_offsets_ms

        self.saver = TablesSaver(base.clock, base.store.failing)
        self.topic_saver = self.saver.keep(self.topics.table, interval_ms)
        self.group_saver = self.saver.keep(self.groups, interval_ms)
        self.mode_saver = self.saver.keep(self.modes, interval_ms)
        self.offset_saver = self.saver.keep(self.offsets, interval_ms)
        self.saver.keep(self.transaction_counts, lambda: options.save_transaction_counts_ms)
        self.topics.unsaved.save = self.topic_saver.save
        base.store.on_truncated.append(self._truncated)

    async def _truncated(self, cut: Cut) -> None:
        """Adjust offsets after a truncation of the log: no group has consumed what will be stored there next,
        and half messages whose end was removed are open again."""
        offsets = self.offsets
        changed = offsets.set_back({(topic, queue_id): end for topic, queue_id, end in cut.queues})
        reached = offsets.offset(HALF_TOPIC, HALF_GROUP, 0)
        if cut.half_ended is not None and reached > cut.half_ended:
            offsets.commit(HALF_TOPIC, HALF_GROUP, 0, cut.half_ended)
            changed += 1
        if changed:
            log.warning("offsets_set_back count=%d reason='the log was cut at %d'", changed, cut.end)
            await self.offset_saver.saved()
