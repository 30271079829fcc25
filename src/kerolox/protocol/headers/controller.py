"""Brokers and the controller that elects their masters."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class BrokerReport(Header, frozen=True, kw_only=True):
    """Report of a kerolox broker, beside RocketMQ's fields; RocketMQ's controllers ignore it.

    The number of its process, the newest mastership and in-sync set on its disk, and whether this process
    leads in that epoch; from a leader the offset up to which the log is confirmed and flushed, from a
    follower that cannot replicate the reason.
    """

    broker_start: Int64 | None = None
    known_master_epoch: Int32 | None = None
    known_master_id: Int64 | None = None
    known_set_epoch: Int32 | None = None
    known_set: str | None = None  # ids, joined by semicolons
    known_leads: bool | None = None
    kept_offset: Int64 | None = None
    follower_refusal: str | None = None  # why this broker does not copy from its leader


class AlterSyncStateSetRequest(Header, frozen=True, kw_only=True):
    """A master's new in-sync set; the set is in the body."""

    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    invoke_time: Int64 = 0


class AlterSyncStateSetAnswer(Header, frozen=True, kw_only=True):
    """The number of that change of the set."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequest(Header, frozen=True, kw_only=True):
    """Choose a master for this broker name."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False
    invoke_time: Int64 | None = None
    broker_start: Int64 | None = None  # ours: the number of the broker's process
    accepted_loss: Int64 | None = None  # ours: bytes of confirmed log an operator gives up


class ElectMasterAnswer(Header, frozen=True, kw_only=True):
    """The elected master."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterToControllerRequest(BrokerReport, frozen=True, kw_only=True):
    """Registration of a broker at the controller. kerolox brokers report their log, as in heartbeats."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 = 0
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    election_priority: Int32 | None = None


class RegisterToControllerAnswer(Header, frozen=True, kw_only=True):
    """The master of the registered broker."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ReplicaInfoRequest(Header, frozen=True, kw_only=True):
    """Asks for the master of a broker name."""

    broker_name: str | None = None


class ReplicaInfoAnswer(Header, frozen=True, kw_only=True):
    """The master of the broker name."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class ControllerMetadataAnswer(Header, frozen=True, kw_only=True, rename=wire(is_leader="isLeader")):
    """The leading controller, and its peers."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class SyncStateDataRequest(Header, frozen=True, kw_only=True):
    """Request for the replicas of the broker names in the body. kerolox controllers return all if asked to;
    RocketMQ's ignore that field."""

    all_groups: bool = False


class BrokerRoleChanged(Header, frozen=True, kw_only=True):
    """Notice to a broker about the current master."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class ControllerHeartbeatAnswer(Header, frozen=True, kw_only=True, rename=wire(is_leader="isLeader")):
    """Answer to a heartbeat: whether the controller leads, and the master epoch of the broker's group.
    RocketMQ's controllers send neither."""

    is_leader: bool | None = None
    master_epoch: Int32 | None = None


class CleanBrokerDataRequest(
    Header, frozen=True, kw_only=True, rename=wire(is_clean_living_broker="isCleanLivingBroker")
):
    """Remove brokers from the controller."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 = 0


class NextBrokerIdRequest(Header, frozen=True, kw_only=True):
    """Asks for the id a new broker may take."""

    cluster_name: str | None = None
    broker_name: str | None = None


class NextBrokerIdAnswer(Header, frozen=True, kw_only=True):
    """The id a new broker may take."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequest(Header, frozen=True, kw_only=True):
    """A new broker takes this id."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdAnswer(Header, frozen=True, kw_only=True):
    """Confirms the id a new broker took."""

    cluster_name: str | None = None
    broker_name: str | None = None
