"""Mastership: the result of an election, and its comparison with the known one. Pure functions.

A controller reports it in four ways: in the answers to a registration, to an election and to a question for
the leader, and by a notice. They may arrive in any order, so the master epoch decides, which only grows. In a
DLedger group the term is the epoch.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Mastership(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of an epoch. ``id`` 0: no leader. ``in_sync`` are the replicas with all acknowledged
    messages. In a DLedger group only the epoch and the address are known, which is the name of the member."""

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


def news(known: Mastership, offered: Mastership) -> News:
    """Compare ``offered`` with the known mastership. RocketMQ 5.5's controllers may fall back to smaller
    epochs, or have two masters in one (apache/rocketmq, DLedger 0.3.2); that is no reason to stop serving."""
    if offered.epoch > known.epoch:
        return News.EPOCH
    if offered.epoch < known.epoch:
        return News.OLDER
    if not offered.is_there or offered.epoch == 0:
        return News.NONE
    if offered.id != known.id:
        return News.OTHER_MASTER
    if offered.address != known.address:
        return News.MOVED
    return News.IN_SYNC if offered.in_sync_epoch > known.in_sync_epoch else News.NONE
