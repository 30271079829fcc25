"""Needs of POP: pops, acknowledgements, invisible times, and the assignment of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kerolox.access.needs import names
from kerolox.access.needs.kinds import each, header_of, named
from kerolox.front.needs import Action, Need, Rule, View
from kerolox.front.requests import Request
from kerolox.protocol.bodies.groups import SetRequestMode
from kerolox.protocol.bodies.pop import BatchAckRequest, QueryAssignment
from kerolox.protocol.header import Header
from kerolox.protocol.headers import pop as headers


def _both(group: str, topic: str, actions: frozenset[Action], view: View) -> Iterator[Need]:
    yield names.group(group, actions)
    yield from names.topic(topic, actions, view, group)


def _on(header: type[Header], actions: frozenset[Action] = names.SUB) -> Rule:
    def needs(asked: Request[Any], view: View) -> Iterator[Need]:
        told: Any = header_of(asked, header)
        return _both(told.consumer_group, told.topic, actions, view)

    return Rule(needs)


def _batch_ack(asked: Request[Any], view: View) -> Iterable[Need]:
    acks = BatchAckRequest.decode(asked.body).acks
    return each(
        need
        for ack in acks
        for need in _both(
            named(ack.consumer_group, "consumerGroup"), named(ack.topic, "topic"), names.SUB, view
        )
    )


def _on_body(
    body: Callable[[bytes], QueryAssignment | SetRequestMode], actions: frozenset[Action]
) -> Callable[[Request[Any], View], Iterator[Need]]:
    def needs(asked: Request[Any], view: View) -> Iterator[Need]:
        told = body(asked.body)
        return _both(named(told.consumer_group, "consumerGroup"), named(told.topic, "topic"), actions, view)

    return needs


POP = _on(headers.PopRequest)
PEEK = _on(headers.PeekRequest)
NOTIFICATION = _on(headers.NotificationRequest)
# A handle is not a secret: to acknowledge a retry also requires the right to the topic behind the retry
# topic.
ACK = _on(headers.AckRequest)
CHANGE_INVISIBLE_TIME = _on(headers.ChangeInvisibleTimeRequest)
BATCH_ACK = Rule(_batch_ack)
POLLING_INFO = _on(headers.PollingInfoRequest, names.GET)
ASSIGNMENT = Rule(_on_body(QueryAssignment.decode, names.SUB))
SET_MODE = Rule(_on_body(SetRequestMode.decode, names.UPDATE), administers=True)
