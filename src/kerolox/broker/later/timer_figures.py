"""Figures of the timer: waiting messages, their due times, and its delay."""

from __future__ import annotations

from itertools import pairwise

from kerolox.broker.figures.metrics import STORAGE
from kerolox.broker.later.timers import Timers
from kerolox.clock import Clock
from kerolox.metric_text import MetricText

# Bounds in seconds from now, as in RocketMQ; messages are counted between two of them.
BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
_FRESH_MS = 2000  # the timer has caught up if it entered nothing for this time
_OPEN_END_S = 14 * 86_400


class TimerFigures:
    """For ``/metrics``, GET_BROKER_RUNTIME_INFO and ``kerolox timer``."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timers = timers
        self._clock = clock

    def due_within(self) -> dict[int, int]:
        """Return the numbers of messages by bound, each counted once; the last bound has no end."""
        files = self._timers.files
        now_ms = self._clock.wall_ms()
        moments = [files.moment(now_ms + bound * 1000) for bound in (*BOUNDS_S, _OPEN_END_S)]
        counts = {BOUNDS_S[0]: files.wheel.count_between(0, moments[0])}
        for bound, (low, high) in zip((*BOUNDS_S[1:], _OPEN_END_S), pairwise(moments), strict=True):
            counts[bound] = files.wheel.count_between(low, high)
        return counts

    def runtime_info(self) -> dict[str, object]:
        """Return the figures under RocketMQ's names, which tools expect, then those of kerolox."""
        timers = self._timers
        info: dict[str, object] = {
            "timerReadBehind": max(0, self._clock.wall_ms() - timers.read_ms) // 1000,
            "timerOffsetBehind": timers.arrivals.behind,
            "timerCongestNum": timers.files.wheel.waiting,
            "timerEnqueueTps": round(timers.enter_rate, 2),
            "timerDequeueTps": round(timers.deliver_rate, 2),
        }
        return info | {f"timerDueWithin_{bound}": count for bound, count in self.due_within().items()}

    def metrics(self, out: MetricText) -> None:
        timers = self._timers
        now_ms = self._clock.wall_ms()
        fresh = now_ms - timers.last_entered_ms < _FRESH_MS
        for name, about, value in (
            ("enqueue_lag", "Timer messages not yet entered", timers.arrivals.behind),
            (
                "enqueue_latency_milliseconds",
                "How long the last of them had waited for that",
                max(0, now_ms - timers.last_stored_ms) if fresh else 0,
            ),
            ("dequeue_lag", "Timer messages that wait", timers.files.wheel.waiting),
            ("dequeue_latency_milliseconds", "How late delivery is", max(0, now_ms - timers.read_ms)),
        ):
            out.metric(f"rocketmq_timer_{name}", "gauge", about, [(STORAGE, value)])
        for name, kind, about, counts in (
            ("timing_messages", "gauge", "Timer messages that wait, by topic", timers.counts.counts),
            (
                "timer_enqueue_total",
                "counter",
                "Timer messages entered",
                timers.entered + timers.delivery.late,
            ),
            (
                "timer_dequeue_total",
                "counter",
                "Timer messages delivered or rolled",
                timers.delivery.delivered,
            ),
        ):
            samples = [({**STORAGE, "topic": topic}, count) for topic, count in counts.items()]
            out.metric(f"rocketmq_{name}", kind, about, samples)
        out.metric(
            "rocketmq_timer_message_snapshot", "gauge", "Timer messages by the seconds they are due within",
            [
                ({**STORAGE, "timer_bound_s": bound}, n)
                for bound, n in self.due_within().items()
                if bound in BOUNDS_S
            ],
        )  # fmt: skip
