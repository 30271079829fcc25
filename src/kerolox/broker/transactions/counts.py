"""Counts of open half messages by topic, and of committed and rolled back ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kerolox.histogram import Histogram
from kerolox.store.tables.transaction_counts import TransactionCounts

if TYPE_CHECKING:
    from kerolox.metric_text import MetricText

# Upper bounds of the histogram in seconds, as in RocketMQ.
LATENCY_S = (5, 60, 600, 3600, 12 * 3600, 24 * 3600)


class Counts:
    """Counts of ``config/transactionMetrics``, which survive restarts, and counts since the start."""

    def __init__(self, table: TransactionCounts) -> None:
        self.table = table
        self._committed: Counter[str] = Counter()
        self._rolled_back: Counter[str] = Counter()
        self._latency: dict[str, Histogram] = {}  # topic → seconds from half message to commit

    def prepared(self, topic: str, count: int = 1) -> None:
        self.table.add(topic, count)

    def committed(self, topic: str, latencies_ms: list[int]) -> None:
        """Count several committed messages of one write."""
        self.table.add(topic, -len(latencies_ms))
        self._committed[topic] += len(latencies_ms)
        found = self._latency.setdefault(topic, Histogram(LATENCY_S))
        found.add_all([max(0, latency_ms) // 1000 for latency_ms in latencies_ms])

    def rolled_back(self, topic: str) -> None:
        self.table.add(topic, -1)
        self._rolled_back[topic] += 1

    def given_up(self, topic: str) -> None:
        self.table.add(topic, -1)

    def forget_topic(self, topic: str) -> None:
        self.table.remove(topic)
        for numbers in (self._committed, self._rolled_back, self._latency):
            numbers.pop(topic, None)

    def metrics(self, out: MetricText) -> None:
        out.metric(
            "rocketmq_half_messages", "gauge", "Half messages of all topics",
            [({"topic": topic}, count.count) for topic, count in self.table.counts.items()],
        )  # fmt: skip
        for name, about, numbers in (
            ("commit", "Total number of commit messages", self._committed),
            ("rollback", "Total number of rollback messages", self._rolled_back),
        ):
            out.metric(
                f"rocketmq_{name}_messages_total", "counter", about,
                [({"topic": topic}, count) for topic, count in numbers.items()],
            )  # fmt: skip
        # Seconds, in spite of RocketMQ's name.
        out.histogram(
            "rocketmq_finish_message_latency_milliseconds", "Transaction finish latency, seconds",
            [({"topic": topic}, found) for topic, found in self._latency.items()],
        )  # fmt: skip
