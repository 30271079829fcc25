"""Brokers and the controller that elects their masters."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class AlterSyncStateSetRequest(Header, frozen=True, kw_only=True):
    """The slaves in step with me are now those in the body."""

    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    invoke_time: Int64 = 0


class AlterSyncStateSetAnswer(Header, frozen=True, kw_only=True):
    """The number of that change."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequest(Header, frozen=True, kw_only=True):
    """Choose a master for this broker name."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False
    invoke_time: Int64 | None = None


class ElectMasterAnswer(Header, frozen=True, kw_only=True):
    """This one."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterToControllerRequest(Header, frozen=True, kw_only=True):
    """A broker is here."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 = 0


class RegisterToControllerAnswer(Header, frozen=True, kw_only=True):
    """And this is its master."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ReplicaInfoRequest(Header, frozen=True, kw_only=True):
    """Who is master of this broker name?"""

    broker_name: str | None = None


class ReplicaInfoAnswer(Header, frozen=True, kw_only=True):
    """This one."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class ControllerMetadataAnswer(Header, frozen=True, kw_only=True, rename=wire(is_leader="isLeader")):
    """Which controller leads."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class BrokerRoleChanged(Header, frozen=True, kw_only=True):
    """Told to a broker: this is the master now."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class CleanBrokerDataRequest(
    Header, frozen=True, kw_only=True, rename=wire(is_clean_living_broker="isCleanLivingBroker")
):
    """Forget brokers."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 = 0


class NextBrokerIdRequest(Header, frozen=True, kw_only=True):
    """Which id may a new broker take?"""

    cluster_name: str | None = None
    broker_name: str | None = None


class NextBrokerIdAnswer(Header, frozen=True, kw_only=True):
    """This one."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequest(Header, frozen=True, kw_only=True):
    """I take this id."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdAnswer(Header, frozen=True, kw_only=True):
    """It is yours."""

    cluster_name: str | None = None
    broker_name: str | None = None
