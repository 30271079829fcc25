"""Writable queues of a topic: the choice of one, and queues that the topic does not have."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kerolox.client.calls.health import BrokerHealth
from kerolox.client.calls.outgoing import Target
from kerolox.client.calls.routes import MASTER, Route
from kerolox.client.messages import Queue
from kerolox.errors import RequestFailed
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.java import java_hash


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

    @property
    def brokers(self) -> set[str]:
        return {target.queue.broker for target in self.targets}


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
