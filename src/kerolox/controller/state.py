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
LEAP = 1000  # of epoch and set number, where an older copy of a state goes on by an operator's word


class RegisteredReplica(msgspec.Struct, frozen=True):
    """One broker of a group."""

    address: str
    check_code: str  # by which the broker that got the id asks for it again
    start: int | None = None  # the number of the process that has this identity; RocketMQ's have none


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of one name. ``master`` is in ``in_sync``; both epochs only grow.

    ``confirmed`` is the highest place up to which a leader has said that the log is confirmed and flushed:
    whoever ends before it lacks what was acknowledged. ``is_doubted``: this may be an older copy, so nobody
    is elected until all of the in-sync set have said what they know.
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


class ProcessStarted(msgspec.Struct, frozen=True):
    """Another process of a broker runs now; None: one that does not say its number."""

    group: str
    id: int
    start: int | None


class MasterChosen(msgspec.Struct, frozen=True):
    """The group has this master now; or none, because nobody could be elected. ``lost``: so many confirmed
    bytes it lacks, which were given up by an operator's word. ``leap``: by so much epoch and number of the
    set grow: by more than one where an older copy goes on, so that what brokers know counts no more."""

    group: str
    id: int | None
    lost: int = 0
    leap: int = 1


class InSyncChanged(msgspec.Struct, frozen=True):
    """The master has these in-sync replicas now."""

    group: str
    in_sync: frozenset[int]


class SetLearned(msgspec.Struct, frozen=True):
    """A broker has a newer mastership or in-sync set on its disk than this state: the state is an older
    copy. What the broker has counts."""

    group: str
    epoch: int
    master: int | None
    in_sync: frozenset[int]
    in_sync_epoch: int


class DoubtChanged(msgspec.Struct, frozen=True):
    """Whether this state of the group may be an older copy."""

    group: str
    is_doubted: bool


class ConfirmedKept(msgspec.Struct, frozen=True):
    """The log is confirmed and flushed up to here, as its leader has said."""

    group: str
    confirmed: int


class ReplicasForgotten(msgspec.Struct, frozen=True):
    """An administrator let the controller forget these replicas; None: the whole group."""

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
