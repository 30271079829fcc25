"""Decoding of what a controller reports about the mastership of its group."""

from __future__ import annotations

from kerolox.broker.controlled.answer import ControllerAnswer
from kerolox.broker.role.mastership import Mastership
from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.controller import ElectedMaster, SyncStateSet
from kerolox.protocol.headers import controller as headers


def from_registration(answer: ControllerAnswer) -> Mastership:
    header = answer.header(headers.RegisterToControllerAnswer)
    body = SyncStateSet.decode(answer.body) if answer.body else SyncStateSet()
    return _mastership(
        header.master_epoch, header.master_broker_id, header.master_address, body.sync_state_set,
        header.sync_state_set_epoch,
    )  # fmt: skip


def from_election(answer: ControllerAnswer) -> Mastership:
    header = answer.header(headers.ElectMasterAnswer)
    body = ElectedMaster.decode(answer.body) if answer.body else ElectedMaster()
    return _mastership(
        header.master_epoch, header.master_broker_id, header.master_address, body.sync_state_set,
        header.sync_state_set_epoch,
    )  # fmt: skip


def from_replica_info(answer: ControllerAnswer) -> Mastership:
    header = answer.header(headers.ReplicaInfoAnswer)
    body = SyncStateSet.decode(answer.body) if answer.body else SyncStateSet()
    return _mastership(
        header.master_epoch, header.master_broker_id, header.master_address, body.sync_state_set,
        body.sync_state_set_epoch,
    )  # fmt: skip


def from_notice(header: headers.BrokerRoleChanged, body: bytes) -> Mastership:
    in_sync = SyncStateSet.decode(body) if body else SyncStateSet()
    return _mastership(
        header.master_epoch, header.master_broker_id, header.master_address, in_sync.sync_state_set,
        header.sync_state_set_epoch,
    )  # fmt: skip


def _mastership(
    epoch: int | None, id: int | None, address: str | None, in_sync: frozenset[int], in_sync_epoch: int | None
) -> Mastership:
    if (epoch or 0) < 0 or (id or 0) < 0 or (in_sync_epoch or 0) < 0:
        raise ProtocolError(f"a master {id} in epoch {epoch} with in-sync epoch {in_sync_epoch}: below 0")
    return Mastership(
        epoch=epoch or 0,
        id=(id or 0) if address else 0,
        address=(address or "") if id else "",
        in_sync=in_sync,
        in_sync_epoch=in_sync_epoch or 0,
    )
