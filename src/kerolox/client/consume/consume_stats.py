"""Rates of a consumer by topic, over the last minute, for administrators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kerolox.protocol.bodies.clients import ConsumeStatus

WINDOW_S = 60
HOUR_S = 3600


class _Window:
    """Sums of a time window, by second."""

    def __init__(self, monotonic_s: Callable[[], float], seconds: int = WINDOW_S) -> None:
        self._monotonic_s = monotonic_s
        self._seconds = seconds
        self._sums: deque[list[float]] = deque()  # second, number, total

    def add(self, number: int, total: float = 0.0) -> None:
        second = int(self._monotonic_s())
        sums = self._sums
        if not sums or sums[-1][0] != second:
            sums.append([second, 0, 0.0])
            while sums[0][0] <= second - self._seconds:
                sums.popleft()
        sums[-1][1] += number
        sums[-1][2] += total

    def read(self) -> tuple[int, float]:
        oldest = int(self._monotonic_s()) - self._seconds
        kept = [item for item in self._sums if item[0] > oldest]
        return int(sum(item[1] for item in kept)), sum(item[2] for item in kept)


class TopicRates:
    """Rates of one topic."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self.pulled = _Window(monotonic_s)
        self.pulls = _Window(monotonic_s)
        self.taken = _Window(monotonic_s)
        self.failed = _Window(monotonic_s)
        self.failed_in_hour = _Window(monotonic_s, HOUR_S)
        self.taken_total = 0
        self.failed_total = 0

    def status(self) -> ConsumeStatus:
        pulled, _ = self.pulled.read()
        pulls, pull_s = self.pulls.read()
        taken, taken_s = self.taken.read()
        failed, failed_s = self.failed.read()
        worked = taken + failed
        return ConsumeStatus(
            pull_rt=pull_s * 1000 / pulls if pulls else 0.0,
            pull_tps=pulled / WINDOW_S,
            consume_rt=(taken_s + failed_s) * 1000 / worked if worked else 0.0,
            consume_ok_tps=taken / WINDOW_S,
            consume_failed_tps=failed / WINDOW_S,
            consume_failed_msgs=self.failed_in_hour.read()[0],
        )


class ConsumeRates:
    """Rates of all topics of a consumer."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self.topics: dict[str, TopicRates] = {}

    def of(self, topic: str) -> TopicRates:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicRates(self._monotonic_s)
        return found

    def pulled(self, topic: str, count: int, took_s: float) -> None:
        stats = self.of(topic)
        stats.pulled.add(count)
        stats.pulls.add(1, took_s)

    def worked(self, topic: str, taken: int, failed: int, took_s: float) -> None:
        stats = self.of(topic)
        count = taken + failed
        stats.taken_total += taken
        stats.failed_total += failed
        if taken:
            stats.taken.add(taken, took_s * taken / count)
        if failed:
            stats.failed.add(failed, took_s * failed / count)
            stats.failed_in_hour.add(failed)
