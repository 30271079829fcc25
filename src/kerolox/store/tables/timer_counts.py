"""``timermetrics``: number of waiting timer messages of each topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.bodies.body import from_tree
from kerolox.protocol.bodies.stats import TimerMetric, TimerMetrics
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.figures import FigureTable
from kerolox.store.tables.table import unknown_members


class TimerCounts(FigureTable):
    """Waiting timer messages: ``counts[topic]``. For display only; a crash may leave it slightly wrong."""

    NAME = "timermetrics"
    DISPENSABLE = True

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(files, directory, clock=clock)
        self.counts: dict[str, int] = {}
        self._changed_ms: dict[str, int] = {}
        self._version = DataVersion()

    def add(self, topic: str, count: int) -> None:
        # Messages entered before the counts were lost are not counted, but are subtracted when delivered.
        self.counts[topic] = max(0, self.counts.get(topic, 0) + count)
        now_ms = self._clock.wall_ms()
        self._changed_ms[topic] = now_ms
        self._version = self._version.next(now_ms)
        self.changed = True

    def forget(self, topic: str) -> None:
        """Remove a deleted topic."""
        if self.counts.pop(topic, None) is not None:
            self.changed = True

    def replace(self, content: TimerMetrics) -> None:
        """Replace the table by a leader's, with its version."""
        self._take(content)
        self.changed = True

    def _take(self, content: TimerMetrics) -> None:
        self.counts = {topic: metric.count for topic, metric in content.timing_count.items()}
        self._changed_ms = {topic: metric.timestamp for topic, metric in content.timing_count.items()}
        self._version = content.data_version

    def body(self) -> TimerMetrics:
        """Return the table as it is answered and written."""
        return TimerMetrics(
            data_version=self._version,
            timing_count={
                topic: TimerMetric(count=count, timestamp=self._changed_ms.get(topic, 0))
                for topic, count in self.counts.items()
            },
        )

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, TimerMetrics)
        self._take(content)
        self._other = unknown_members(tree, TimerMetrics)

    def _content(self) -> dict[str, Any]:
        content = self.body()
        return {"dataVersion": content.data_version, "timingCount": content.timing_count}
