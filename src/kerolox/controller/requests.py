"""What a controller is asked, as values: whatever brought it, a frame or the controller's own clock."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NOBODY = -1  # asks for a master, and is none of the brokers: the controller itself
PRIORITY_LOWEST = 2**31 - 1


class KnownSet(msgspec.Struct, frozen=True):
    """The newest mastership and in-sync set that a broker has on its disk. The set with the larger number is
    the newer one."""

    epoch: int
    number: int
    master: int
    in_sync: frozenset[int]
    leads: bool = False  # the process that says so is the one that was elected in this epoch


class LastSign(msgspec.Struct, frozen=True):
    """What a broker said of itself in its last heartbeat."""

    epoch: int = -1  # until it has sent one
    max_offset: int = -1
    confirm_offset: int = -1
    priority: int = PRIORITY_LOWEST  # the lowest number wins
    start: int | None = None  # the number of its process; RocketMQ's brokers have none
    known: KnownSet | None = None
    kept: int = -1  # of a leader: up to where the log is confirmed and flushed
    refused: str | None = None  # why it does not copy from its leader


class LiveBrokers(msgspec.Struct, frozen=True):
    """The brokers that gave a sign of life in time, by group and id.

    ``is_settled``: this controller has listened for as long as a broker may be silent, so that who was not
    heard is not there. Before, it knows that only of those that it heard and lost: ``gone``.
    """

    signs: Mapping[str, Mapping[int, LastSign]] = {}
    is_settled: bool = True
    gone: frozenset[tuple[str, int]] = frozenset()
    lingering: frozenset[tuple[str, int]] = frozenset()  # lost, and their processes may still act
    ended: frozenset[tuple[str, int, int]] = frozenset()  # processes that another one has replaced
    confirmed: Mapping[str, int] = {}  # by group: up to where leaders said that the log is confirmed
    shown: Mapping[tuple[str, int], int] = {}  # processes whose log has been seen to reach that place

    def of(self, group: str) -> Mapping[int, LastSign]:
        return self.signs.get(group, {})


class NextId(msgspec.Struct, frozen=True):
    """Which id may a new broker take?"""

    cluster: str
    group: str


class TakeId(msgspec.Struct, frozen=True):
    """A new broker takes this id."""

    cluster: str
    group: str
    id: int
    check_code: str


class Register(msgspec.Struct, frozen=True):
    """A broker with an id has started, at this address. Who is master?"""

    cluster: str
    group: str
    id: int
    address: str
    sign: LastSign = LastSign()


class Learn(msgspec.Struct, frozen=True):
    """A broker has said something that the controller does not know: which set is the newest, or how far the
    log is confirmed."""

    group: str


class Doubt(msgspec.Struct, frozen=True):
    """The controller's state has been found to be an older copy, by another group in it."""

    group: str


class Elect(msgspec.Struct, frozen=True, kw_only=True):
    """The group needs a master.

    A broker asks with its own id, an administrator with that of the one it wants (``is_wanted``), and the
    controller with none. ``allow_unclean``: one that is not in sync is better than none. ``accepted_loss``:
    so many confirmed bytes, which the wanted one lacks, an administrator gives up.
    """

    group: str
    id: int = NOBODY
    is_wanted: bool = False
    allow_unclean: bool = False
    start: int | None = None
    accepted_loss: int | None = None


class ChangeInSync(msgspec.Struct, frozen=True, kw_only=True):
    """A master has seen that other replicas than before are in sync."""

    group: str
    master: int
    master_epoch: int
    in_sync: frozenset[int]
    in_sync_epoch: int  # of the set that it knows


class WhoIsMaster(msgspec.Struct, frozen=True):
    """A broker asks from time to time whether something has changed."""

    group: str


class DescribeGroups(msgspec.Struct, frozen=True):
    """A tool asks for all that is known of these groups; None: of all there are."""

    names: tuple[str, ...] | None


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """An administrator lets brokers be forgotten: those of these ids, joined by semicolons, or all of the
    group."""

    group: str
    ids: str | None = None
    even_living: bool = False


ControllerRequest = (
    NextId | TakeId | Register | Learn | Doubt | Elect | ChangeInSync | WhoIsMaster | DescribeGroups | Forget
)
