"""How long a leader may count on being the one: until the controller may have elected another.

The controller replaces a broker it has heard nothing of for ``controllerHeartBeatTimeoutMills``. It heard a
heartbeat not before that was sent, so a leader whose heartbeat was answered knows until when nobody else is
elected for its silence. Time is monotonic on both sides, and a part of it is left for clocks that run
unevenly.
"""

from __future__ import annotations

from collections.abc import Callable

from kerolox.clock import Clock, TimerHandle

MARGIN = 0.05  # of the time
# A controller that begins to lead has not heard those that another one answered, nor how long they may be
# silent. It elects nobody in their place for so long; a lease must not be longer.
NEW_CONTROLLER_WAITS_S = 10.0


class Lease:
    """``on_lapse`` hears when it ends, ``on_renewed`` when it holds again. It does not hold at first."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self.timeout_s = min(timeout_s, NEW_CONTROLLER_WAITS_S) * (1 - MARGIN)
        self.on_lapse: list[Callable[[], None]] = []
        self.on_renewed: list[Callable[[], None]] = []
        self._clock = clock
        self._until_s = clock.monotonic_s()
        self.holds = False
        self._timer: TimerHandle | None = None

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._until_s - self._clock.monotonic_s())

    def renew(self, sent_s: float) -> None:
        """A heartbeat that was sent at this time has been answered."""
        self._until_s = max(self._until_s, sent_s + self.timeout_s)
        if not self.remaining_s:
            return
        if self._timer is None:
            self._timer = self._clock.call_later(self.remaining_s, self._look)
        if not self.holds:
            self.holds = True
            for told in self.on_renewed:
                told()

    def give_up(self) -> None:
        """It ends now."""
        if self.holds:
            self.close()
            self._until_s = self._clock.monotonic_s()
            self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """One timer for all: it was renewed meanwhile, nearly always."""
        self._timer = None
        if self.remaining_s:
            self._timer = self._clock.call_later(self.remaining_s, self._look)
            return
        self.holds = False
        for told in self.on_lapse:
            told()
