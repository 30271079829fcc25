"""Needs of producers: sends, replies, recalls, retries and the ends of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from kerolox.access.needs import names
from kerolox.access.needs.kinds import each
from kerolox.errors import InvalidRequest
from kerolox.front.needs import Kind, Need, Resource, Rule, View
from kerolox.front.requests import Request
from kerolox.protocol import properties as packed
from kerolox.protocol.headers.send import RecallRequest, SendRequest
from kerolox.protocol.headers.transaction import EndTransactionRequest
from kerolox.protocol.reserved import HALF_TOPIC, LIGHT_PREFIX


def _send(asked: Request[SendRequest], view: View) -> Iterator[Need]:
    """Yield the needs on the topic and on the light queues that the message names. Messages of a batch cannot
    name light queues."""
    header = asked.header
    yield from names.sending(header.topic, view)
    if header.properties is not None and packed.INNER_MULTI_DISPATCH in header.properties:
        yield from each(_light_queues(header.properties.encode()))


def _light_queues(properties: bytes) -> Iterator[Need]:
    """Yield the needs on light queues. RocketMQ does not check them and accepts any name."""
    for name in (packed.find(properties, packed.AT_INNER_MULTI_DISPATCH) or b"").split(b","):
        if not name:
            continue
        light = name.decode("utf-8", "replace")
        if not light.startswith(LIGHT_PREFIX):
            raise InvalidRequest(
                f"{packed.INNER_MULTI_DISPATCH} names {light[:80]!r}: it may name only light queues, "
                f"{LIGHT_PREFIX}... "
            )
        yield Need(Resource(Kind.TOPIC, light), names.PUB)


def _recall(asked: Request[RecallRequest], view: View) -> Iterator[Need]:
    yield from names.sending(asked.header.topic, view)


def _end(asked: Request[EndTransactionRequest], view: View) -> Iterator[Need]:
    """Yield the need for the topic that the request names. The handler checks the half message's topic,
    wherever the request says it is. (CONSUMER_SEND_MSG_BACK checks the same way.)"""
    name = asked.header.topic
    # Answers to a transaction check name the topic of all half messages, as the check did.
    if name and name != HALF_TOPIC:
        yield from names.sending(name, view)


SEND = Rule(_send)
RECALL = Rule(_recall)
END = Rule(_end, for_everybody=True)
