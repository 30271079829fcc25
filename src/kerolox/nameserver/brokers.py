"""Brokers as the name server sees them: what they say, what is known of them, what they are told."""

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
SURELY_ALIVE_S = 65.0  # after its last registration; brokers register every 10 to 60 s

BrokerKey = tuple[str, str]  # cluster and address


class BrokerProcess(NamedTuple):
    """One process of a broker of ours: the place its files give it, and a number of its own."""

    identity: str
    start: int


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says of itself."""

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
    acting_master: bool | None = None  # None: a broker that does not know of it
    filter_servers: tuple[str, ...] | None = None
    connection: Any = None  # whatever tells connections apart
    process: BrokerProcess | None = None  # RocketMQ's brokers do not say

    @property
    def key(self) -> BrokerKey:
        return self.cluster, self.address


class MinIdNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice to the brokers of one name: another broker has the lowest id of the group now."""

    to: list[str]
    min_id: int
    min_address: str
    offline_address: str | None = None
    ha_address: str | None = None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """How a registration went."""

    refused: str | None = None  # why; nothing was changed
    ignored: str | None = None  # why; answered like a success all the same
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
        self.topics: set[str] = set()  # that have queues here
        self.mapped: set[str] = set()  # static ones it told the mapping of

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
    """A broker that is registered and not expired."""

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
    """Return the reason to refuse a registration: another process with the same identity is registered from
    another address, its connection is open, and it has registered lately. A leader with a larger promotion
    number is no copy of the one in whose place it comes, and a connection that closed has no process any
    more."""
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
        f"brokerName or brokerId of its own. If it moved here from {address}, stop the process there"
    )


def with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """The lowest slave shown as master, when the group has none and its queues cannot be written."""
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
    # A broker that comes need not be told of itself; when a broker left, all that remain are told.
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
