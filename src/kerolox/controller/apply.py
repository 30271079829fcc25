"""``apply(state, event)``: the only function that changes a controller's state. Pure.

Events carry no epochs: applying one increments them. So no event may be applied twice; carriers therefore
compare the group's revision with each commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kerolox.controller.state import (
    AddressChanged,
    ConfirmedKept,
    ControllerState,
    DoubtChanged,
    IdGiven,
    InSyncChanged,
    MasterChosen,
    ProcessStarted,
    RegisteredReplica,
    ReplicaGroup,
    ReplicasForgotten,
    SetLearned,
    StateEvent,
)


def apply(state: ControllerState, event: StateEvent) -> ControllerState:
    """Return the state after the event."""
    group = state.groups.get(event.group)
    if group is None:
        if not isinstance(event, IdGiven):
            return state
        group = ReplicaGroup(cluster=event.cluster, name=event.group)
    changed = _applied(group, event)
    groups = {name: kept for name, kept in state.groups.items() if name != event.group}
    if changed is not None:
        groups[event.group] = changed
    return ControllerState(groups)


def apply_all(state: ControllerState, events: Iterable[StateEvent]) -> ControllerState:
    """Return the state after the events, applied in order."""
    for event in events:
        state = apply(state, event)
    return state


def _applied(group: ReplicaGroup, event: StateEvent) -> ReplicaGroup | None:
    """Return the group after the event; None if the group was removed."""
    match event:
        case IdGiven(id=id, address=address, check_code=check_code):
            if id in group.replicas:
                return group
            replicas = {**group.replicas, id: RegisteredReplica(address, check_code)}
            return replace(group, replicas=replicas, next_id=max(group.next_id, id + 1))
        case AddressChanged(id=id, address=address):
            if id not in group.replicas:
                return group
            moved = replace(group.replicas[id], address=address)
            return replace(group, replicas={**group.replicas, id: moved})
        case ProcessStarted(id=id, start=start):
            if id not in group.replicas:
                return group
            begun = replace(group.replicas[id], start=start)
            return replace(group, replicas={**group.replicas, id: begun})
        case MasterChosen(id=None):
            return replace(group, master=None, master_epoch=group.master_epoch + 1)
        case MasterChosen(id=id, lost=lost, leap=leap):
            return replace(
                group,
                master=id,
                master_epoch=group.master_epoch + leap,
                in_sync=frozenset({id}),
                in_sync_epoch=group.in_sync_epoch + leap,
                confirmed=max(0, group.confirmed - lost),
                is_doubted=False,
            )
        case SetLearned(epoch=epoch, master=master, in_sync=in_sync, in_sync_epoch=number):
            return replace(
                group,
                master=master,
                master_epoch=epoch,
                in_sync=in_sync,
                in_sync_epoch=number,
                is_doubted=True,
            )
        case DoubtChanged(is_doubted=is_doubted):
            return replace(group, is_doubted=is_doubted)
        case ConfirmedKept(confirmed=confirmed):
            return replace(group, confirmed=max(group.confirmed, confirmed))
        case InSyncChanged(in_sync=in_sync):
            return replace(group, in_sync=in_sync, in_sync_epoch=group.in_sync_epoch + 1)
        case ReplicasForgotten(ids=ids):
            return None if ids is None else _without(group, ids)


def _without(group: ReplicaGroup, ids: frozenset[int]) -> ReplicaGroup | None:
    """Return the group without these replicas; None if no replica is left.

    The epochs are kept. RocketMQ resets them when no in-sync replica is left, and its brokers then reject the
    controller's answers because they know higher epochs.
    """
    replicas = {id: replica for id, replica in group.replicas.items() if id not in ids}
    if not replicas:
        return None
    in_sync = group.in_sync - ids
    return replace(
        group,
        replicas=replicas,
        master=None if group.master in ids else group.master,
        in_sync=in_sync,
        in_sync_epoch=group.in_sync_epoch + (in_sync != group.in_sync),
    )
