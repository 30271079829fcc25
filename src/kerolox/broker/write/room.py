"""The write path shared by all writers: admission, then append, then one write for all."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.admission import Admission
from kerolox.broker.write.delivery import Delivery
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.targets import ClearedTargets
from kerolox.store.log.cursors import LIGHT_PREFIX


class WritePath:
    def __init__(self, base: Base, tables: Tables, figures: Figures) -> None:
        store = base.store
        light_queues: set[bytes] | None = None
        if base.options.multi_dispatch:
            topics = store.queues.by_topic
            light_queues = {topic.encode() for topic in topics if topic.startswith(LIGHT_PREFIX)}
        self.admission = Admission(base, tables.topics, light_queues)
        self.intake = Intake(store.log, store.acks, self.admission.fills_light_queues)
        self.delivery = Delivery(self.intake, tables.topics, store.notes.deleted, base.clock)
        self.intake.due = figures.stats.timed(self.intake.write)
        figures.metrics.more.append(self.delivery.metrics)
        self.targets = ClearedTargets(self.admission, self.intake)
        base.guard.book.on_change.append(self.targets.forget)
        tables.topics.on_change.append(self.targets.topic_changed)
        tables.topics.on_removed.append(self.targets.topic_removed)
        tables.topics.on_removed.append(self.admission.topic_removed)

    def options_changed(self) -> None:
        self.admission.renew()
        self.targets.forget()

    async def lead(self) -> None:
        self.targets.forget()

    async def follow(self) -> None:
        """Write what was appended: a follower appends nothing more."""
        self.targets.forget()
        self.intake.write()
