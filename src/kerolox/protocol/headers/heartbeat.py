"""Headers between clients and brokers: heartbeats, and the members of groups."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, wire


class HeartbeatAnswer(
    Header,
    frozen=True,
    kw_only=True,
    rename=wire(supports_v2="IS_SUPPORT_HEART_BEAT_V2", subscription_changed="IS_SUB_CHANGE"),
):
    """Support of short heartbeats, and a request for a full one."""

    supports_v2: bool | None = None
    subscription_changed: bool | None = None


class UnregisterClientRequest(Header, frozen=True, kw_only=True, rename=wire(client_id="clientID")):
    """A client leaves these groups."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListRequest(Header, frozen=True, kw_only=True):
    """Asks for the members of a group."""

    consumer_group: str


class ConsumerIdsChanged(Header, frozen=True, kw_only=True):
    """Tells the members of a group that one joined or left: they divide the queues again."""

    consumer_group: str


class ConsumerRunningInfoRequest(Header, frozen=True, kw_only=True):
    """Asks what a consumer is doing. The broker relays it to the consumer."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyRequest(Header, frozen=True, kw_only=True):
    """Asks a consumer to consume one message now. The broker relays it with the record."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
