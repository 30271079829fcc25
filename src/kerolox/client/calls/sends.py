"""Where a message goes, what a failure says about broker and route, and whether it is tried again."""

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

Tried = Sequence[tuple[str, Exception]]  # brokers a message was sent to, and what came of it

COULD_NOT_HELP = "another try could not help"


class Publishing:
    """The queues of one topic that can be written, as a sender sees them."""

    __slots__ = ("_turn", "by_queue", "route", "targets")

    def __init__(self, route: Route, make: Callable[[Queue, str], Target], turn: int) -> None:
        """``make`` makes the target of a queue at an address; ``turn`` is where to begin."""
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
        """The next queue in turn: of a broker that was not tried, is well and has room, if there is one."""
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
        """The queue of a key: the same for every sender that sees the same route."""
        return self.targets[abs(java_hash(key)) % len(self.targets)]

    def has_untried(self, tried: Tried) -> bool:
        """Whether there is a broker the message was not sent to."""
        brokers = {broker for broker, _ in tried}
        return any(target.queue.broker not in brokers for target in self.targets)


def was_mistaken(known: Publishing | None, target: Target, error: Exception) -> bool:
    """Whether the topic exists meanwhile, with fewer queues than were assumed of a new one, and the message
    went to one it does not have: nothing was stored, and a new route tells where to send it. ``known`` is
    what is known now: another message may have found it out before."""
    if not isinstance(error, RequestFailed) or "queueId" not in str(error):
        return False
    if error.response_code not in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR):
        return False  # RocketMQ 5's code, and that of 4
    return known is None or known.route.assumed or target.queue not in known.by_queue


class SendVerdict(NamedTuple):
    """What a failed send says about the broker and about the route that led there."""

    avoid_broker: bool = False  # others are preferred for a while
    refresh_route: bool = False  # it may have changed
    forget_route: bool = False  # the topic was deleted meanwhile, or never made: find out anew


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
    """Return why a message is not sent again, or nothing.

    A broker that is stopping, or that could not be connected to, may be restarting: that counts as no try,
    and the sender waits for it until the time is over.
    """
    if left_s <= 0:
        return f"{timeout_s:g} s are over"
    asked = sum(not isinstance(error, ConnectFailed | BrokerLeaving) for _, error in tried)
    return "no tries are left" if asked > retries else ""


def pause_before(tried: Tried, broker: str) -> float:
    """How long a broker is left alone before a message that it failed to take is sent to it again."""
    if not any(name == broker for name, _ in tried):
        return 0.0
    return SENDS.pause_s(len(tried))


def leaves_doubt(error: Exception) -> bool:
    """Whether the messages may be stored although an error came of it."""
    if isinstance(error, RequestFailed):
        return error.response_code == ResponseCode.SYSTEM_ERROR
    return not isinstance(error, ConnectFailed)
