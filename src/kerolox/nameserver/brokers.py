"""Broker registrations, living brokers, and the notices sent to brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.bodies.routes import BrokerData, QueueData
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig
from kerolox.protocol.flags import PERM_WRITE

MASTER_ID = 0
BROKER_TIMEOUT_S = 120.0
SURELY_ALIVE_S = 65.0  # since the last registration; brokers register every 10 to 60 s

BrokerKey = tuple[str, str]  # cluster and address


class BrokerProcess(NamedTuple):
    """A process of a kerolox broker: the identity from its files, and its own number."""

    identity: str
    start: int


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's registration."""

    cluster: str
    name: str
    id: int
    address: str
    version: DataVersion
    topics: Mapping[str, TopicConfig]
    mappings: Mapping[str, QueueMapping] = {}
    ha_address: str | None = None
    zone: str | None = None
    timeout_s: float | None = None
    acting_master: bool | None = None  # None: a broker that does not support it
    filter_servers: tuple[str, ...] | None = None
    connection: Any = None  # object that identifies the connection
    process: BrokerProcess | None = None  # RocketMQ's brokers send none

    @property
    def key(self) -> BrokerKey:
        return self.cluster, self.address


class MinIdNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Notice to the brokers of one name: the lowest id of the group has changed."""

    to: list[str]
    min_id: int
    min_address: str
    offline_address: str | None = None
    ha_address: str | None = None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a registration."""

    refused: str | None = None  # reason; nothing was changed
    ignored: str | None = None  # reason; the broker still receives a success
    is_new: bool = False  # the broker was not alive before
    master_address: str | None = None
    ha_address: str | None = None
    notices: list[MinIdNotice] = []


class Group:
    """The brokers of one name."""

    __slots__ = ("acting_master", "addresses", "cluster", "mapped", "name", "topics", "zone")

    def __init__(self, cluster: str, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.addresses: dict[int, str] = {}
        self.acting_master = False
        self.zone: str | None = None
        self.topics: set[str] = set()  # topics with queues at these brokers
        self.mapped: set[str] = set()  # static topics whose mapping the brokers sent

    @property
    def lowest_id(self) -> int:
        return min(self.addresses, default=MASTER_ID)

    def data(self) -> BrokerData:
        return BrokerData(
            cluster=self.cluster,
            broker_name=self.name,
            broker_addrs=dict(self.addresses),
            enable_acting_master=self.acting_master,
            zone_name=self.zone,
        )


class Alive:
    """A registered broker that has not expired."""

    __slots__ = ("connection", "ha_address", "name", "process", "seen_s", "timeout_s", "version")

    def __init__(self, told: BrokerRegistration, now_s: float) -> None:
        self.name = told.name
        self.seen_s = now_s
        self.timeout_s = BROKER_TIMEOUT_S if told.timeout_s is None else told.timeout_s
        self.version = told.version
        self.connection = told.connection
        self.process = told.process
        self.ha_address = told.ha_address


def why_second_process(told: BrokerRegistration, address: str, rival: Alive, now_s: float) -> str | None:
    """Return the reason to reject a registration: another process with the same identity is registered at
    another address, and registered recently.

    None if the new one is a leader with a larger promotion number: it replaces the old one and is not a copy.
    A process whose connection has closed no longer counts.
    """
    mine, other = told.process, rival.process
    if mine is None or other is None or mine.identity != other.identity or mine.start == other.start:
        return None
    if told.id == MASTER_ID and told.version.state_version > rival.version.state_version:
        return None
    if now_s - rival.seen_s > SURELY_ALIVE_S:
        return None
    return (
        f"broker {told.name} with id {told.id} is registered from {address} by another process, which is "
        "alive. Two processes have one identity: was a store directory copied? Stop this one, or give it a "
        f"different brokerName or brokerId. If it moved from {address}, stop the process there"
    )


def with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Return the broker with its lowest slave shown as master, if the group has no master and its queues are
    read-only."""
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    if queues.perm & PERM_WRITE:
        return broker
    lowest = min(addresses)
    shown = {MASTER_ID: addresses[lowest]} | {id: a for id, a in addresses.items() if id != lowest}
    return msgspec.structs.replace(broker, broker_addrs=shown)


def min_id_notice(
    group: Group, *, offline_address: str | None = None, ha_address: str | None = None
) -> MinIdNotice:
    lowest = group.lowest_id
    # A joining broker knows its own id; when a broker leaves, all others are notified.
    to = [
        a for id, a in group.addresses.items() if offline_address or len(group.addresses) == 1 or id != lowest
    ]
    return MinIdNotice(
        to=to,
        min_id=lowest,
        min_address=group.addresses[lowest],
        offline_address=offline_address,
        ha_address=ha_address,
    )
