"""Retries of requests to name servers and about queues: errors that are retried, pauses, and limits.

===========  =========================  ================================  ============  ===================
policy       used by                    retried errors                    pauses        until
===========  =========================  ================================  ============  ===================
NAMESERVERS  asyncio clients and        the name server may know it soon: 0.01 to 1 s   the caller's timeout
             tools, for routes          it has just started, or a broker
                                        is not registered yet
QUEUES       socket clients, for        all that may succeed later; an    0.1 to 2 s    ``tries`` attempts,
             routes and queue requests  unknown topic for 3 s                           or ``patience_s``
                                                                                        from the first failure
===========  =========================  ================================  ============  ===================

Pauses double. A socket client serves batch jobs, which should wait for a restarting cluster rather than fail.
An asyncio client serves requests, whose callers need to know at once that a topic does not exist or that no
name server answers. Messages are retried by ``send_attempts.py``. Pulls of consumers are not calls: they
continue while the consumer is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

from kerolox.client.errors import NameServerStarting, NoRoute, TopicNotFound
from kerolox.errors import KeroloxError

# After a broker failure a client refreshes the route at once, because another leader may be elected soon. The
# gaps between further refreshes grow up to the longest one, and are reset after a time without failures.
REFRESH_GAP_FIRST_S = 0.01
REFRESH_GAP_LONGEST_S = 1.0
REFRESH_QUIET_S = 5.0


def doubled(first_s: float, longest_s: float, failures: int) -> float:
    """Return the pause after this number of failures: doubled with each, up to the longest one."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 30))


class RetryPolicy(NamedTuple):
    """Errors that are retried, and the pauses before the attempts."""

    helps: Callable[[Exception], bool]
    first_s: float
    longest_s: float
    unknown_topic_s: float = 0.0  # for a topic never seen, whose name is most likely wrong

    def pause_s(self, failures: int) -> float:
        """Return the pause after this number of failures."""
        return doubled(self.first_s, self.longest_s, failures)


def _passes(error: Exception) -> bool:
    return isinstance(error, NameServerStarting) or (isinstance(error, NoRoute) and error.passes)


def _may_succeed_later(error: Exception) -> bool:
    return isinstance(error, KeroloxError) and error.retriable


NAMESERVERS = RetryPolicy(_passes, 0.01, 1.0)
QUEUES = RetryPolicy(_may_succeed_later, 0.1, 2.0, unknown_topic_s=3.0)


class Retries:
    """Attempts of one call.

    They end at the deadline, if there is one; else ``patience_s`` after the first failure, if given; else
    after ``tries`` attempts.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        now_s: Callable[[], float],
        *,
        deadline_s: float | None = None,
        patience_s: float | None = None,
        tries: int = 1,
    ) -> None:
        self._policy = policy
        self._now_s = now_s
        self._began_s = now_s()
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._tries = tries
        self._failures = 0

    def pause_after(self, error: KeroloxError) -> float:
        """Return the pause before the next attempt. Raises the error if there is no further attempt."""
        now_s = self._now_s()
        self._failures += 1
        if self._deadline_s is None and self._patience_s is not None:
            self._deadline_s = now_s + self._patience_s
        is_over = self._failures >= self._tries if self._deadline_s is None else now_s >= self._deadline_s
        if is_over or not self._helps(error, now_s):
            raise error
        pause_s = self._policy.pause_s(self._failures)
        return pause_s if self._deadline_s is None else min(pause_s, self._deadline_s - now_s)

    def _helps(self, error: KeroloxError, now_s: float) -> bool:
        if isinstance(error, TopicNotFound) and not error.was_known:
            return now_s - self._began_s < self._policy.unknown_topic_s
        return self._policy.helps(error)


class RefreshGap:
    """Limit on the rate of route refreshes after broker failures."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._asked: dict[Hashable, tuple[float, float]] = {}  # last refresh, and the gap after it

    def is_over(self, what: Hashable) -> bool:
        """Return True if the route may be refreshed now, and record the refresh."""
        now_s = self._now_s()
        asked_s, gap_s = self._asked.get(what, (-math.inf, 0.0))
        if now_s - asked_s < gap_s:
            return False
        quiet = now_s - asked_s >= REFRESH_QUIET_S
        gap_s = REFRESH_GAP_FIRST_S if quiet else min(REFRESH_GAP_LONGEST_S, gap_s * 2)
        self._asked[what] = now_s, gap_s
        return True
