"""``decide(state, live, request)``: the answer to a request, and the events that make it true. Pure.

The rules are RocketMQ's (5.1.1 to 5.5), in its order: of several reasons to refuse the first one is answered.
Where we are stricter it says so.
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
    """What to answer, and what to change before. Each change of a group writes down how far its log is
    confirmed, too."""
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
    """Stricter than RocketMQ, which takes any free id: a number that is skipped bars the group to newcomers
    when its turn comes, and one that was somebody else's may come back with him."""
    done = Answer(header=headers.ApplyBrokerIdAnswer(cluster_name=asked.cluster, broker_name=asked.group))
    group = state.groups.get(asked.group)
    why = _why_not_this_id(state, group, asked)
    if why is not None:
        return refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, why)
    if group is not None and asked.id in group.replicas:
        return Decision(done)  # the answer got lost: asked again
    address = address_of_check_code(asked.check_code)
    given = IdGiven(asked.group, asked.cluster, asked.id, address, asked.check_code)
    return Decision(done, (given,))


def _why_not_this_id(state: ControllerState, group: ReplicaGroup | None, asked: TakeId) -> str | None:
    for text in (asked.cluster, asked.group, asked.check_code):
        if not 0 < len(text) <= TEXT_LENGTH_MAX:
            return (
                f"a name or check code of {len(text)} characters, {text[:40]!r}: "
                f"expected 1 to {TEXT_LENGTH_MAX}"
            )
    if group is None:
        if len(state.groups) >= GROUPS_MAX:
            return f"broker {asked.group!r} would be one group more than {GROUPS_MAX}: clean old ones first"
        if asked.id != FIRST_ID:
            return f"broker {asked.group!r} is new: its first id is {FIRST_ID}, not {asked.id}"
        return None
    if group.cluster != asked.cluster:
        return (
            f"broker {asked.group!r} belongs to cluster {group.cluster!r}, not to {asked.cluster!r}: one "
            "name is one group, in all clusters of a controller"
        )
    taken = group.replicas.get(asked.id)
    if taken is not None:
        if taken.check_code == asked.check_code:
            return None
        return (
            f"id {asked.id} of broker {asked.group!r} is taken by {taken.address}: ask for the next id again"
        )
    if asked.id != group.next_id:
        return (
            f"id {asked.id} of broker {asked.group!r}: the next one is {group.next_id}, and none is left out "
            "or given twice"
        )
    if len(group.replicas) >= REPLICAS_MAX:
        return (
            f"broker {asked.group!r} has {REPLICAS_MAX} replicas, the most there may be: clean old ones first"
        )
    return None


def _register(state: ControllerState, live: LiveBrokers, asked: Register) -> Decision:
    group = state.groups.get(asked.group)
    returns = group is not None and _is_from_later(group, asked)
    if group is None or (asked.id not in group.replicas and not returns):
        return refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, unknown(asked.group, asked.id))
    if not 0 < len(asked.address) <= TEXT_LENGTH_MAX:
        return refused(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"an address of {len(asked.address)} characters: expected 1 to {TEXT_LENGTH_MAX}",
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
        # Brokers register when they start, so its process began anew, and what its log had behind the last
        # flush may be gone: no epoch is led by two processes. Whoever has most of those in sync is elected
        # when it has said how much it has. RocketMQ lets it go on in its epoch.
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
    """A broker of ours with an id that was never given here: a later state than this copy gave it."""
    return (
        asked.id not in group.replicas
        and asked.id >= group.next_id
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
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"no broker {asked.group!r} has got an id here"
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
        return failed, f"no broker {asked.group!r} has got an id here"
    name = asked.group
    if asked.in_sync == group.in_sync:
        return failed, f"the in-sync set of {name!r} is {sorted(group.in_sync)} already"
    if asked.master != group.master:
        return code.CONTROLLER_INVALID_MASTER, f"{asked.master} is not master of {name!r}, {group.master} is"
    if asked.master_epoch != group.master_epoch:
        return (
            code.CONTROLLER_FENCED_MASTER_EPOCH,
            f"master epoch {asked.master_epoch} of {name!r}: it is {group.master_epoch}",
        )
    if asked.in_sync_epoch != group.in_sync_epoch:
        return (
            code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the in-sync set of {name!r} was changed meanwhile: epoch {asked.in_sync_epoch}, it is "
            f"{group.in_sync_epoch}",
        )
    alive = live.of(name)
    for id in sorted(asked.in_sync):
        if id not in group.replicas:
            return code.CONTROLLER_INVALID_REPLICAS, f"broker {name!r} has no replica {id}"
        if id not in alive:
            return code.CONTROLLER_BROKER_NOT_ALIVE, f"replica {id} of {name!r} gave no sign of life in time"
    if group.master not in asked.in_sync:
        return failed, f"an in-sync set {sorted(asked.in_sync)} of {name!r} without its master {group.master}"
    unasked = sorted((group.in_sync - asked.in_sync) & set(silent(group, live))) if group.is_doubted else []
    if unasked:
        return failed, (
            f"{unasked} of {name!r} cannot be taken out of the in-sync set yet: the controller's state is an "
            "older copy, and they have not said which set they know. Start them; or: kerolox controller "
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
    # RocketMQ forgets the whole group when living ones may go, whatever ids are given.
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
            return f"ids {asked.ids[:80]!r}: expected numbers, joined by semicolons"
        if ids is None and group is not None and group.master is not None:
            return f"broker {asked.group!r} has a master, {group.master}: name the ids that are to go"
        living = sorted(id for id in live.of(asked.group) if ids is None or id in ids)
        if living:
            return f"of broker {asked.group!r} {living} are alive: stop them first"
    if group is None:
        return f"no broker {asked.group!r} has got an id here"
    if asked.even_living:
        return None
    if not live.is_settled:
        return (
            "the controller has just begun to listen, and does not know who is alive: ask again in a moment"
        )
    if ids is not None and not ids & group.replicas.keys():
        return f"broker {asked.group!r} has no replica of {sorted(ids)}: it has {sorted(group.replicas)}"
    return None


def _ids(text: str | None) -> frozenset[int] | None:
    """The numbers of ``1;2``; None for none, and for what is something else."""
    parts = [part.strip() for part in (text or "").split(";") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        return None
    return frozenset(map(int, parts))


def _set_body(group: ReplicaGroup) -> bytes:
    return SyncStateSet(sync_state_set=group.in_sync, sync_state_set_epoch=group.in_sync_epoch).encode()
