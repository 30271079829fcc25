"""A leader that no controller answers takes no messages: another one may have been elected meanwhile.

Whoever waits for an answer is told that the message is not known to be safe. It goes on when the controller
answers again, and says that this broker still leads in its epoch; or, of a controller that fell back to an
older epoch, when everybody in its in-sync set has said since then that it follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.broker.controlled.lease import Lease
from kerolox.broker.leadership import Leadership
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)


class LeaseWatch:
    """Looks whenever the lease or the role changes."""

    def __init__(
        self, lease: Lease, store: MessageStore, leadership: Leadership, options: BrokerOptions, clock: Clock
    ) -> None:
        self._lease = lease
        self._store = store
        self._leadership = leadership
        self._options = options
        self._clock = clock
        self.doubted_s: float | None = None  # since when it is not known that this broker leads
        self.last_error: Callable[[], str] = lambda: ""  # of what was asked of the controller
        lease.on_lapse.append(self.look)

    @property
    def doubts(self) -> bool:
        return self.doubted_s is not None

    def look(self) -> None:
        """The lease may have ended, or the role may be another one."""
        if not self._leadership.leads or not self._options.controller_lease:
            self._go_on()
        elif not self._lease.holds and not self.doubts:
            self.doubted_s = self._clock.monotonic_s()
            error = self.last_error()
            why = (
                f"no controller has answered this leader for {self._lease.timeout_s:.1f} s"
                + (f" (the last error: {error})" if error else "")
                + ", so another broker may have been elected. It goes on by itself when the controller says "
                "that it leads; controllerLeaseEnable=false lets it go on without"
            )
            log.warning("lease_lapsed reason=%r", why)
            self._store.state.set(Obstacle.NO_LEASE, why)
            self._store.copies.doubt()

    def give_up(self) -> None:
        """Another process has this broker's identity, and may be elected: this one does not lead."""
        self._lease.give_up()

    def confirmed(self, asked_s: float) -> None:
        """The controller was asked at this time, and said that this broker leads in its epoch."""
        if self.doubted_s is not None and asked_s >= self.doubted_s and self._lease.holds:
            log.info("lease_again after_s=%.3f", self._clock.monotonic_s() - self.doubted_s)
            self._go_on()

    def _go_on(self) -> None:
        if self.doubted_s is not None:
            self.doubted_s = None
            self._store.state.clear(Obstacle.NO_LEASE)
            self._store.copies.trust()
