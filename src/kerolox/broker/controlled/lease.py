"""Lease of a leader: the time in which the controller cannot have elected another one.

The controller replaces a leader after ``controllerHeartBeatTimeoutMills`` without a heartbeat. It received an
answered heartbeat no earlier than that was sent, so a leader knows how long no other broker is elected for
its silence. Time is monotonic on both sides, and a margin is kept for clocks that run at different speeds.
"""

from __future__ import annotations

from kerolox.clock import Clock, TimerHandle
from kerolox.observers import Observers

MARGIN = 0.05  # share of the time
# A controller that begins to lead does not know the heartbeats that another controller answered, nor their
# timeouts. It replaces no leader for this time; a lease must not be longer.
NEW_CONTROLLER_WAITS_S = 10.0


class Lease:
    """Lease with a timer. ``on_lapse`` is called when it ends, ``on_renewed`` when it is valid again. It is
    invalid at first."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self.timeout_s = min(timeout_s, NEW_CONTROLLER_WAITS_S) * (1 - MARGIN)
        self.on_lapse: Observers[[]] = Observers("lease lapsed")
        self.on_renewed: Observers[[]] = Observers("lease renewed")
        self._clock = clock
        self._until_s = clock.monotonic_s()
        self.holds = False
        self._timer: TimerHandle | None = None

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._until_s - self._clock.monotonic_s())

    def renew(self, sent_s: float) -> None:
        """Renew the lease after an answered heartbeat that was sent at ``sent_s``."""
        self._until_s = max(self._until_s, sent_s + self.timeout_s)
        if not self.remaining_s:
            return
        if self._timer is None:
            self._timer = self._clock.call_later(self.remaining_s, self._look)
        if not self.holds:
            self.holds = True
            self.on_renewed()

    def give_up(self) -> None:
        """End the lease now."""
        if self.holds:
            self.close()
            self._until_s = self._clock.monotonic_s()
            self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Check the lease at the timer. It was nearly always renewed meanwhile, so one timer is enough."""
        self._timer = None
        if self.remaining_s:
            self._timer = self._clock.call_later(self.remaining_s, self._look)
            return
        self.holds = False
        self.on_lapse()
