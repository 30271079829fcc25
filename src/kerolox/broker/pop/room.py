"""Consumption by POP: the broker hands out single messages, and each is acknowledged."""

from __future__ import annotations

import asyncio

from kerolox.broker.base import Base, Room
from kerolox.broker.consume.message_waits import ANY_QUEUE
from kerolox.broker.consume.room import Consuming
from kerolox.broker.later.room import Scheduling
from kerolox.broker.later.timers import Timers
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.group_members import split_nameservers
from kerolox.broker.pop.acks import Acks
from kerolox.broker.pop.assignments import Assignments
from kerolox.broker.pop.checkpoint import QueueKey
from kerolox.broker.pop.keeper import Keeper
from kerolox.broker.pop.looks import NOTIFY, Looks
from kerolox.broker.pop.orders import Orders
from kerolox.broker.pop.outstanding import Outstanding
from kerolox.broker.pop.pops import POP, Pops, share_at
from kerolox.broker.pop.retries import Retries
from kerolox.broker.pop.revive_log import ReviveLog
from kerolox.broker.pop.reviver import Reviver
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.room import WritePath
from kerolox.client.nameservers import NameServers
from kerolox.front.rows import Row, rows_of
from kerolox.metric_text import MetricText
from kerolox.protocol.pop.retry_topics import normal_topic
from kerolox.store.tables.pop_order import PopOrders


class Popping(Room):
    """Parts that serve pops. It works while this broker leads."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        path: WritePath,
        later: Scheduling,
        consuming: Consuming,
        outstanding: Outstanding,
    ) -> None:
        servers = split_nameservers(base.options.nameservers)
        nameservers = NameServers(servers, base.dialer, clock=base.clock) if servers else None
        options, clock, store = base.options, base.clock, base.store
        topics, offsets = tables.topics, tables.offsets
        self._waits = consuming.waits
        self._is_served = options.timer_wheel
        self.outstanding = outstanding
        self.records = ReviveLog(path.intake, options, clock, store.log.store_host)
        self.retries = Retries(store, path.intake, topics, membership.groups, offsets, options)
        self.keeper = Keeper(
            self.outstanding, self.records, self.retries, path.intake, offsets, store, options, clock
        )
        self.reviver = Reviver(
            store, path.intake, self.outstanding, self.records, self.retries, offsets,
            lambda: delivered_ms(later.timers), options, clock,
        )  # fmt: skip
        orders = PopOrders(store.files, store.path("config"), clock=clock)
        self.orders = Orders(orders, offsets, clock, self._released)
        self.pops = Pops(base, consuming.reads, consuming.waits, topics, offsets, self.keeper, self.orders)
        self.acks = Acks(base, topics, offsets, self.keeper, self.orders)
        self.looks = Looks(
            base, consuming.reads, consuming.waits, topics, offsets, self.keeper, self.orders, self.pops
        )
        self.assignments = Assignments(options, topics, membership.members, tables.modes, nameservers, clock)
        tables.saver.keep(orders, lambda: options.save_offsets_ms)
        self._store = store

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._store.keeper, self.orders.table.load)

    async def close(self) -> None:
        await self.pops.close()

    def rows(self) -> list[Row]:
        return rows_of(self.pops, self.acks, self.looks, self.assignments)

    async def lead(self) -> None:
        if self._is_served:
            self.keeper.begin()
            self.reviver.begin()
            self.orders.watch_all()

    async def follow(self) -> None:
        """Store what is out, so that the next leader, or the next process, continues with it."""
        if not self.keeper.leads:
            return
        self.keeper.rest()
        self._waits.wake_shared()
        await self.pops.close()
        await self.reviver.end()
        self.orders.close()
        await self.keeper.end()

    def metrics(self, out: MetricText) -> None:
        """Add figures of messages that are out, and of the revive topic. Lag and messages in flight are among
        the figures of groups."""
        queues = self.outstanding.queues.values()
        out.gauge("kerolox_pop_checkpoints", "Pops with messages that are out", self.outstanding.count)
        out.gauge(
            "kerolox_pop_reads_not_passed", "Reads of queues that the offset of the group has not passed",
            sum(len(queue.steps) for queue in queues),
        )  # fmt: skip
        out.metric(
            "kerolox_pop_retries_total", "counter", "Messages given out anew as retries",
            [({}, self.retries.made)],
        )  # fmt: skip
        topic, bounds = self.records.topic, self._store.queues.bounds
        lags = [
            ({"queue_id": queue.queue_id}, max(0, bounds(topic, queue.queue_id)[1] - 1 - queue.handled))
            for queue in self.reviver.queues
        ]
        out.metric("kerolox_pop_revive_lag", "gauge", "Records of the revive topic not handled yet", lags)

    def _released(self, key: QueueKey) -> None:
        for queue_id in (key.queue_id, ANY_QUEUE):
            for kind in (POP, NOTIFY):
                self._waits.wake_next(key.topic, queue_id, share_at(kind, key.topic, key.group, queue_id))

    def topic_removed(self, topic: str) -> None:
        self.outstanding.forget(lambda key: topic in (key.topic, normal_topic(key.topic, key.group)))
        self.orders.table.forget(lambda name, _: name == topic)


def delivered_ms(timers: Timers) -> int:
    """Return the time before which the timer has delivered every message: those that it has entered, and
    those that still wait in its queue."""
    return min(timers.read_ms, timers.last_stored_ms) if timers.arrivals.behind else timers.read_ms
