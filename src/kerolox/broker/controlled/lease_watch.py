"""A leader without an answer from any controller accepts no messages, since another leader may have been
elected.

Waiting producers get the answer that their message is not known to be safe. The leader continues when the
controller answers again and confirms its leadership in its epoch; or, if that controller fell back to an
older epoch, when all replicas of its in-sync set have confirmed since then that they follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.broker.base import Base
from kerolox.broker.controlled.lease import Lease
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)


class LeaseWatch:
    """Watch over the lease and the role. ``last_error`` returns the last error of the controller."""

    def __init__(self, base: Base, lease: Lease, last_error: Callable[[], str]) -> None:
        self._lease = lease
        self._store = base.store
        self._leadership = base.leadership
        self._options = base.options
        self._clock = base.clock
        self._last_error = last_error
        self.doubted_s: float | None = None  # time since which this leadership is not confirmed
        lease.on_lapse.append(self.look)

    @property
    def doubts(self) -> bool:
        return self.doubted_s is not None

    def look(self) -> None:
        """Check after a possible end of the lease or a change of the role."""
        if not self._leadership.leads or not self._options.controller_lease:
            self._go_on()
        elif not self._lease.holds and not self.doubts:
            self.doubted_s = self._clock.monotonic_s()
            error = self._last_error()
            why = (
                f"no controller has answered this leader for {self._lease.timeout_s:.1f} s"
                + (f" (the last error: {error})" if error else "")
                + ", so another broker may have been elected. It continues automatically when a controller "
                "confirms its leadership; with controllerLeaseEnable=false it would continue without"
            )
            log.warning("lease_lapsed reason=%r", why)
            self._store.state.set(Obstacle.NO_LEASE, why)
            self._store.copies.doubt()

    def give_up(self) -> None:
        """End the lease: another process has this broker's identity, and may be elected."""
        self._lease.give_up()

    def confirmed(self, asked_s: float) -> None:
        """Note that the controller, asked at ``asked_s``, confirmed this leadership in its epoch."""
        if self.doubted_s is not None and asked_s >= self.doubted_s and self._lease.holds:
            log.info("lease_again after_s=%.3f", self._clock.monotonic_s() - self.doubted_s)
            self._go_on()

    def _go_on(self) -> None:
        if self.doubted_s is not None:
            self.doubted_s = None
            self._store.state.clear(Obstacle.NO_LEASE)
            self._store.copies.trust()
