"""The durable state of a controller, and the events that change it. Values only.

A *group* is all brokers of one name. Its replicas have ids that are never reused. One of them is the
*master*: RocketMQ's word, used here because the *leader* is the controller that decides. Each mastership has
a number, the master epoch. The *in-sync set* contains the replicas that have every acknowledged message: each
of them may become master without loss.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

GROUPS_MAX = 1000
REPLICAS_MAX = 100  # per group
TEXT_LENGTH_MAX = 255  # characters of names and addresses
FIRST_ID = 1
LEAP = 1000  # increase of epoch and set number when an operator elects from an older copy of the state


class RegisteredReplica(msgspec.Struct, frozen=True):
    """A broker of a group."""

    address: str
    check_code: str  # identifies the broker that requested the id if it asks again
    start: int | None = None  # number of the process that has this identity; RocketMQ's brokers have none


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of one name. ``master`` is in ``in_sync``; both epochs only grow.

    ``confirmed`` is the highest offset up to which a leader reported the log as confirmed and flushed: a log
    that ends before it lacks acknowledged messages. ``is_doubted``: this state may be an older copy, so no
    master is elected until all replicas of the in-sync set have reported.
    """

    cluster: str
    name: str
    next_id: int = FIRST_ID
    replicas: dict[int, RegisteredReplica] = {}
    master: int | None = None
    master_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0
    confirmed: int = 0
    is_doubted: bool = False

    def address(self, id: int | None) -> str | None:
        replica = None if id is None else self.replicas.get(id)
        return None if replica is None else replica.address


class ControllerState(msgspec.Struct, frozen=True):
    """All groups, by name."""

    groups: Mapping[str, ReplicaGroup] = {}


class IdGiven(msgspec.Struct, frozen=True):
    """A new broker has received its id."""

    group: str
    cluster: str
    id: int
    address: str
    check_code: str


class AddressChanged(msgspec.Struct, frozen=True):
    """The address of a broker has changed."""

    group: str
    id: int
    address: str


class ProcessStarted(msgspec.Struct, frozen=True):
    """Another process of a broker has started; None: one that sends no number."""

    group: str
    id: int
    start: int | None


class MasterChosen(msgspec.Struct, frozen=True):
    """The group has a new master; None: it lost its master and no replica could be elected.

    ``lost``: number of confirmed bytes that the master lacks and an operator gave up. ``leap``: increase of
    the epoch and the set number, more than 1 when an operator elects from an older copy, so that the reports
    of brokers no longer count as newer.
    """

    group: str
    id: int | None
    lost: int = 0
    leap: int = 1


class InSyncChanged(msgspec.Struct, frozen=True):
    """The in-sync set has changed."""

    group: str
    in_sync: frozenset[int]


class SetLearned(msgspec.Struct, frozen=True):
    """A broker has a newer mastership or in-sync set on disk: this state is an older copy. The broker's set
    replaces it."""

    group: str
    epoch: int
    master: int | None
    in_sync: frozenset[int]
    in_sync_epoch: int


class DoubtChanged(msgspec.Struct, frozen=True):
    """The doubt whether this state of the group is the newest has changed."""

    group: str
    is_doubted: bool


class ConfirmedKept(msgspec.Struct, frozen=True):
    """The group's leader reported the log as confirmed and flushed up to this offset."""

    group: str
    confirmed: int


class ReplicasForgotten(msgspec.Struct, frozen=True):
    """An administrator removed these replicas; None: the whole group."""

    group: str
    ids: frozenset[int] | None


StateEvent = (
    IdGiven
    | AddressChanged
    | ProcessStarted
    | MasterChosen
    | InSyncChanged
    | SetLearned
    | DoubtChanged
    | ConfirmedKept
    | ReplicasForgotten
)
