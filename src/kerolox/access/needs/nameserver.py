"""Needs of requests to a name server. RocketMQ's name server checks none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kerolox.access.needs import names
from kerolox.front.needs import Action, Kind, Need, Resource, Rule, View
from kerolox.front.requests import Request
from kerolox.protocol.headers.kv import GetKvRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.reserved import ORDER_TOPIC_CONFIG, REPLY_SUFFIX, TEMPLATE_TOPIC


def _route(asked: Request[RouteRequest], view: View) -> Iterator[Need]:
    """Yield the need for a topic's route: every use of a topic begins with this request.

    Producers of a topic that does not exist yet ask for the template topic's route, which needs nothing; no
    message is sent to the template. The route of a reply topic needs no more than sending the reply.
    """
    name = asked.header.topic
    if name.endswith(REPLY_SUFFIX):
        yield Need(Resource(Kind.TOPIC, name), names.PUB_SUB_OR_GET)
    elif name != TEMPLATE_TOPIC:
        yield from names.topic(name, names.PUB_SUB_OR_GET, view)


def _get_kv(asked: Request[GetKvRequest], view: View) -> Iterator[Need]:
    """Clients read the queues of ordered topics, so these need nothing; other values need GET on the
    cluster."""
    if asked.header.namespace != ORDER_TOPIC_CONFIG:
        yield names.cluster(view, names.GET)


def of_cluster(field: str, actions: frozenset[Action], *, administers: bool = False) -> Rule:
    """Return the rule for the cluster that the header names; without a name it is the name server's
    cluster."""

    def needs(asked: Request[Any], view: View) -> Iterator[Need]:
        named: str | None = getattr(asked.header, field)
        yield Need(Resource(Kind.CLUSTER, named), actions) if named else names.cluster(view, actions)

    return Rule(needs, administers=administers)


ROUTE = Rule(_route, for_everybody=True)
GET_KV = Rule(_get_kv, for_everybody=True)
