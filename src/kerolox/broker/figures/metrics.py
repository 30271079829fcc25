"""Metrics for Prometheus, with RocketMQ 5's names and labels, and the health page.

Metrics that RocketMQ does not have begin with ``kerolox_``. Numbers are collected on the event loop, which
owns them; numbers read from the log, and the text, are made in a thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from kerolox.broker.base import Base
from kerolox.broker.figures.lag import Popped, QueueLag, queue_lags, waiting_since_ms
from kerolox.broker.figures.stats import Flow, Statistics
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.metric_text import CONTENT_TYPE, Labels, MetricText, own_labels
from kerolox.net.http_pages import Page
from kerolox.protocol import reserved
from kerolox.protocol.bodies.heartbeat import ConsumeType
from kerolox.protocol.codes import version_name
from kerolox.store.errors import StoreError
from kerolox.store.state import Obstacle

LOOP_TICK_S = 0.1
UNHEALTHY = (Obstacle.FENCED, Obstacle.CLOSED)  # only a restart of the broker can help

_MODES = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}

STORAGE: Labels = {"storage_type": "local", "storage_medium": "disk"}


class LoopLag:
    """Delay of the event loop behind its schedule: the first sign of an overloaded broker."""

    def __init__(self, clock: Clock) -> None:
        self.last_s = 0.0
        self._max_s = 0.0
        self._clock = clock
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        due_s = self._clock.monotonic_s() + LOOP_TICK_S

        def tick() -> None:
            self.last_s = max(0.0, self._clock.monotonic_s() - due_s)
            self._max_s = max(self._max_s, self.last_s)
            self.start()

        self._timer = self._clock.call_later(LOOP_TICK_S, tick)

    def take_max_s(self) -> float:
        """Return the longest delay since the last call."""
        worst, self._max_s = self._max_s, 0.0
        return worst

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Metrics:
    """The pages ``/metrics`` and ``/healthz`` of one broker."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        stats: Statistics,
        popped: Popped,
    ) -> None:
        options = base.options
        self._options = options
        self._store = base.store
        self._topics = tables.topics
        self._groups = membership.groups
        self._members = membership.members
        self._offsets = tables.offsets
        self._stats = stats
        self._popped = popped
        self._lanes = base.lanes  # by RocketMQ's names of its processors: send, pull, query_message, ...
        self._clock = base.clock
        self._own_labels = own_labels(options.metrics_labels)
        self.loop_lag = LoopLag(SYSTEM_CLOCK)  # uses the system clock, even if the broker uses another one
        self.more: list[Callable[[MetricText], None]] = []  # metrics of other parts, collected on the loop

    def start(self) -> None:
        self.loop_lag.start()

    def close(self) -> None:
        self.loop_lag.close()

    def pages(self) -> dict[str, Callable[[], Awaitable[Page]]]:
        return {"/metrics": self.metrics, "/healthz": self.health}

    async def health(self) -> Page:
        """Return 200 while the broker works; 503 with the reason while files cannot be read, or when only a
        restart can help."""
        obstacles = self._store.state.obstacles
        unreadable = self._store.reads.lasting
        reasons = [f"{obstacle.value}: {why}" for obstacle, why in obstacles.items()]
        reasons += [
            f"unreadable: {files} files of {kind} ({error}): {text}"
            for (kind, error), (files, text) in unreadable.items()
        ]
        if unreadable or any(obstacle in UNHEALTHY for obstacle in obstacles):
            return Page("\n".join(reasons) + "\n", 503)
        reasons += [f"failing: {why}" for why in self._store.failing.reasons()]
        return Page("ok\n" + "".join(f"{reason}\n" for reason in reasons))

    async def metrics(self) -> Page:
        out = MetricText(
            {
                "node_type": "broker",
                "cluster": self._options.cluster,
                "node_id": self._options.broker_name,
                "otel_scope_name": "broker-meter",  # RocketMQ's library adds it, and dashboards may use it
                **self._own_labels,
            }
        )
        self._broker(out)
        self._messages(out)
        self._connections(out)
        self._loop(out)
        for tell in self.more:
            tell(out)
        lags = queue_lags(self._store, self._topics, self._offsets, self._popped)
        since = await self._store.readers.read(lambda: waiting_since_ms(self._store, lags))
        return Page(await asyncio.to_thread(self._finish, out, lags, since), content_type=CONTENT_TYPE)

    # --- on the loop ----------------------------------------------------------------------------------

    def _broker(self, out: MetricText) -> None:
        out.metric(
            "rocketmq_processor_watermark", "gauge", "Requests that wait for their turn",
            [({"processor": name}, lane.waiting) for name, lane in self._lanes.items()],
        )  # fmt: skip
        out.gauge("rocketmq_broker_permission", "4 readable, 2 writable", self._options.permission)
        out.gauge("rocketmq_topic_number", "Topics", len(self._topics.table.topics))
        out.gauge("rocketmq_consumer_group_number", "Consumer groups", len(self._groups.table.groups))
        out.metric(
            "kerolox_consumer_group_disabled", "gauge", "1 for groups the broker disabled, and why",
            [
                ({"consumer_group": group, "reason": why}, 1.0)
                for group, why in self._groups.disabled.items()
            ],
        )  # fmt: skip
        out.metric(
            "kerolox_consumer_group_behind_bytes", "gauge",
            "How far behind the end of the log a group read last, in its slowest queue",
            [({"consumer_group": group}, behind) for group, behind in self._stats.behind_by_group().items()],
        )  # fmt: skip
        progress, log = self._store.progress, self._store.log
        out.metric(
            "rocketmq_storage_flush_behind_bytes", "gauge", "Written but not yet flushed",
            [(STORAGE, max(0, progress.appended - progress.flushed))],
        )  # fmt: skip
        out.metric(
            "rocketmq_storage_dispatch_behind_bytes", "gauge", "Written but not yet in their queues",
            [(STORAGE, max(0, log.max_offset - self._store.dispatcher.dispatched))],
        )  # fmt: skip
        out.metric(
            "kerolox_store_obstacle", "gauge", "1 for everything that keeps the store from being written",
            [({"obstacle": what.value}, float(what in self._store.state.obstacles)) for what in Obstacle],
        )  # fmt: skip
        failing = self._store.failing
        out.metric(
            "kerolox_store_failing", "gauge", "1 for work on files that fails now and is retried",
            [({"file": kind.value, "work": work}, 1.0) for kind, work in failing.current],
        )  # fmt: skip
        out.metric(
            "kerolox_store_failures_total", "counter", "Failed operations on files, by kind, step and error",
            [
                ({"file": kind, "operation": operation, "error": error}, count)
                for (kind, operation, error), count in failing.counted.items()
            ],
        )  # fmt: skip
        reads = self._store.reads
        lasting = reads.lasting
        out.metric(
            "kerolox_store_unreadable_files", "gauge", "Files of the store that cannot be read now",
            [
                ({"file": kind, "error": error}, lasting[kind, error][0] if (kind, error) in lasting else 0)
                for kind, error in reads.total
            ],
        )  # fmt: skip
        out.metric(
            "kerolox_store_failed_reads_total", "counter", "Reads of the store's files that failed",
            [({"file": kind, "error": error}, count) for (kind, error), count in reads.total.items()],
        )  # fmt: skip

    def _messages(self, out: MetricText) -> None:
        gets = [(self._group_labels(group, topic), flow) for (topic, group), flow in self._stats.gets.items()]
        out.metric("rocketmq_messages_out_total", "counter", "Messages handed out", _messages_of(gets))
        out.metric("rocketmq_throughput_out_total", "counter", "Bytes handed out", _bytes_of(gets))
        backs = [
            (self._group_labels(group, topic), flow)
            for (topic, group), flow in self._stats.send_backs.items()
        ]
        dead = [
            (self._group_labels(group, topic), flow)
            for (topic, group), flow in self._stats.dead_letters.items()
        ]
        out.metric(
            "rocketmq_send_to_dlq_messages_total", "counter", "Messages given up on", _messages_of(dead)
        )
        out.metric(
            "kerolox_send_back_messages_total", "counter", "Messages sent back to be tried again",
            _messages_of(backs),
        )  # fmt: skip

    def _connections(self, out: MetricText) -> None:
        producers: Counter[tuple[str, str]] = Counter()
        for table in self._members.producers.values():
            for member in table.values():
                producers[_client_words(member.client.language, member.client.version)] += 1
        out.metric(
            "rocketmq_producer_connections", "gauge", "Connections of producers",
            [
                ({"language": language, "version": version, "protocol_type": "remoting"}, count)
                for (language, version), count in producers.items()
            ],
        )  # fmt: skip
        samples: list[tuple[Labels, float]] = []
        for group, found in self._members.consumers.items():
            consumers = Counter(
                _client_words(member.client.language, member.client.version)
                for member in found.by_caller.values()
            )
            for (language, version), count in consumers.items():
                labels: Labels = {
                    "consumer_group": group,
                    "language": language,
                    "version": version,
                    "consume_mode": _MODES.get(found.consume_type, "") if found.consume_type else "",
                    "protocol_type": "remoting",
                    "is_system": _is_system_group(group),
                }
                samples.append((labels, count))
        out.metric("rocketmq_consumer_connections", "gauge", "Connections of consumers", samples)
        out.metric(
            "kerolox_subscription_mismatches_total", "counter",
            "Times two members of a group were found to want different things",
            [({}, self._members.mismatches)],
        )  # fmt: skip

    def _loop(self, out: MetricText) -> None:
        out.gauge("kerolox_event_loop_lag_seconds", "How late the event loop was last", self.loop_lag.last_s)
        out.gauge(
            "kerolox_event_loop_lag_seconds_max",
            "How late it was at worst since the last scrape",
            self.loop_lag.take_max_s(),
        )

    # --- in a thread ----------------------------------------------------------------------------------

    def _finish(
        self, out: MetricText, lags: list[QueueLag], since: Mapping[tuple[str, str], tuple[int, int]]
    ) -> str:
        self._storage(out)
        now_ms = self._clock.wall_ms()
        totals: dict[tuple[str, str], list[int]] = {}
        for lag in lags:
            total = totals.setdefault((lag.topic, lag.group), [0, 0, 0])
            total[0] += lag.messages
            total[1] += lag.in_flight
            total[2] += lag.ready
        rows = [
            (
                {**self._group_labels(group, topic), "is_retry": topic.startswith(reserved.RETRY_PREFIX)},
                total,
                [max(0, now_ms - ms) if ms else 0 for ms in since[topic, group]],
            )
            for (topic, group), total in totals.items()
        ]
        for name, about, samples in (
            ("lag_messages", "Messages not yet consumed", [(labels, t[0]) for labels, t, _ in rows]),
            (
                "lag_latency_milliseconds",
                "Age of the oldest of them",
                [(labels, a[0]) for labels, _, a in rows],
            ),
            ("inflight_messages", "Pulled, not yet consumed", [(labels, t[1]) for labels, t, _ in rows]),
            (
                "queueing_latency_milliseconds",
                "Age of the oldest not pulled",
                [(labels, a[1]) for labels, _, a in rows],
            ),
            ("ready_messages", "Messages not yet pulled", [(labels, t[2]) for labels, t, _ in rows]),
        ):
            out.metric(f"rocketmq_consumer_{name}", "gauge", about, samples)
        out.metric(
            "kerolox_consumer_queue_lag_messages", "gauge", "Messages not yet consumed, queue by queue",
            [
                ({"consumer_group": lag.group, "topic": lag.topic, "queue_id": lag.queue_id}, lag.messages)
                for lag in lags
            ],
        )  # fmt: skip
        return out.text()

    def _storage(self, out: MetricText) -> None:
        store = self._store
        try:
            usage = store.files.disk_usage(store.root)
        except StoreError:
            return
        out.metric(
            "rocketmq_storage_size_bytes",
            "gauge",
            "Bytes of the disk in use",
            [(STORAGE, usage.total - usage.free)],
        )
        try:
            earliest_ms = store.log.earliest_ms
        except StoreError:
            return  # the log cannot be read now; another metric reports that
        if earliest_ms > 0:
            out.metric(
                "rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest message",
                [(STORAGE, max(0, self._clock.wall_ms() - earliest_ms))],
            )  # fmt: skip

    # --- labels ---------------------------------------------------------------------------------------

    def _group_labels(self, group: str, topic: str) -> dict[str, object]:
        system = self._topics.is_system(topic) or _is_system_group(group)
        return {"consumer_group": group, "topic": topic, "is_system": system}


def _messages_of(flows: list[tuple[dict[str, object], Flow]]) -> list[tuple[Labels, float]]:
    return [(labels, flow.messages) for labels, flow in flows]


def _bytes_of(flows: list[tuple[dict[str, object], Flow]]) -> list[tuple[Labels, float]]:
    return [(labels, flow.size_bytes) for labels, flow in flows]


def _client_words(language: str, version: int) -> tuple[str, str]:
    return language.lower(), version_name(version).lower()


def _is_system_group(group: str) -> bool:
    return group.upper().startswith(reserved.SYSTEM_GROUP_PREFIX)
