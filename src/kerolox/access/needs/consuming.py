"""Needs of consumers: pulls, queries, offsets, and group membership."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kerolox.access.needs import names
from kerolox.access.needs.kinds import each, named
from kerolox.front.needs import Need, Rule, View
from kerolox.front.requests import Request
from kerolox.protocol.bodies.heartbeat import CheckClient, HeartbeatData
from kerolox.protocol.bodies.members import LockRequest
from kerolox.protocol.headers.heartbeat import UnregisterClientRequest
from kerolox.protocol.headers.query import ViewMessageRequest


def _heartbeat(asked: Request[None], view: View) -> Iterable[Need]:
    """Yield the needs of all consumers of the client. Producers need none: each message is checked when it is
    sent."""
    return each(_joined(HeartbeatData.decode(asked.body), view))


def _joined(told: HeartbeatData, view: View) -> Iterator[Need]:
    for consumer in told.consumer_data_set:
        yield names.group(consumer.group_name, names.SUB)
        for wanted in consumer.subscription_data_set:
            yield from names.topic(wanted.topic, names.SUB, view, consumer.group_name)


def _unregister(asked: Request[UnregisterClientRequest], view: View) -> Iterator[Need]:
    """Yield the need on the consumer group. The request unregisters only its own connection, whatever client
    id it names."""
    if asked.header.consumer_group:
        yield names.group(asked.header.consumer_group, names.SUB)


def _lock(asked: Request[None], view: View) -> Iterable[Need]:
    told = LockRequest.decode(asked.body)
    owner = named(told.consumer_group, "consumerGroup")
    found = [names.group(owner, names.SUB)]
    for queue in told.mq_set:
        found += names.topic(queue.topic, names.SUB, view, owner)
    return each(found)


def _check_client(asked: Request[None], view: View) -> Iterator[Need]:
    told = CheckClient.decode(asked.body) if asked.body else CheckClient()
    if told.group is not None:
        yield names.group(told.group, names.SUB)
    if told.subscription_data is not None:
        yield from names.topic(told.subscription_data.topic, names.SUB, view, told.group)


def _view(asked: Request[ViewMessageRequest], view: View) -> Iterator[Need]:
    """Yield the need on the topic that the request names. The handler checks the topic of the message
    found."""
    if asked.header.topic:
        yield from names.topic(asked.header.topic, names.SUB_OR_GET, view)


HEARTBEAT = Rule(_heartbeat, for_everybody=True)
UNREGISTER = Rule(_unregister, for_everybody=True)
LOCK = Rule(_lock)
CHECK_CLIENT = Rule(_check_client)
VIEW = Rule(_view, for_everybody=True)
