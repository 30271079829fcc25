"""Requests to a controller as values, from remote callers or from the controller's own timers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NOBODY = -1  # id in elections that the controller starts itself
PRIORITY_LOWEST = 2**31 - 1


class KnownSet(msgspec.Struct, frozen=True):
    """The newest mastership and in-sync set on a broker's disk. The set with the larger number is newer."""

    epoch: int
    number: int
    master: int
    in_sync: frozenset[int]
    leads: bool = False  # the reporting process is the one elected in this epoch


class LastSign(msgspec.Struct, frozen=True):
    """A broker's report in its last heartbeat."""

    epoch: int = -1  # -1 until the broker has reported
    max_offset: int = -1
    confirm_offset: int = -1
    priority: int = PRIORITY_LOWEST  # the lowest number wins
    start: int | None = None  # number of the process; RocketMQ's brokers have none
    known: KnownSet | None = None
    kept: int = -1  # of a leader: offset up to which the log is confirmed and flushed
    refused: str | None = None  # the reason why the broker does not replicate from its leader


class LiveBrokers(msgspec.Struct, frozen=True):
    """The living brokers, by group and id.

    ``is_settled``: this controller has listened for as long as a broker may be silent, so brokers without a
    heartbeat are not alive. Before that, only those in ``gone`` are known to be not alive.
    """

    signs: Mapping[str, Mapping[int, LastSign]] = {}
    is_settled: bool = True
    gone: frozenset[tuple[str, int]] = frozenset()
    lingering: frozenset[tuple[str, int]] = frozenset()  # lost brokers whose processes may still act
    ended: frozenset[tuple[str, int, int]] = frozenset()  # replaced processes
    confirmed: Mapping[str, int] = {}  # by group: highest confirmed offset that leaders reported
    shown: Mapping[tuple[str, int], int] = {}  # processes whose log has been seen to reach that offset

    def of(self, group: str) -> Mapping[int, LastSign]:
        return self.signs.get(group, {})


class NextId(msgspec.Struct, frozen=True):
    """Request for the next free id of a group."""

    cluster: str
    group: str


class TakeId(msgspec.Struct, frozen=True):
    """Request of a new broker to get this id."""

    cluster: str
    group: str
    id: int
    check_code: str


class Register(msgspec.Struct, frozen=True):
    """Registration of a started broker at its address; the answer names the master."""

    cluster: str
    group: str
    id: int
    address: str
    sign: LastSign = LastSign()


class Learn(msgspec.Struct, frozen=True):
    """A broker's report that is newer than the state: a newer set, or a higher confirmed offset."""

    group: str


class Doubt(msgspec.Struct, frozen=True):
    """Notice that the state is an older copy, as found through another of its groups."""

    group: str


class Elect(msgspec.Struct, frozen=True, kw_only=True):
    """Request for an election.

    A broker sends its own id, an administrator the id of the wanted broker (``is_wanted``), the controller
    NOBODY. ``allow_unclean``: a replica that is not in sync may be elected if there is no other.
    ``accepted_loss``: number of confirmed bytes, missing in the wanted replica, that the administrator gives
    up.
    """

    group: str
    id: int = NOBODY
    is_wanted: bool = False
    allow_unclean: bool = False
    start: int | None = None
    accepted_loss: int | None = None


class ChangeInSync(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a master to change its in-sync set."""

    group: str
    master: int
    master_epoch: int
    in_sync: frozenset[int]
    in_sync_epoch: int  # number of the set that the master knows


class WhoIsMaster(msgspec.Struct, frozen=True):
    """Request of a broker for the current master and in-sync set; brokers poll."""

    group: str


class DescribeGroups(msgspec.Struct, frozen=True):
    """Request of a tool for the state of these groups; None: of all groups."""

    names: tuple[str, ...] | None


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """Request of an administrator to remove the brokers with these ids, separated by semicolons, or the whole
    group."""

    group: str
    ids: str | None = None
    even_living: bool = False


ControllerRequest = (
    NextId | TakeId | Register | Learn | Doubt | Elect | ChangeInSync | WhoIsMaster | DescribeGroups | Forget
)
