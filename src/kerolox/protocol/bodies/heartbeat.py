"""Heartbeat of a client to every broker: its id, and the subscriptions of its groups."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body, WireEnum
from kerolox.protocol.header import wire


class ConsumeType(WireEnum):
    """How a group gets its messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(WireEnum):
    """Delivery to one member or to all. In Java's order, because some clients send the ordinal."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(WireEnum):
    """Start position of a group without progress."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body, frozen=True, kw_only=True):
    """A group's subscription to one topic."""

    class_filter_mode: bool = False
    code_set: frozenset[int] = frozenset()
    expression_type: str = "TAG"
    sub_string: str | None = None
    sub_version: int = 0
    tags_set: frozenset[str] = frozenset()
    topic: str = ""


class ProducerData(Body, frozen=True, kw_only=True):
    """A producer group of the client."""

    group_name: str = ""


class ConsumerData(Body, frozen=True, kw_only=True):
    """A consumer group of the client."""

    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    group_name: str = ""
    message_model: MessageModel | None = None
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class HeartbeatData(Body, frozen=True, kw_only=True, rename=wire(client_id="clientID")):
    """Body of HEART_BEAT."""

    client_id: str = ""
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    producer_data_set: tuple[ProducerData, ...] = ()
    without_sub: bool = False


class CheckClient(Body, frozen=True, kw_only=True):
    """Body of CHECK_CLIENT_CONFIG."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
