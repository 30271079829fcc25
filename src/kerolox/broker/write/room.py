"""The way into the log that every writer takes: may it, then append, then one write for all."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.admission import Admission
from kerolox.broker.write.intake import Intake


class WritePath:
    def __init__(self, base: Base, tables: Tables, figures: Figures) -> None:
        store = base.store
        self.admission = Admission(store.acks, store.state, tables.topics, base.options, base.clock)
        self.intake = Intake(store.log, store.acks)
        self.intake.due = figures.stats.timed(self.intake.write)
