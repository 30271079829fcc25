"""Mastership as a controller reports it, and its comparison with the known one. Pure functions.

A controller reports it in four ways: in the answers to a registration, to an election and to a question for
the leader, and by a notice. They may arrive in any order, so the master epoch decides, which only grows.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from kerolox.broker.controlled.answer import ControllerAnswer
from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.controller import ElectedMaster, SyncStateSet
from kerolox.protocol.headers import controller as headers


class Mastership(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of an epoch. ``id`` 0: no leader. ``in_sync`` are the replicas with all acknowledged
    messages."""

    epoch: int
    id: int = 0
    address: str = ""
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0

    @property
    def is_there(self) -> bool:
        return bool(self.id and self.address)


NONE_YET = Mastership(epoch=0)


class News(Enum):
    """Difference between a reported mastership and the known one."""

    NONE = "nothing new"
    OLDER = "an epoch that is over"
    OTHER_MASTER = "another master in the same epoch"
    IN_SYNC = "another in-sync set"
    MOVED = "the same master at another address"
    EPOCH = "a new epoch"


def news(known: Mastership, told: Mastership) -> News:
    """Compare ``told`` with the known mastership. RocketMQ 5.5's controllers may fall back to smaller epochs,
    or have two masters in one (apache/rocketmq, DLedger 0.3.2); that is no reason to stop serving."""
    if told.epoch > known.epoch:
        return News.EPOCH
    if told.epoch < known.epoch:
        return News.OLDER
    if not told.is_there or told.epoch == 0:
        return News.NONE
    if told.id != known.id:
        return News.OTHER_MASTER
    if told.address != known.address:
        return News.MOVED
    return News.IN_SYNC if told.in_sync_epoch > known.in_sync_epoch else News.NONE


# --- decoding ---------------------------------------------------------------------------------


def from_registration(answer: ControllerAnswer) -> Mastership:
    told = answer.header(headers.RegisterToControllerAnswer)
    body = SyncStateSet.decode(answer.body) if answer.body else SyncStateSet()
    return _mastership(
        told.master_epoch, told.master_broker_id, told.master_address, body.sync_state_set,
        told.sync_state_set_epoch,
    )  # fmt: skip


def from_election(answer: ControllerAnswer) -> Mastership:
    told = answer.header(headers.ElectMasterAnswer)
    body = ElectedMaster.decode(answer.body) if answer.body else ElectedMaster()
    return _mastership(
        told.master_epoch, told.master_broker_id, told.master_address, body.sync_state_set,
        told.sync_state_set_epoch,
    )  # fmt: skip


def from_replica_info(answer: ControllerAnswer) -> Mastership:
    told = answer.header(headers.ReplicaInfoAnswer)
    body = SyncStateSet.decode(answer.body) if answer.body else SyncStateSet()
    return _mastership(
        told.master_epoch, told.master_broker_id, told.master_address, body.sync_state_set,
        body.sync_state_set_epoch,
    )  # fmt: skip


def from_notice(told: headers.BrokerRoleChanged, body: bytes) -> Mastership:
    in_sync = SyncStateSet.decode(body) if body else SyncStateSet()
    return _mastership(
        told.master_epoch, told.master_broker_id, told.master_address, in_sync.sync_state_set,
        told.sync_state_set_epoch,
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
