"""Which queue a message goes to, if not to any in turn: a given one, a key's, or one a function chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

from kerolox.client.errors import InvalidMessage
from kerolox.client.message_types import shown
from kerolox.client.messages import Queue
from kerolox.protocol import properties as names

if TYPE_CHECKING:
    from kerolox.client.calls.outgoing import Outgoing, Target
    from kerolox.client.calls.sends import Publishing
    from kerolox.client.cluster.client import Client
    from kerolox.client.send.sending import Selector

QueueChoice = Callable[["Publishing", "Outgoing"], "Target"]


class SendOptions(TypedDict, total=False):
    """What all ways to send take, for the overloads of those that need them."""

    queue: Queue | None
    order_key: str | None
    selector: Selector | None
    timeout_s: float | None


def queue_choice(
    client: Client, queue: Queue | None, order_key: str | None, selector: Selector | None
) -> QueueChoice | None:
    """The function that chooses the queue of a message; None: queues take turns."""
    given = (queue is not None) + (order_key is not None) + (selector is not None)
    if not given:
        return None
    if given > 1:
        raise InvalidMessage("of queue, order_key and selector only one may be given")
    if order_key is not None:
        return lambda publishing, outgoing: publishing.by_key(order_key)
    if queue is not None:
        if not isinstance(queue, Queue):
            raise InvalidMessage(f"queue {shown(queue)}: expected a Queue, as receipts and queues() have")
        return lambda publishing, outgoing: _target(client, publishing, outgoing, queue)
    if not callable(selector):
        raise InvalidMessage(f"selector {shown(selector)}: expected a function of the queues and the message")

    def select(publishing: Publishing, outgoing: Outgoing) -> Target:
        assert outgoing.message is not None
        chosen = selector([target.shown_queue for target in publishing.targets], outgoing.message)
        if not isinstance(chosen, Queue):
            raise InvalidMessage(
                f"the selector returned {shown(chosen)}: expected one of the queues it was given"
            )
        return _target(client, publishing, outgoing, chosen)

    return select


def _target(client: Client, publishing: Publishing, outgoing: Outgoing, queue: Queue) -> Target:
    wire = Queue(client.wire_name(queue.topic), queue.broker, queue.queue_id)
    target = publishing.by_queue.get(wire)
    if target is None:
        known = ", ".join(
            sorted({f"{item.queue.broker}:{item.queue.queue_id}" for item in publishing.targets})
        )
        raise InvalidMessage(
            f"queue {queue.queue_id} of broker {queue.broker!r} is none of the queues of topic "
            f"{outgoing.topic!r} that can be written: {known}"
        )
    return target


def order_key_property(order_key: str | None) -> str:
    """The property that keeps an order key, packed."""
    if order_key is None:
        return ""
    if not isinstance(order_key, str):
        raise InvalidMessage(f"order_key {shown(order_key)}: expected text")
    if not order_key or "\x02" in order_key:
        raise InvalidMessage(f"order_key {order_key!r}: it must not be empty, nor hold \\x02")
    return f"{names.SHARDING_KEY}\x01{order_key}\x02"
