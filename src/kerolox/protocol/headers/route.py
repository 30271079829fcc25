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
    """Who serves this topic?"""

    topic: str
    standard_json_only: bool | None = None  # integer keys quoted, please
    zone_name: str | None = None
    zone_mode: bool | None = None  # only brokers whose master is in my zone


class ClusterTopicsRequest(Header, frozen=True, kw_only=True):
    """The topics of this cluster."""

    cluster: str


class DeleteTopicAtNameServerRequest(Header, frozen=True, kw_only=True):
    """Forget this topic, everywhere or in one cluster."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequest(Header, frozen=True, kw_only=True):
    """Add the queues in the body to this topic."""

    topic: str
