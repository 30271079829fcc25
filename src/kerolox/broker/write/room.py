"""The write path shared by all writers: admission, then append, then one write for all."""

from __future__ import annotations

import asyncio

from kerolox.broker.base import Base, Room
from kerolox.broker.figures.room import Figures
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.admission import Admission
from kerolox.broker.write.delivery import Delivery
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.remote_outlet import RemoteOutlet
from kerolox.broker.write.targets import ClearedTargets
from kerolox.store.errors import StoreError
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.state import Obstacle


class WritePath(Room):
    def __init__(self, base: Base, tables: Tables, figures: Figures) -> None:
        store = base.store
        light_queues: set[bytes] | None = None
        if base.options.multi_dispatch:
            topics = store.queues.by_topic
            light_queues = {topic.encode() for topic in topics if topic.startswith(LIGHT_PREFIX)}
        self.admission = Admission(base, tables.topics, light_queues)
        self.intake = Intake(store.log, store.acks, self.admission.fills_light_queues, figures.stats.timed)
        self.delivery = Delivery(self.intake, tables.topics, store.notes.deleted, base.clock)
        self.targets = ClearedTargets(self.admission, self.intake)
        self.outlet = RemoteOutlet(base.options, base.clock)
        self._store = store
        self._options = base.options

    async def close(self) -> None:
        await self.outlet.close()

    def options_changed(self) -> None:
        self.admission.renew()
        self.targets.forget()

    async def lead(self) -> None:
        self.targets.forget()

    async def follow(self) -> None:
        """Write what was appended: a follower appends nothing more."""
        self.targets.forget()
        self.intake.write()

    async def answer_waiting(self) -> None:
        """Accept no more messages, because the broker stops. Answer the sends that wait for a flush or for
        replicas before their connections are closed."""
        self.intake.write()
        self._store.state.set(Obstacle.CLOSED, "the broker is stopping")
        try:
            async with asyncio.timeout(self._options.flush_timeout_ms / 1000):
                await self._store.flusher.flush_all()
        except (StoreError, TimeoutError):
            pass  # senders get no answer and send again elsewhere; the store's close reports the failure
        await self._store.acks.settle()
        await asyncio.sleep(0)
