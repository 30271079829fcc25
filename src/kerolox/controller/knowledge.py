"""Conclusions from the reports of brokers. Pure.

A controller's state may be an older copy: a file or a snapshot that was restored. Brokers keep the newest
mastership and in-sync set that they have received on disk, and a leader uses a set only once it is on disk.
So a state is the newest if all replicas of its in-sync set have reported and none knows a newer set: one of
them took part in every later change. A controller whose state was found to be older waits for these reports
before it elects.

RocketMQ's brokers report none of this; missing reports are not counted against them.
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

EPOCH_MAX = (1 << 31) - (1 << 20)  # largest epoch accepted from a report: it leaves room to count on


def newest_known(group: ReplicaGroup, live: LiveBrokers) -> KnownSet | None:
    """Return the newest reported set, if it is newer than that of the group."""
    told = [sign.known for sign in live.of(group.name).values() if sign.known is not None]
    newer = [known for known in told if _is_newer(known, group)]
    return max(newer, key=lambda known: known.number, default=None)


def is_news(group: ReplicaGroup, sign: LastSign) -> bool:
    """Return true if the report names a newer set than the group has."""
    return sign.known is not None and _is_newer(sign.known, group)


def _is_newer(known: KnownSet, group: ReplicaGroup) -> bool:
    """Return whether a reported set is newer. Set numbers increase across epochs, with each election and each
    change. Epochs alone do not tell: an older copy may have increased them without electing a master."""
    return (
        group.in_sync_epoch < known.number < EPOCH_MAX
        and 0 < known.epoch < EPOCH_MAX
        and known.master in known.in_sync
        and len(known.in_sync) <= REPLICAS_MAX
    )


def _taken_over(group: ReplicaGroup, known: KnownSet) -> SetLearned:
    """Return the event for a newer set. If the older copy has assigned the same epoch to another broker, or
    is in a later one, the group has no master: an epoch has one master."""
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
    """Return the number of confirmed bytes missing at the end of a replica's log. A process that has shown
    them keeps them; a newer process is judged by its reported log end."""
    start = group.replicas[id].start
    if start is None or live.shown.get((group.name, id)) == start:
        return 0
    sign = live.of(group.name).get(id)
    end = sign.max_offset if sign is not None and sign.start == start else 0
    return max(0, confirmed_of(group, live) - max(0, end))


def why_other_process(
    group: ReplicaGroup, id: int, address: str, start: int | None, live: LiveBrokers
) -> str:
    """Return the reason to refuse an identity to a process: another process has it and may still act. "" if
    there is none.

    Two processes cannot listen on one address, so a process that starts at the same address is the successor.
    At another address it may run on a copied store; it must wait until the other process has been silent for
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
        seen = "is alive" if is_there else "may still act: its heartbeats have not been missing long enough"
        return (
            f"id {id} of broker {group.name!r} belongs to the process at {replica.address}, which {seen}. "
            "Two processes have one identity: was a store directory copied? Stop this one and remove "
            "brokerIdentity* and epochFileCheckpoint* from its store: it then joins with a new id. A "
            "broker that moved from that address is accepted once the old process has been silent for "
            "as long as it may lead without a controller (controllerHeartBeatTimeoutMills, 10 s at most)"
        )
    return ""


def with_sign(live: LiveBrokers, group: str, id: int, sign: LastSign) -> LiveBrokers:
    """Return `live` with the report that a broker has just sent."""
    return replace(live, signs={**live.signs, group: {**live.of(group), id: sign}})
