"""Queue selection of a message: a given queue, the queue of a key, or the choice of a function."""

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
    """Common arguments of all send methods, for their overloads."""

    queue: Queue | None
    order_key: str | None
    selector: Selector | None
    timeout_s: float | None


def queue_choice(
    client: Client, queue: Queue | None, order_key: str | None, selector: Selector | None
) -> QueueChoice | None:
    """Return the function that chooses the queue of a message; None: queues in turn."""
    given = (queue is not None) + (order_key is not None) + (selector is not None)
    if not given:
        return None
    if given > 1:
        raise InvalidMessage("only one of queue, order_key and selector may be given")
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
            f"queue {queue.queue_id} of broker {queue.broker!r} is not a writable queue of topic "
            f"{outgoing.topic!r}. Writable: {known}"
        )
    return target


def order_key_property(order_key: str | None) -> str:
    """Return the packed property for an order key."""
    if order_key is None:
        return ""
    if not isinstance(order_key, str):
        raise InvalidMessage(f"order_key {shown(order_key)}: expected text")
    if not order_key or "\x02" in order_key:
        raise InvalidMessage(f"order_key {order_key!r}: it must not be empty or contain \\x02")
    return f"{names.SHARDING_KEY}\x01{order_key}\x02"
