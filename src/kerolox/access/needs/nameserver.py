"""Needs of requests to a name server. RocketMQ's name server checks none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kerolox.access.needs import names
from kerolox.access.needs.kinds import CHANGES, CHANGES_OPTIONS, LOOKS
from kerolox.access.resources import Action, Kind, Need, Resource
from kerolox.access.rules import EVERYBODY, Rule, Rules, View
from kerolox.front.requests import Request
from kerolox.protocol.codes import RequestCode
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


def _of_cluster(field: str, actions: frozenset[Action], *, administers: bool = False) -> Rule:
    """Return the rule for the cluster that the header names; without a name it is the name server's
    cluster."""

    def needs(asked: Request[Any], view: View) -> Iterator[Need]:
        named: str | None = getattr(asked.header, field)
        yield Need(Resource(Kind.CLUSTER, named), actions) if named else names.cluster(view, actions)

    return Rule(needs, administers=administers)


NAMESERVER: Rules = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Rule(_route, for_everybody=True),
    RequestCode.GET_BROKER_CLUSTER_INFO: EVERYBODY,  # first request of the producers' tools
    RequestCode.GET_KV_CONFIG: Rule(_get_kv, for_everybody=True),
    # Brokers. Broker names are not unique to a cluster: a broker that registers in one cluster could replace
    # a broker of another.
    RequestCode.REGISTER_BROKER: CHANGES,
    RequestCode.UNREGISTER_BROKER: CHANGES,
    RequestCode.BROKER_HEARTBEAT: CHANGES,
    RequestCode.QUERY_DATA_VERSION: LOOKS,
    RequestCode.GET_BROKER_MEMBER_GROUP: _of_cluster("cluster_name", names.GET),
    # Tools.
    RequestCode.GET_TOPICS_BY_CLUSTER: _of_cluster("cluster", names.GET),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _of_cluster("cluster_name", names.UPDATE, administers=True),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: CHANGES,
    RequestCode.PUT_KV_CONFIG: CHANGES,
    RequestCode.DELETE_KV_CONFIG: CHANGES,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: CHANGES,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: CHANGES,
    RequestCode.UPDATE_NAMESRV_CONFIG: CHANGES_OPTIONS,
    **dict.fromkeys(
        (
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            RequestCode.GET_NAMESRV_CONFIG,
        ),
        LOOKS,
    ),
}
