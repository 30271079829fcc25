"""Decisions of sending: queue selection, the meaning of failures for broker and route, and retries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from kerolox.client.calls.health import BrokerHealth
from kerolox.client.calls.outgoing import Target
from kerolox.client.calls.retries import SENDS
from kerolox.client.calls.routes import MASTER, Route
from kerolox.client.errors import BrokerLeaving
from kerolox.client.messages import Queue
from kerolox.errors import ConnectFailed, ConnectionLost, RequestFailed, RequestTimeout
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.java import java_hash

Tried = Sequence[tuple[str, Exception]]  # brokers to which a message was sent, with their errors

COULD_NOT_HELP = "a retry cannot help"


class Publishing:
    """Writable queues of one topic."""

    __slots__ = ("_turn", "by_queue", "route", "targets")

    def __init__(self, route: Route, make: Callable[[Queue, str], Target], turn: int) -> None:
        """``make`` creates the target of a queue at an address; ``turn`` is the index of the first queue."""
        self.route = route
        self.targets = tuple(
            make(queue, route.brokers[queue.broker][MASTER])
            for queue in route.writable
            if MASTER in route.brokers.get(queue.broker, ())
        )
        self.by_queue = {target.queue: target for target in self.targets}
        self._turn = turn

    def next(
        self,
        avoid: Collection[str],
        health: BrokerHealth,
        has_room: Callable[[Target], bool] | None = None,
    ) -> Target:
        """Return the next queue in turn, preferably of a broker that is untried, healthy and has room."""
        targets = self.targets
        turn = self._turn = self._turn + 1
        count = len(targets)
        if not avoid and health.all_well:
            found = targets[turn % count]
            if has_room is None or has_room(found):
                return found
        in_turn = [targets[(turn + step) % count] for step in range(count)]
        untried = [target for target in in_turn if target.queue.broker not in avoid] or in_turn
        well = [target for target in untried if health.is_available(target.queue.broker)] or untried
        if has_room is not None:
            for target in well:
                if has_room(target):
                    return target
        return well[0]

    def by_key(self, key: str) -> Target:
        """Return the queue of a key: equal for all senders with an equal route."""
        return self.targets[abs(java_hash(key)) % len(self.targets)]

    def has_untried(self, tried: Tried) -> bool:
        """Return True if a broker exists to which the message was not sent."""
        brokers = {broker for broker, _ in tried}
        return any(target.queue.broker not in brokers for target in self.targets)


def was_mistaken(known: Publishing | None, target: Target, error: Exception) -> bool:
    """Return True if the message was sent to an assumed queue that the topic does not have.

    The topic was created meanwhile, with fewer queues than assumed for a new one. Nothing was stored, and a
    new route has the right queues. ``known`` is the current state, which another message may have updated.
    """
    if not isinstance(error, RequestFailed) or "queueId" not in str(error):
        return False
    if error.response_code not in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR):
        return False  # the codes of RocketMQ 5 and 4
    return known is None or known.route.assumed or target.queue not in known.by_queue


class SendVerdict(NamedTuple):
    """Consequences of a failed send for the broker and the route."""

    avoid_broker: bool = False  # prefer other brokers for a while
    refresh_route: bool = False  # the route may have changed
    forget_route: bool = False  # the topic was deleted, or never created: fetch the route again


_FINE = SendVerdict()
_AWAY = SendVerdict(avoid_broker=True, refresh_route=True)


def verdict_on(error: Exception) -> SendVerdict:
    if isinstance(error, ConnectFailed | ConnectionLost | RequestTimeout | BrokerLeaving):
        return _AWAY
    if isinstance(error, RequestFailed):
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return SendVerdict(forget_route=True)
        if error.response_code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION):
            return SendVerdict(refresh_route=True)
    return _FINE


def why_over(tried: Tried, retries: int, left_s: float, timeout_s: float) -> str:
    """Return the reason why a message is not retried; empty if it is.

    A broker that is stopping or unreachable may be restarting. This does not count as an attempt, and the
    sender waits for it until the timeout.
    """
    if left_s <= 0:
        return f"the timeout of {timeout_s:g} s has expired"
    asked = sum(not isinstance(error, ConnectFailed | BrokerLeaving) for _, error in tried)
    return "no retries are left" if asked > retries else ""


def pause_before(tried: Tried, broker: str) -> float:
    """Return the pause before a message is sent again to a broker that failed to accept it."""
    if not any(name == broker for name, _ in tried):
        return 0.0
    return SENDS.pause_s(len(tried))


def leaves_doubt(error: Exception) -> bool:
    """Return True if the messages may be stored despite the error."""
    if isinstance(error, RequestFailed):
        return error.response_code == ResponseCode.SYSTEM_ERROR
    return not isinstance(error, ConnectFailed)
