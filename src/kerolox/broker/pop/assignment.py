"""Division of a topic's queues among the members of a group, by the broker. Pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kerolox.client.consume.allocation import average, circle
from kerolox.client.messages import Queue
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.routes import TopicRoute
from kerolox.protocol.flags import PERM_READ
from kerolox.protocol.pop.retry_topics import NORMAL, form_of

ANY_QUEUE = -1

_STRATEGIES: dict[str, Callable[[str, Sequence[Queue], Sequence[str]], list[Queue]]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": circle,
}


def queues_of(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return all readable queues of a topic, on all brokers, in order."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    )


def pulled(
    strategy: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue] | None:
    """Return the queues that a member pulls; None if the strategy is unknown."""
    divide = _STRATEGIES.get(strategy)
    if divide is None:
        return None
    if client_id not in members:
        return []
    given = [Queue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues]
    return [
        MessageQueue(queue.topic, queue.broker, queue.queue_id) for queue in divide(client_id, given, members)
    ]


def popped(
    strategy: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], share: int
) -> list[MessageQueue] | None:
    """Return the queues that a member pops. With a ``share`` each member pops its own queues, and those of so
    many members after it; else all queues of each broker."""
    if strategy not in _STRATEGIES:
        return None
    if share <= 0 or share >= len(members) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic, broker, ANY_QUEUE) for topic, broker in brokers]
    if client_id not in members:
        return []
    own = members.index(client_id)
    if len(members) > len(queues):
        return [queues[own % len(queues)]] if queues else []
    found: dict[MessageQueue, None] = {}
    for step in range(share + 1):
        member = members[(own + step) % len(members)]
        found.update(dict.fromkeys(pulled(strategy, member, queues, members) or ()))
    return list(found)


def is_always_pulled(topic: str) -> bool:
    """True for retry topics, which a group pulls unless a mode is set for them."""
    return form_of(topic) != NORMAL
