"""Tables of a broker, loaded together, and saved at changes or at intervals."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from kerolox.broker.absent import report_from_before
from kerolox.broker.base import Room
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.lost_tables import mind_lost_tables
from kerolox.broker.tables.promotions import Promotions
from kerolox.broker.tables.saver import TablesSaver
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.protocol.reserved import HALF_GROUP, HALF_TOPIC
from kerolox.store.disk.cut_note import Cut
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets, LightOffsets
from kerolox.store.tables.request_modes import RequestModes
from kerolox.store.tables.timer_counts import TimerCounts
from kerolox.store.tables.topics import TopicTable
from kerolox.store.tables.transaction_counts import TransactionCounts

log = logging.getLogger(__name__)


class Tables(Room):
    """All tables and their savers."""

    def __init__(self, store: MessageStore, options: BrokerOptions, clock: Clock) -> None:
        files, directory = store.files, store.path("config")
        self._store = store
        self.saver = TablesSaver(clock, store.failing)
        keep = partial(self.saver.keep, interval_ms=lambda: options.save_offsets_ms)
        topics = TopicTable(files, directory, clock=clock)
        self.topic_saver = keep(topics)
        self.topics = Topics(topics, options, self.topic_saver.save)
        self.groups = GroupTable(files, directory, clock=clock)
        self.group_saver = keep(self.groups)
        self.offsets = (LightOffsets if options.light_queues else ConsumerOffsets)(
            files, directory, clock=clock, version_step=options.offsets_version_step
        )
        self.offset_saver = keep(self.offsets)
        self.delay_offsets = DelayOffsets(
            files, directory, clock=clock, version_step=options.delays_version_step
        )
        self.promotions = Promotions(self)
        self.modes = RequestModes(files, directory, clock=clock)
        self.mode_saver = keep(self.modes)
        self.transaction_counts = TransactionCounts(files, directory, clock=clock)
        self.saver.keep(self.transaction_counts, lambda: options.save_transaction_counts_ms)
        self.timer_counts = TimerCounts(files, directory, clock=clock)  # loaded by the timer

    async def start(self) -> None:
        """Load the tables. Lost ones are rebuilt; raises TableLost if that is impossible.

        Call it only while holding the store's lock, because loading may replace a broken file by its backup.
        Nothing is saved before all tables are correct.
        """
        loaded = (self.topics.table, self.groups, self.offsets, self.delay_offsets, self.modes)

        def load() -> None:
            for table in loaded:
                table.load()
            self.transaction_counts.load()

        await asyncio.get_running_loop().run_in_executor(self._store.keeper, load)
        report_from_before(self.topics.table.topics)
        self.topics.create_system_topics()
        self.groups.create_system_groups()
        mind_lost_tables(self._store, self.topics, self.groups, self.offsets, self.modes)
        self.saver.start()
        if not self.topics.table.was_loaded:
            # A new store. A follower copies messages before it has its leader's topics; if it is killed then,
            # the next start must see that no table was lost.
            await self.topic_saver.saved()

    async def close(self) -> None:
        await self.saver.close()

    async def truncated(self, cut: Cut) -> None:
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
