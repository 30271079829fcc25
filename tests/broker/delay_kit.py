"""Delay levels on a store of their own, with a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kerolox.broker.later.delays import Delays
from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.delivery import Delivery
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_record
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.tables.offsets import DelayOffsets
from kerolox.store.tables.topics import TopicTable
from kerolox.testing.clock import ManualClock

BORN_HOST = host_bytes("10.1.2.3:4567")
STORE_HOST = host_bytes("10.0.0.1:10911")


class DelayRig:
    """One directory and its clock, and the brokers' parts opened there one after the other."""

    def __init__(self, path: Path, files: Files | None = None, **options: Any) -> None:
        self.path = path
        self.files = files
        self.clock = ManualClock()
        self.options = {
            "store_path": str(path),
            "commit_log_file_bytes": 4 << 20,
            "queue_file_bytes": 6000 * 20,
            "index_enabled": False,
            "disk_free_enough": 64 << 20,
            **options,
        }
        self.sent = 0
        self.boot = "one"
        self.outlet: Outlet | None = None

    async def open(self, *, follows: bool = False, **changes: Any) -> None:
        options = BrokerOptions(**{**self.options, **changes})
        self.store = MessageStore(
            options, files=self.files, clock=self.clock, store_host=STORE_HOST, boot=self.boot
        )
        self.leadership = Leadership(self.store, BrokerRole.SLAVE if follows else BrokerRole.ASYNC_MASTER)
        await self.store.open()
        self.intake = Intake(self.store.log, self.store.acks)
        topics = Topics(TopicTable(self.store.files, self.store.path("config")), options, None)
        self.delivery = Delivery(self.intake, topics, self.store.notes.deleted, self.clock)
        self.offsets = DelayOffsets(self.store.files, self.store.path("config"), clock=self.clock)
        self.offsets.load()
        self.delays = Delays(
            self.store, self.intake, self.delivery, self.offsets, options, self.clock, self.outlet
        )
        self.intake.rewrites.append(self.delays.park)
        self.leadership.add(self.delays)
        await self.leadership.start()
        await self.clock.advance(0)

    async def close(self) -> None:
        await self.leadership.stop()
        await self.store.close()

    async def reopen(self, **changes: Any) -> None:
        await self.close()
        await self.open(**changes)

    async def die(self) -> None:
        """As if killed: what was written is there, nothing else is saved. The lock is given back."""
        delays, store = self.delays, self.store
        delays._delivering = False
        for level in delays.levels:
            if level.task is not None:
                level.task.cancel()
        for timer in (*delays._timers, delays._save_timer):
            if timer is not None:
                timer.cancel()
        store.log.take_back()
        for timer in (store.flusher._timer, store.flusher._commit_timer, store.flusher._waits._timer):
            if timer is not None:
                timer.cancel()
        store._lock.release()

    # --- in --------------------------------------------------------------------------------------------

    def pending(self, level: int | str | None, **changes: Any) -> PendingMessage:
        self.sent += 1
        properties = {"UNIQ_KEY": f"K{self.sent:06d}", "TAGS": "A", "WAIT": "true"}
        if level is not None:
            properties["DELAY"] = str(level)
        properties |= changes.pop("properties", {})
        values = {
            "topic": "T",
            "queue_id": 1,
            "body": b"m%d" % self.sent,
            "properties": pack(properties),
            "born_timestamp": self.clock.wall_ms() - 5,
            "born_host": BORN_HOST,
            **changes,
        }
        return PendingMessage(**values)

    async def send(self, *levels: int | str | None, **changes: Any) -> list[bytes]:
        """Messages of these levels, in one turn of the loop; their bodies."""
        bodies = []
        for level in levels:
            pending = self.pending(level, **changes)
            bodies.append(pending.body)
            self.intake.append_or_park(pending)
        await self.intake.written()
        return bodies

    # --- out -------------------------------------------------------------------------------------------

    def stored(self, topic: str = "T", queue_id: int = 1) -> list[StoredMessage]:
        queue = self.store.queues.find(topic, queue_id)
        if queue is None:
            return []
        entries = queue.read(queue.min_offset, queue.max_offset)
        return [decode_record(self.store.log.record_at(entry[0])) for entry in SIMPLE.each(entries)]

    def delivered(self, topic: str = "T", queue_id: int = 1) -> list[bytes]:
        return [message.body for message in self.stored(topic, queue_id)]

    def parked(self, level: int) -> list[StoredMessage]:
        return self.stored(SCHEDULE_TOPIC, level - 1)

    # --- time ------------------------------------------------------------------------------------------

    async def jump(self, seconds: float) -> None:
        """Let much time pass without living through it: as when the machine was asleep. What the last
        tenth of a second brings is lived through."""
        self.clock.step_wall(round((seconds - 0.1) * 1000))
        await self.clock.advance(0.1)

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(200_000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not come to pass")
