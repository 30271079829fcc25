"""What is tried again, after how long, and how often: the one table of it.

===========  =========================  ================================  ============  ===================
policy       who uses it                what is tried again               pauses        until
===========  =========================  ================================  ============  ===================
NAMESERVERS  asyncio clients and        what a name server may know in a  0.01 to 1 s   the caller's time
             tools, for routes          moment: it has just started, or                 is over
                                        a broker is yet to register
QUEUES       socket clients, for        all that may succeed later; and   0.1 to 2 s    so many ``tries``,
             routes and about queues    an unseen topic, for 3 s                        or ``patience_s``
                                                                                        from the first failure
SENDS        both, for messages         what another broker, or the same  0.05 to 1 s,  ``retries`` brokers
                                        one later, may take               at the same   refused, or the
                                                                          broker only   time is over
SENDS_TIED   asyncio clients, for       only what was not taken: a copy   as SENDS      as SENDS
             messages tied to a queue   later in the queue would break
                                        the order it is tied for
===========  =========================  ================================  ============  ===================

Pauses double. A socket client serves batch jobs, which rather wait for a cluster that restarts than fail; an
asyncio client serves requests, whose callers want to hear at once that a topic does not exist, or that no
name server answers. A socket client has one request at a time under way to a queue, so it needs no
SENDS_TIED. Pulls of consumers are no calls: they go on while the consumer is open, with its
``error_pause_s`` between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

from kerolox.client.errors import (
    AccessDenied,
    BrokerLeaving,
    NameServerStarting,
    NoRoute,
    NotAllowedThere,
    StoredUnsafely,
    TopicNotFound,
)
from kerolox.errors import (
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    Overloaded,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.codes import RETRIABLE_CODES, ResponseCode

# Failing brokers make a client ask for a route at once, for another one may lead in a moment; then less and
# less often, down to once in the longest gap; and after a while without failures at once again.
REFRESH_GAP_FIRST_S = 0.01
REFRESH_GAP_LONGEST_S = 1.0
REFRESH_QUIET_S = 5.0


class RetryPolicy(NamedTuple):
    """Which errors are worth another try, and the pauses before it."""

    helps: Callable[[Exception], bool]
    first_s: float
    longest_s: float
    unknown_topic_s: float = 0.0  # a topic nobody has seen: its name is most often wrong

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 30))


def _passes(error: Exception) -> bool:
    return isinstance(error, NameServerStarting) or (isinstance(error, NoRoute) and error.passes)


def _may_succeed_later(error: Exception) -> bool:
    return isinstance(error, KeroloxError) and error.retriable


def _may_be_sent_again(error: Exception) -> bool:
    if isinstance(error, ConnectFailed | Overloaded | StoredUnsafely | ConnectionLost | RequestTimeout):
        return True
    if isinstance(error, AccessDenied) and not isinstance(error, NotAllowedThere):
        return False  # every broker would look at the same keys
    return isinstance(error, RequestFailed) and error.response_code in RETRIABLE_CODES


def _was_not_taken(error: Exception) -> bool:
    if isinstance(error, ConnectFailed | Overloaded | BrokerLeaving):
        return True
    busy = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
    return isinstance(error, RequestFailed) and error.response_code in busy


NAMESERVERS = RetryPolicy(_passes, 0.01, 1.0)
QUEUES = RetryPolicy(_may_succeed_later, 0.1, 2.0, unknown_topic_s=3.0)
SENDS = RetryPolicy(_may_be_sent_again, 0.05, 1.0)
SENDS_TIED = RetryPolicy(_was_not_taken, 0.05, 1.0)


class Retries:
    """The tries of one call.

    They end with the deadline, if there is one; else when ``patience_s`` have passed since the first failure,
    or without that after so many ``tries``.
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
        """How long to wait for the next try. Raises the error when there is none."""
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
    """Keeps failing brokers from asking for the route of a topic all the time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._asked: dict[Hashable, tuple[float, float]] = {}  # when, and how long not again

    def is_over(self, what: Hashable) -> bool:
        """Whether its route may be asked for; then it counts as asked for now."""
        now_s = self._now_s()
        asked_s, gap_s = self._asked.get(what, (-math.inf, 0.0))
        if now_s - asked_s < gap_s:
            return False
        quiet = now_s - asked_s >= REFRESH_QUIET_S
        gap_s = REFRESH_GAP_FIRST_S if quiet else min(REFRESH_GAP_LONGEST_S, gap_s * 2)
        self._asked[what] = now_s, gap_s
        return True
