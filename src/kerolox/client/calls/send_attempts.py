"""Attempts to send a message: errors that are retried, at which broker, after which pause, and until when.

The send loops (``send/sending.py`` with an event loop, ``send/in_flight.py`` for many, ``sockets/sending.py``
without one) carry out the steps that are decided here. ``SEND_RULES`` is the table of all errors. A retry to
any queue goes to an untried broker at once, and to a tried one after a pause, which doubles from 0.05 to 1 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, NamedTuple

from kerolox.client.calls.retries import doubled
from kerolox.client.errors import (
    AccessDenied,
    BrokerLeaving,
    NotAllowedThere,
    SendFailed,
    SendTimeout,
    StoredUnsafely,
)
from kerolox.client.messages import Receipt
from kerolox.errors import (
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    Overloaded,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.codes import ResponseCode

PAUSE_FIRST_S: Final = 0.05
PAUSE_LONGEST_S: Final = 1.0
COULD_NOT_HELP: Final = "a retry cannot help"
# Errors of an unanswered request, reported with the broker and the time even after one attempt.
NO_ANSWER: Final = (ConnectFailed, ConnectionLost, RequestTimeout)


class RouteStep(Enum):
    """Consequence of a failed send for the route of the topic."""

    KEEP = auto()
    REFRESH = auto()  # it may have changed
    FORGET = auto()  # the topic was deleted, or has other queues than assumed


class SendRule(NamedTuple):
    """Consequences of one kind of error."""

    retried: bool  # by a message for any queue
    retried_tied: bool  # by a message tied to a queue, where a later duplicate would break the order
    counted: bool = True  # uses up one of the retries; a broker that restarts is waited for
    avoid_broker: bool = False  # prefer other brokers for a while
    route: RouteStep = RouteStep.KEEP
    maybe_stored: bool = False  # despite the error


_REFRESH: Final = RouteStep.REFRESH
_AWAY: Final = SendRule(True, True, counted=False, avoid_broker=True, route=_REFRESH)
_LOST: Final = SendRule(True, False, avoid_broker=True, route=_REFRESH, maybe_stored=True)
_BUSY: Final = SendRule(True, True)
_ELSEWHERE: Final = SendRule(True, False)  # another broker may accept it
_FORBIDDEN: Final = SendRule(True, False, route=_REFRESH)
_FINAL: Final = SendRule(False, False)

# By class, the first that fits; then by response code.
SEND_RULES: Final[dict[type[Exception] | int, SendRule]] = {
    ConnectFailed: _AWAY,
    BrokerLeaving: _AWAY,
    ConnectionLost: _LOST,
    RequestTimeout: _LOST,
    Overloaded: _BUSY,
    StoredUnsafely: SendRule(True, False, maybe_stored=True),
    NotAllowedThere: _FORBIDDEN,
    AccessDenied: _FINAL,  # all brokers check the same keys
    ResponseCode.SYSTEM_BUSY: _BUSY,
    ResponseCode.FLOW_CONTROL: _BUSY,
    ResponseCode.SYSTEM_ERROR: SendRule(True, False, maybe_stored=True),
    ResponseCode.SERVICE_NOT_AVAILABLE: SendRule(True, False, route=_REFRESH),
    ResponseCode.NO_PERMISSION: _FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: SendRule(True, False, route=RouteStep.FORGET),
    ResponseCode.NO_BUYER_ID: _ELSEWHERE,
    ResponseCode.NOT_IN_CURRENT_UNIT: _ELSEWHERE,
}
REJECTED: Final = _FINAL  # any other response code: the message itself is rejected
UNREADABLE: Final = SendRule(False, False, maybe_stored=True)  # any other error, such as an invalid response

_BY_CLASS: Final = [(kind, rule) for kind, rule in SEND_RULES.items() if isinstance(kind, type)]


def rule_of(error: Exception) -> SendRule:
    """Return the consequences of an error."""
    for kind, rule in _BY_CLASS:
        if isinstance(error, kind):
            return rule
    return SEND_RULES.get(error.response_code, REJECTED) if isinstance(error, RequestFailed) else UNREADABLE


class SendStep(NamedTuple):
    """Next step after a failed attempt: a retry, unless there is a receipt or an error."""

    attempt: SendAttempt  # that includes the failure
    avoid_broker: bool
    route: RouteStep
    maybe_stored: bool
    receipt: Receipt | None = None  # of a broker that stored the message, though not as required
    error: KeroloxError | None = None  # to raise


class SendAttempt(NamedTuple):
    """Failed attempts of one message, and their limits. Made at the first failure."""

    topic: str
    retries: int
    timeout_s: float
    began_s: float
    is_tied: bool = False  # to one queue, with others in flight to it
    tried: tuple[tuple[str, KeroloxError], ...] = ()  # brokers, with their errors

    @property
    def brokers(self) -> tuple[str, ...]:
        """Brokers to avoid in the next attempt."""
        return tuple([broker for broker, _ in self.tried])

    def failed(
        self,
        broker: str,
        error: KeroloxError,
        now_s: float,
        *,
        mistaken: bool = False,
        is_assumed: bool = False,
    ) -> SendStep:
        """Return the next step after an error of a broker.

        ``mistaken``: the message went to a queue that the topic does not have (see :func:`was_mistaken`);
        ``is_assumed``: the queues of the topic are still assumed.
        """
        rule = rule_of(error)
        attempt = self.and_tried(broker, error)
        route, maybe_stored = rule.route, rule.maybe_stored
        if mistaken:
            route, maybe_stored = RouteStep.FORGET if is_assumed else route, False
        step = SendStep(attempt, rule.avoid_broker, route, maybe_stored)
        is_retried = mistaken or (rule.retried_tied if self.is_tied else rule.retried)
        why = attempt._why_over(now_s) if is_retried else COULD_NOT_HELP
        if not why:
            return step
        for _, earlier in reversed(attempt.tried):
            if isinstance(earlier, StoredUnsafely):
                return step._replace(receipt=earlier.receipt)  # no broker did better
        if is_retried or self.tried or isinstance(error, NO_ANSWER):
            kind = SendTimeout if is_retried and attempt._is_late(now_s) else SendFailed
            error = kind(self.topic, attempt.tried, now_s - self.began_s, why)
        return step._replace(error=error)

    def and_tried(self, broker: str, error: KeroloxError) -> SendAttempt:
        return self._replace(tried=(*self.tried, (broker, error)))

    def given_up(self, now_s: float, why: str) -> SendFailed:
        """Return the error of a message that is not sent again for another reason."""
        return SendFailed(self.topic, self.tried, now_s - self.began_s, why)

    def pause_s(self, brokers: Iterable[str], now_s: float) -> float:
        """Return the pause before the next attempt at one of these brokers: none if one is untried."""
        if not set(brokers).issubset(self.brokers):
            return 0.0
        pause_s = doubled(PAUSE_FIRST_S, PAUSE_LONGEST_S, len(self.tried))
        return max(0.0, min(pause_s, self.began_s + self.timeout_s - now_s))

    def _is_late(self, now_s: float) -> bool:
        return now_s - self.began_s >= self.timeout_s

    def _why_over(self, now_s: float) -> str:
        """Return the reason why there is no further attempt; empty if there is one."""
        if self._is_late(now_s):
            return f"the timeout of {self.timeout_s:g} s has expired"
        counted = sum(rule_of(error).counted for _, error in self.tried)
        return "no retries are left" if counted > self.retries else ""
