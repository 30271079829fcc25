"""Headers between brokers and name servers: registration and routes."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire
from kerolox.protocol.headers.controller import BrokerReport


class RegisterBrokerRequest(Header, frozen=True, kw_only=True, rename=wire(zone_name="__ZONE_NAME")):
    """Registers a broker with the topics in the body."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64  # 0 is the master
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None  # that it is there counts, even as false
    compressed: bool = False
    body_crc32: Int32 = 0  # 0: do not check
    zone_name: str | None = None
    broker_identity: str | None = None  # ours: the place in its group that this broker's files give it
    broker_start: Int64 | None = None  # ours: the number of its process


class RegisterBrokerAnswer(Header, frozen=True, kw_only=True):
    """Answer to a slave's registration: the addresses of its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Header, frozen=True, kw_only=True):
    """Unregisters a broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class DataVersionRequest(Header, frozen=True, kw_only=True):
    """Request to compare the broker's topic version in the body with the name server's."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class DataVersionAnswer(Header, frozen=True, kw_only=True):
    """True if the versions differ."""

    changed: bool


class BrokerHeartbeatRequest(BrokerReport, frozen=True, kw_only=True):
    """A broker's heartbeat."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class BrokerMemberGroupRequest(Header, frozen=True, kw_only=True):
    """Asks which brokers have a name."""

    cluster_name: str
    broker_name: str


class MinBrokerIdChanged(Header, frozen=True, kw_only=True):
    """Notice to the brokers of one name: the lowest living id has changed."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class WipeWritePermRequest(Header, frozen=True, kw_only=True):
    """Makes the topics of a broker unwritable in routes."""

    broker_name: str


class WipeWritePermAnswer(Header, frozen=True, kw_only=True):
    """How many topics were changed."""

    wipe_topic_count: Int32


class AddWritePermRequest(Header, frozen=True, kw_only=True):
    """Makes the topics of a broker writable in routes again."""

    broker_name: str


class AddWritePermAnswer(Header, frozen=True, kw_only=True):
    """How many topics were changed."""

    add_topic_count: Int32
