"""Bodies between brokers, tools and the controller about the replicas of a broker name."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kerolox.protocol.bodies.body import Body, from_tree
from kerolox.protocol.bodies.routes import BrokerMemberGroup
from kerolox.protocol.header import Int64
from kerolox.protocol.json_dialect import loads


class SyncStateSet(Body, frozen=True, kw_only=True):
    """Ids of the replicas that have all acknowledged messages, and the number of changes of that set."""

    sync_state_set: frozenset[Int64] = frozenset()
    sync_state_set_epoch: int = 0


class ElectedMaster(Body, frozen=True, kw_only=True):
    """Answer to CONTROLLER_ELECT_MASTER; without the addresses when the master stays.

    Apache's controller writes ids that are keys bare. We do not: mqadmin 5.5.0 fails at those that it has no
    use for ("not support unquoted name").
    """

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: frozenset[Int64] = frozenset()


class ReplicaIdentity(Body, frozen=True, kw_only=True):
    """One replica, and whether its heartbeats arrive. Only kerolox controllers report the log in the last
    heartbeat, the confirmed bytes that it lacks, and why it is refused."""

    alive: bool = False
    broker_address: str = ""
    broker_id: Int64 = 0
    broker_name: str = ""
    confirm_offset: Int64 | None = None
    lacks: Int64 | None = None
    max_offset: Int64 | None = None
    refused: str | None = None


class ReplicasInfo(Body, frozen=True, kw_only=True):
    """The replicas of one broker name. kerolox controllers also report the confirmed offset, and the brokers
    whose report is awaited because the state may be an older copy."""

    confirmed: Int64 | None = None
    in_sync_replicas: tuple[ReplicaIdentity, ...] = ()
    master_address: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: int = 0
    not_in_sync_replicas: tuple[ReplicaIdentity, ...] = ()
    sync_state_set_epoch: int = 0
    waits_for: tuple[Int64, ...] | None = None


class BrokerReplicasInfo(Body, frozen=True, kw_only=True):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA, by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class EpochRange(Body, frozen=True, kw_only=True):
    """Start and end of the log under one master."""

    end_offset: int = 0  # of the last epoch 2^63-1: it has not ended
    epoch: int = 0
    start_offset: int = 0


class EpochRanges(Body, frozen=True, kw_only=True):
    """Answer of a broker to GET_BROKER_EPOCH_CACHE."""

    broker_id: Int64 = 0  # 0 on the master
    broker_name: str = ""
    cluster_name: str = ""
    epoch_list: tuple[EpochRange, ...] = ()
    max_offset: int = 0


def encode_broker_names(names: Iterable[str]) -> bytes:
    return msgspec.json.encode(list(names))


def decode_broker_names(data: bytes) -> tuple[str, ...]:
    """Body of CONTROLLER_GET_SYNC_STATE_DATA. Raises ProtocolError."""
    return from_tree(loads(data), tuple[str, ...])
