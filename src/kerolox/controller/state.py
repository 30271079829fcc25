"""What a controller knows for good, and the events that alone change it. Values, and nothing else.

A *group* is all brokers of one name. Its replicas have ids that are never given twice. One of them is the
*master*: RocketMQ's word, which keeps it apart from the *leader*, which is here the controller that decides.
Each mastership has a number of its own, the master epoch. The *in-sync set* are the replicas that have all
that was acknowledged: one of them may become master without loss.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

GROUPS_MAX = 1000
REPLICAS_MAX = 100  # of one group
TEXT_LENGTH_MAX = 255  # of names and addresses
FIRST_ID = 1


class RegisteredReplica(msgspec.Struct, frozen=True):
    """One broker of a group."""

    address: str
    check_code: str  # by which the broker that got the id asks for it again


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of one name. ``master`` is in ``in_sync``; both epochs only grow."""

    cluster: str
    name: str
    next_id: int = FIRST_ID
    replicas: dict[int, RegisteredReplica] = {}
    master: int | None = None
    master_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0

    def address(self, id: int | None) -> str | None:
        replica = None if id is None else self.replicas.get(id)
        return None if replica is None else replica.address


class ControllerState(msgspec.Struct, frozen=True):
    """All groups, by name."""

    groups: Mapping[str, ReplicaGroup] = {}


class IdGiven(msgspec.Struct, frozen=True):
    """A new broker has got its id."""

    group: str
    cluster: str
    id: int
    address: str
    check_code: str


class AddressChanged(msgspec.Struct, frozen=True):
    """A broker is at another address now."""

    group: str
    id: int
    address: str


class MasterChosen(msgspec.Struct, frozen=True):
    """The group has this master now; or none, because nobody could be elected."""

    group: str
    id: int | None


class InSyncChanged(msgspec.Struct, frozen=True):
    """The master has these in-sync replicas now."""

    group: str
    in_sync: frozenset[int]


class ReplicasForgotten(msgspec.Struct, frozen=True):
    """An administrator let the controller forget these replicas; None: the whole group."""

    group: str
    ids: frozenset[int] | None


StateEvent = IdGiven | AddressChanged | MasterChosen | InSyncChanged | ReplicasForgotten
