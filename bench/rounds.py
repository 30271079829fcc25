"""Rounds: variants take turns within the same minute, and the better rounds count.

A disturbance from outside only ever makes a round slower. So the figure of a variant is the 20th
percentile of its rounds counted from the best: not the luckiest one, and not the neighbours'.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
BEST_SHARE = 0.2


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of them lie, between two where it falls between two."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def typical_cost(values: Sequence[float]) -> float:
    """Of figures where less is better."""
    return percentile(values, BEST_SHARE)


def typical_rate(values: Sequence[float]) -> float:
    """Of figures where more is better."""
    return percentile(values, 1 - BEST_SHARE)


def take_turns(variants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Each variant once a round; every other round the other way round."""
    results: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(rounds):
        order = list(variants) if number % 2 == 0 else list(variants)[::-1]
        for name in order:
            results[name].append(variants[name]())
    return results


def cpu_us(work: Callable[[], object], *, per_call: int = 1, round_s: float = 0.02) -> Callable[[], float]:
    """A variant for :func:`take_turns`: CPU microseconds per item, ``work`` handling ``per_call`` of them."""
    calls = _calls_for(work, round_s)

    def one_round() -> float:
        gc.collect()
        started = time.process_time_ns()
        for _ in range(calls):
            work()
        return (time.process_time_ns() - started) / 1000 / calls / per_call

    return one_round


def _calls_for(work: Callable[[], object], round_s: float) -> int:
    work()  # imports and caches are not what is measured
    calls = 1
    while True:
        started = time.process_time_ns()
        for _ in range(calls):
            work()
        took_s = (time.process_time_ns() - started) / 1e9
        if took_s > round_s / 4:
            return max(1, round(calls * round_s / took_s))
        calls *= 4
