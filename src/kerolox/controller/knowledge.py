"""Conclusions of a controller from what brokers say of themselves. Pure.

The state of a controller may be an older copy: a file or a snapshot that was restored. Brokers keep the
newest mastership and in-sync set they have heard of on their disks, and a leader counts on a set only when it
is there. So a state is the newest one when everybody in its in-sync set has said what it knows, and nobody
knows more: the next change was made by one of them. A controller that was found to know less waits for that
before it elects.

RocketMQ's brokers say none of this. What they do not say is not held against them.
"""

from __future__ import annotations

from msgspec.structs import replace

from kerolox.controller.apply import apply
from kerolox.controller.requests import KnownSet, LastSign, LiveBrokers
from kerolox.controller.state import (
    REPLICAS_MAX,
    ConfirmedKept,
    ControllerState,
    DoubtChanged,
    ReplicaGroup,
    SetLearned,
    StateEvent,
)

EPOCH_MAX = (1 << 31) - (1 << 20)  # that a broker may tell of: there has to be room for more


def newest_known(group: ReplicaGroup, live: LiveBrokers) -> KnownSet | None:
    """Return the newest reported set, if it is newer than that of the group."""
    told = [sign.known for sign in live.of(group.name).values() if sign.known is not None]
    newer = [known for known in told if _is_newer(known, group)]
    return max(newer, key=lambda known: known.number, default=None)


def is_news(group: ReplicaGroup, sign: LastSign) -> bool:
    """Return true if the report names a newer set than the group has."""
    return sign.known is not None and _is_newer(sign.known, group)


def _is_newer(known: KnownSet, group: ReplicaGroup) -> bool:
    """Sets are counted through all epochs: each election and each change has the next number. Epochs alone
    may have been counted on by an older copy, in which nobody was elected."""
    return (
        group.in_sync_epoch < known.number < EPOCH_MAX
        and 0 < known.epoch < EPOCH_MAX
        and known.master in known.in_sync
        and len(known.in_sync) <= REPLICAS_MAX
    )


def _taken_over(group: ReplicaGroup, known: KnownSet) -> SetLearned:
    """The event for a newer set. If the older copy has given the epoch to another broker meanwhile, or is in
    a later one, nobody leads: an epoch has one master."""
    epoch, master = known.epoch, known.master
    if group.master_epoch > epoch or (group.master_epoch == epoch and group.master not in (None, master)):
        return SetLearned(group.name, group.master_epoch + 1, None, known.in_sync, known.number)
    return SetLearned(group.name, epoch, master, known.in_sync, known.number)


def learn(state: ControllerState, live: LiveBrokers, name: str) -> tuple[StateEvent, ...]:
    """Return the events by which a group takes over the newest reported set, or stops being doubted."""
    group = state.groups[name]
    events: tuple[StateEvent, ...] = ()
    known = newest_known(group, live)
    if known is not None:
        events = (_taken_over(group, known),)
        group = apply(state, events[0]).groups[name]
    if group.is_doubted and not silent(group, live):
        events = (*events, DoubtChanged(name, False))
    return events


def silent(group: ReplicaGroup, live: LiveBrokers) -> list[int]:
    """Return the members of the in-sync set whose report is still missing."""
    alive = live.of(group.name)
    return [id for id in sorted(group.in_sync) if id not in alive or alive[id].max_offset < 0]


def confirmed_of(group: ReplicaGroup, live: LiveBrokers) -> int:
    """Return the highest offset up to which a leader reported the log as confirmed and flushed."""
    return max(group.confirmed, live.confirmed.get(group.name, 0))


def keep_confirmed(group: ReplicaGroup, live: LiveBrokers) -> tuple[StateEvent, ...]:
    confirmed = confirmed_of(group, live)
    return (ConfirmedKept(group.name, confirmed),) if confirmed > group.confirmed else ()


def lacks(group: ReplicaGroup, id: int, live: LiveBrokers) -> int:
    """Return the number of confirmed bytes missing at the end of a replica's log. A process that has been
    seen to have them keeps them; one that has started since shows how far its log reaches."""
    start = group.replicas[id].start
    if start is None or live.shown.get((group.name, id)) == start:
        return 0
    sign = live.of(group.name).get(id)
    end = sign.max_offset if sign is not None and sign.start == start else 0
    return max(0, confirmed_of(group, live) - max(0, end))


def why_other_process(
    group: ReplicaGroup, id: int, address: str, start: int | None, live: LiveBrokers
) -> str:
    """Return the reason to refuse an identity to a process: another one has it, and may act. Empty: none.

    Two processes cannot listen at one address, so one that starts at the address of the one before is its
    successor. At another address it may be a copy of the store, so the other one has to have been silent for
    as long as it may lead without a controller.
    """
    replica = group.replicas[id]
    if start is None or replica.start in (None, start):
        return ""
    if replica.address == address and (group.name, id, start) not in live.ended:
        return ""
    key = (group.name, id)
    before = live.of(group.name).get(id)
    is_there = before is not None and before.start in (None, replica.start)
    if is_there or key in live.lingering or not (live.is_settled or key in live.gone):
        seen = "is alive" if is_there else "may still act, for it was heard a moment ago or may be heard yet"
        return (
            f"id {id} of broker {group.name!r} belongs to the process at {replica.address}, which {seen}. "
            "Two processes have one identity: was a store directory copied? Stop this one, and remove "
            "brokerIdentity* and epochFileCheckpoint* from its store: it then joins with an id of its own. A "
            "broker that moved here from that address is taken in when the old process has been silent for "
            "as long as it may lead without a controller (controllerHeartBeatTimeoutMills, 10 s at most)"
        )
    return ""


def with_sign(live: LiveBrokers, group: str, id: int, sign: LastSign) -> LiveBrokers:
    """Add the report that a broker has just sent."""
    return replace(live, signs={**live.signs, group: {**live.of(group), id: sign}})
