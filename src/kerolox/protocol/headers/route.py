"""Asking a name server who serves a topic, and which topics there are."""

from __future__ import annotations

from kerolox.protocol.header import Header, wire

NOT_READY = "name server not ready"  # the remark of one that has just started, with SYSTEM_ERROR


class RouteRequest(
    Header,
    frozen=True,
    kw_only=True,
    rename=wire(
        standard_json_only="acceptStandardJsonOnly",
        zone_name="__ZONE_NAME",
        zone_mode="__ZONE_MODE",
    ),
):
    """Asks which brokers serve a topic."""

    topic: str
    standard_json_only: bool | None = None  # integer keys quoted, please
    zone_name: str | None = None
    zone_mode: bool | None = None  # only brokers whose master is in my zone


class ClusterTopicsRequest(Header, frozen=True, kw_only=True):
    """Asks for the topics of a cluster."""

    cluster: str


class DeleteTopicAtNameServerRequest(Header, frozen=True, kw_only=True):
    """Lets the name server forget a topic, everywhere or in one cluster."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequest(Header, frozen=True, kw_only=True):
    """Adds the queues in the body to a topic."""

    topic: str
