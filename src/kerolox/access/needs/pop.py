"""Needs of POP: pops, acknowledgements, invisible times, and the assignment of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kerolox.access.needs import names
from kerolox.access.needs.kinds import CHANGES, LOOKS, each, header_of, named
from kerolox.access.resources import Action, Need
from kerolox.access.rules import Rule, Rules, View
from kerolox.front.requests import Request
from kerolox.protocol.bodies.groups import SetRequestMode
from kerolox.protocol.bodies.pop import BatchAckRequest, QueryAssignment
from kerolox.protocol.codes import RequestCode
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


RULES: Rules = {
    RequestCode.POP_MESSAGE: _on(headers.PopRequest),
    RequestCode.PEEK_MESSAGE: _on(headers.PeekRequest),
    RequestCode.NOTIFICATION: _on(headers.NotificationRequest),
    # A handle is not a secret: to acknowledge a retry also requires the right to the topic behind the retry
    # topic.
    RequestCode.ACK_MESSAGE: _on(headers.AckRequest),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _on(headers.ChangeInvisibleTimeRequest),
    RequestCode.BATCH_ACK_MESSAGE: Rule(_batch_ack),
    RequestCode.POLLING_INFO: _on(headers.PollingInfoRequest, names.GET),
    RequestCode.POP_ROLLBACK: CHANGES,
    RequestCode.QUERY_ASSIGNMENT: Rule(_on_body(QueryAssignment.decode, names.SUB)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Rule(
        _on_body(SetRequestMode.decode, names.UPDATE), administers=True
    ),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: LOOKS,
    # Lite topics are not supported; only users with rights to the cluster receive that answer.
    RequestCode.POP_LITE_MESSAGE: LOOKS,
    RequestCode.LITE_SUBSCRIPTION_CTL: LOOKS,
    RequestCode.ACK_LITE_MESSAGE: LOOKS,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: LOOKS,
    RequestCode.GET_BROKER_LITE_INFO: LOOKS,
    RequestCode.GET_PARENT_TOPIC_INFO: LOOKS,
    RequestCode.GET_LITE_TOPIC_INFO: LOOKS,
    RequestCode.GET_LITE_CLIENT_INFO: LOOKS,
    RequestCode.GET_LITE_GROUP_INFO: LOOKS,
    RequestCode.TRIGGER_LITE_DISPATCH: CHANGES,
}
