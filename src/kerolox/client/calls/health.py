"""Recent health of brokers: slow or failed brokers are avoided for a while.

The table is that of RocketMQ 5.1.4 and later: the latency of a response determines how long other brokers are
preferred. A failure counts as a latency of ten seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kerolox.clock import Clock

LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15_000)
AVOID_MS = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
FAILURE_MS = 10_000


class BrokerHealth:
    """Brokers to avoid, each until a certain time."""

    __slots__ = ("_clock", "_until_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}  # broker → end of the avoidance, monotonic seconds

    def answered(self, broker: str, took_s: float) -> None:
        """Record the latency of a broker's response."""
        if took_s * 1000 < LATENCY_MS[2]:
            if self._until_s:
                self._until_s.pop(broker, None)
            return
        self._avoid(broker, took_s * 1000)

    def failed(self, broker: str) -> None:
        """Record that a broker was unreachable or did not answer."""
        self._avoid(broker, FAILURE_MS)

    def is_available(self, broker: str) -> bool:
        until_s = self._until_s.get(broker)
        return until_s is None or until_s <= self._clock.monotonic_s()

    @property
    def all_well(self) -> bool:
        """True if no broker is avoided: the usual case, checked cheaply."""
        return not self._until_s

    def forget(self, broker: str) -> None:
        """Clear the record of a broker, because another process has its name now."""
        self._until_s.pop(broker, None)

    def forget_all_but(self, brokers: Iterable[str]) -> None:
        known = set(brokers)
        self._until_s = {broker: until_s for broker, until_s in self._until_s.items() if broker in known}

    def _avoid(self, broker: str, latency_ms: float) -> None:
        avoid_ms = AVOID_MS[max(0, bisect_right(LATENCY_MS, latency_ms) - 1)]
        self._until_s[broker] = self._clock.monotonic_s() + avoid_ms / 1000

    def __repr__(self) -> str:
        now_s = self._clock.monotonic_s()
        avoided = {name: f"{until - now_s:.1f} s" for name, until in self._until_s.items() if until > now_s}
        return f"<broker health: avoided {avoided or 'nobody'}>"
