"""``decide(state, live, request)``: the answer to a request, and the events to commit before it. Pure.

The rules and their order are RocketMQ's (5.1.1 to 5.5): if a request violates several, the first one is
answered. Comments mark the rules that are stricter here.
"""

from __future__ import annotations

from kerolox.controller.apply import apply, apply_all
from kerolox.controller.decision import Decision, refused, unknown
from kerolox.controller.knowledge import (
    confirmed_of,
    keep_confirmed,
    lacks,
    learn,
    silent,
    why_other_process,
    with_sign,
)
from kerolox.controller.masters import elect
from kerolox.controller.requests import (
    ChangeInSync,
    ControllerRequest,
    DescribeGroups,
    Doubt,
    Elect,
    Forget,
    Learn,
    LiveBrokers,
    NextId,
    Register,
    TakeId,
    WhoIsMaster,
)
from kerolox.controller.state import (
    FIRST_ID,
    GROUPS_MAX,
    REPLICAS_MAX,
    TEXT_LENGTH_MAX,
    AddressChanged,
    ControllerState,
    DoubtChanged,
    IdGiven,
    InSyncChanged,
    MasterChosen,
    ProcessStarted,
    ReplicaGroup,
    ReplicasForgotten,
    StateEvent,
)
from kerolox.front.requests import Answer
from kerolox.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from kerolox.protocol.broker_identity import address_of_check_code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers import controller as headers


def decide(state: ControllerState, live: LiveBrokers, request: ControllerRequest) -> Decision:
    """Return the answer and the events to commit before it. Every change of a group also stores its confirmed
    offset."""
    decision = _decide(state, live, request)
    if not decision.events or isinstance(request, DescribeGroups) or request.group not in state.groups:
        return decision
    kept = keep_confirmed(state.groups[request.group], live)
    return decision._replace(events=(*kept, *decision.events))


def _decide(state: ControllerState, live: LiveBrokers, request: ControllerRequest) -> Decision:
    match request:
        case NextId():
            return _next_id(state, request)
        case TakeId():
            return _take_id(state, request)
        case Register():
            return _register(state, live, request)
        case Learn():
            return _learn(state, live, request)
        case Doubt():
            return _doubt(state, request)
        case Elect():
            return elect(state, live, request)
        case ChangeInSync():
            return _change_in_sync(state, live, request)
        case WhoIsMaster():
            return _who_is_master(state, request)
        case DescribeGroups():
            return _describe(state, live, request)
        case Forget():
            return _forget(state, live, request)


# --- ids --------------------------------------------------------------------------------------


def _next_id(state: ControllerState, asked: NextId) -> Decision:
    group = state.groups.get(asked.group)
    header = headers.NextBrokerIdAnswer(
        cluster_name=asked.cluster,
        broker_name=asked.group,
        next_broker_id=FIRST_ID if group is None else group.next_id,
    )
    return Decision(Answer(header=header))


def _take_id(state: ControllerState, asked: TakeId) -> Decision:
    """Accept only the next free id. RocketMQ accepts any free id: a skipped number blocks new brokers when
    its turn comes, and a number of a removed broker may return with that broker."""
    done = Answer(header=headers.ApplyBrokerIdAnswer(cluster_name=asked.cluster, broker_name=asked.group))
    group = state.groups.get(asked.group)
    why = _why_not_this_id(state, group, asked)
    if why is not None:
        return refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, why)
    if group is not None and asked.id in group.replicas:
        return Decision(done)  # a retry: the first answer was lost
    address = address_of_check_code(asked.check_code)
    given = IdGiven(asked.group, asked.cluster, asked.id, address, asked.check_code)
    return Decision(done, (given,))


def _why_not_this_id(state: ControllerState, group: ReplicaGroup | None, asked: TakeId) -> str | None:
    for text in (asked.cluster, asked.group, asked.check_code):
        if not 0 < len(text) <= TEXT_LENGTH_MAX:
            return (
                f"the name or check code {text[:40]!r} has {len(text)} characters: "
                f"expected 1 to {TEXT_LENGTH_MAX}"
            )
    if group is None:
        if len(state.groups) >= GROUPS_MAX:
            return f"broker {asked.group!r} would exceed the limit of {GROUPS_MAX} groups: clean old ones"
        if asked.id != FIRST_ID:
            return f"broker {asked.group!r} is new: its first id is {FIRST_ID}, not {asked.id}"
        return None
    if group.cluster != asked.cluster:
        return (
            f"broker {asked.group!r} belongs to cluster {group.cluster!r}, not to {asked.cluster!r}: a "
            "broker name is one group across all clusters of a controller"
        )
    taken = group.replicas.get(asked.id)
    if taken is not None:
        if taken.check_code == asked.check_code:
            return None
        return (
            f"id {asked.id} of broker {asked.group!r} is taken by {taken.address}: request the next id again"
        )
    if asked.id != group.next_id:
        return (
            f"id {asked.id} of broker {asked.group!r}: the next id is {group.next_id}; ids are neither "
            "skipped nor reused"
        )
    if len(group.replicas) >= REPLICAS_MAX:
        return f"broker {asked.group!r} has {REPLICAS_MAX} replicas, the limit: clean old ones first"
    return None


def _register(state: ControllerState, live: LiveBrokers, asked: Register) -> Decision:
    group = state.groups.get(asked.group)
    returns = group is not None and _is_from_later(group, asked)
    if group is None or (asked.id not in group.replicas and not returns):
        return refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, unknown(asked.group, asked.id))
    if not 0 < len(asked.address) <= TEXT_LENGTH_MAX:
        return refused(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"the address has {len(asked.address)} characters: expected 1 to {TEXT_LENGTH_MAX}",
        )
    events: tuple[StateEvent, ...] = ()
    start = asked.sign.start
    if returns:
        events = (IdGiven(asked.group, group.cluster, asked.id, asked.address, f"{asked.address};0"),)
    else:
        other = why_other_process(group, asked.id, asked.address, start, live)
        if other:
            return refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, other)
        if group.replicas[asked.id].address != asked.address:
            events = (AddressChanged(asked.group, asked.id, asked.address),)
    is_new = returns or start is None or group.replicas[asked.id].start != start
    if returns or group.replicas[asked.id].start != start:
        events = (*events, ProcessStarted(asked.group, asked.id, start))
    state = apply_all(state, events)
    if start is not None:
        live = with_sign(live, asked.group, asked.id, asked.sign)
        learned = learn(state, live, asked.group)
        events, state = (*events, *learned), apply_all(state, learned)
    group = state.groups[asked.group]
    known = asked.sign.known
    leads_now = known is not None and known.leads and known.epoch == group.master_epoch
    if asked.id == group.master and is_new and not leads_now:
        # A broker registers when it starts, so its process is new and its log may have lost what was written
        # after the last flush: one epoch is never led by two processes. The in-sync replica with the longest
        # log is elected once the replicas have reported. RocketMQ lets the broker continue in its epoch.
        replaced = MasterChosen(asked.group, None)
        events, state = (*events, replaced), apply(state, replaced)
    group = state.groups[asked.group]
    header = headers.RegisterToControllerAnswer(cluster_name=asked.cluster, broker_name=asked.group)
    if group.master is not None and group.master in live.of(asked.group):
        header = headers.RegisterToControllerAnswer(
            cluster_name=asked.cluster,
            broker_name=asked.group,
            master_broker_id=group.master,
            master_address=group.address(group.master),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.in_sync_epoch,
        )
    return Decision(Answer(header=header, body=_set_body(group)), events)


def _is_from_later(group: ReplicaGroup, asked: Register) -> bool:
    """Return whether a kerolox broker registers with an id that this state has not assigned: this state is an
    older copy of the one that did. Of several such brokers the one with the highest id may come first."""
    return (
        asked.id not in group.replicas
        and (asked.id >= group.next_id or group.is_doubted or asked.id in group.in_sync)
        and asked.sign.start is not None
        and group.cluster == asked.cluster
        and len(group.replicas) < REPLICAS_MAX
        and asked.id <= group.next_id + REPLICAS_MAX
    )


# --- a state that may be an older copy --------------------------------------------------------


def _learn(state: ControllerState, live: LiveBrokers, asked: Learn) -> Decision:
    group = state.groups.get(asked.group)
    if group is None:
        return Decision(Answer())
    return Decision(Answer(), learn(state, live, asked.group) or keep_confirmed(group, live))


def _doubt(state: ControllerState, asked: Doubt) -> Decision:
    group = state.groups.get(asked.group)
    is_news = group is not None and group.master_epoch > 0 and not group.is_doubted
    return Decision(Answer(), (DoubtChanged(asked.group, True),) if is_news else ())


def _who_is_master(state: ControllerState, asked: WhoIsMaster) -> Decision:
    group = state.groups.get(asked.group)
    if group is None:
        return refused(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            f"broker {asked.group!r} has no id at this controller",
        )
    header = headers.ReplicaInfoAnswer(
        master_broker_id=group.master,
        master_address=group.address(group.master),
        master_epoch=group.master_epoch,
    )
    return Decision(Answer(header=header, body=_set_body(group)))


# --- the in-sync set --------------------------------------------------------------------------


def _change_in_sync(state: ControllerState, live: LiveBrokers, asked: ChangeInSync) -> Decision:
    group = state.groups.get(asked.group)
    refusal = _why_not_in_sync(group, live, asked)
    if refusal is not None:
        return refused(*refusal)
    changed = InSyncChanged(asked.group, asked.in_sync)
    after = apply(state, changed).groups[asked.group]
    header = headers.AlterSyncStateSetAnswer(new_sync_state_set_epoch=after.in_sync_epoch)
    return Decision(Answer(header=header, body=_set_body(after)), (changed,))


def _why_not_in_sync(
    group: ReplicaGroup | None, live: LiveBrokers, asked: ChangeInSync
) -> tuple[int, str] | None:
    code = ResponseCode
    failed = code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    if group is None:
        return failed, f"broker {asked.group!r} has no id at this controller"
    name = asked.group
    if asked.in_sync == group.in_sync:
        return failed, f"the in-sync set of {name!r} is {sorted(group.in_sync)} already"
    if asked.master != group.master:
        return code.CONTROLLER_INVALID_MASTER, f"the master of {name!r} is {group.master}, not {asked.master}"
    if asked.master_epoch != group.master_epoch:
        return (
            code.CONTROLLER_FENCED_MASTER_EPOCH,
            f"master epoch {asked.master_epoch} of {name!r}: the current epoch is {group.master_epoch}",
        )
    if asked.in_sync_epoch != group.in_sync_epoch:
        return (
            code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the in-sync set of {name!r} has changed: the request has epoch {asked.in_sync_epoch}, the "
            f"current one is {group.in_sync_epoch}",
        )
    alive = live.of(name)
    for id in sorted(asked.in_sync):
        if id not in group.replicas:
            return code.CONTROLLER_INVALID_REPLICAS, f"broker {name!r} has no replica {id}"
        if id not in alive:
            return code.CONTROLLER_BROKER_NOT_ALIVE, f"replica {id} of {name!r} sent no heartbeat in time"
    if group.master not in asked.in_sync:
        return failed, f"the in-sync set {sorted(asked.in_sync)} of {name!r} lacks its master {group.master}"
    unasked = sorted((group.in_sync - asked.in_sync) & set(silent(group, live))) if group.is_doubted else []
    if unasked:
        return failed, (
            f"{unasked} of {name!r} cannot be removed from the in-sync set yet: the controller's state is an "
            "older copy, and they have not reported the set they know. Start them; or: kerolox controller "
            f"elect --broker {name} --id {group.master} --accept-loss 0"
        )
    return None


# --- tools ------------------------------------------------------------------------------------


def _describe(state: ControllerState, live: LiveBrokers, asked: DescribeGroups) -> Decision:
    names = state.groups if asked.names is None else asked.names
    found = {name: state.groups[name] for name in names if name in state.groups}
    table = {name: _described(group, live) for name, group in found.items()}
    return Decision(Answer(body=BrokerReplicasInfo(replicas_info_table=table).encode()))


def _described(group: ReplicaGroup, live: LiveBrokers) -> ReplicasInfo:
    alive = live.of(group.name)
    replicas = {
        id: ReplicaIdentity(
            alive=id in alive,
            broker_address=replica.address,
            broker_id=id,
            broker_name=group.name,
            confirm_offset=_told(alive[id].confirm_offset) if id in alive else None,
            lacks=lacks(group, id, live) or None if id in alive else None,
            max_offset=_told(alive[id].max_offset) if id in alive else None,
            refused=alive[id].refused if id in alive and id != group.master else None,
        )
        for id, replica in sorted(group.replicas.items())
    }
    return ReplicasInfo(
        confirmed=confirmed_of(group, live) or None,
        in_sync_replicas=tuple(told for id, told in replicas.items() if id in group.in_sync),
        not_in_sync_replicas=tuple(told for id, told in replicas.items() if id not in group.in_sync),
        master_address=group.address(group.master),
        master_broker_id=group.master,
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.in_sync_epoch,
        waits_for=tuple(silent(group, live)) if group.is_doubted else None,
    )


def _told(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _forget(state: ControllerState, live: LiveBrokers, asked: Forget) -> Decision:
    group = state.groups.get(asked.group)
    # With even_living RocketMQ removes the whole group, whatever ids are given.
    ids = None if asked.even_living else _ids(asked.ids)
    why = _why_keep(group, ids, live, asked)
    if why is not None:
        return refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, why)
    return Decision(Answer(), (ReplicasForgotten(asked.group, ids),))


def _why_keep(
    group: ReplicaGroup | None, ids: frozenset[int] | None, live: LiveBrokers, asked: Forget
) -> str | None:
    if not asked.even_living:
        if ids is None and asked.ids:
            return f"ids {asked.ids[:80]!r}: expected numbers separated by semicolons"
        if ids is None and group is not None and group.master is not None:
            return f"broker {asked.group!r} has a master, {group.master}: name the ids to remove"
        living = sorted(id for id in live.of(asked.group) if ids is None or id in ids)
        if living:
            return f"{living} of broker {asked.group!r} are alive: stop them first"
    if group is None:
        return f"broker {asked.group!r} has no id at this controller"
    if asked.even_living:
        return None
    if not live.is_settled:
        return (
            "the controller has just become leader and does not know yet which brokers are alive: try again "
            "soon"
        )
    if ids is not None and not ids & group.replicas.keys():
        return f"broker {asked.group!r} has none of the replicas {sorted(ids)}, only {sorted(group.replicas)}"
    return None


def _ids(text: str | None) -> frozenset[int] | None:
    """Return the numbers of ``1;2``; None if there is none or the text is invalid."""
    parts = [part.strip() for part in (text or "").split(";") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        return None
    return frozenset(map(int, parts))


def _set_body(group: ReplicaGroup) -> bytes:
    return SyncStateSet(sync_state_set=group.in_sync, sync_state_set_epoch=group.in_sync_epoch).encode()
