"""Histogram in Prometheus's format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate


class Histogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def copy(self) -> Histogram:
        same = Histogram(self.bounds)
        same.counts, same.total = list(self.counts), self.total
        return same

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add_all(self, values: Sequence[float]) -> None:
        self.total += sum(values)
        if max(values, default=0) <= self.bounds[0]:  # the usual case
            self.counts[0] += len(values)
            return
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1

    def parts(self) -> Iterator[tuple[str, dict[str, object], float]]:
        """Yield its series: suffix of the name, additional label, and value."""
        bounds = (*map(float, self.bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(self.counts), strict=True):
            yield "_bucket", {"le": bound}, count
        yield "_count", {}, self.count
        yield "_sum", {}, self.total
