"""Elections: the new master of a group, or the reason why none can be elected. Pure."""

from __future__ import annotations

from kerolox.controller.apply import apply, apply_all
from kerolox.controller.decision import Decision, refused, unknown
from kerolox.controller.election import choose
from kerolox.controller.knowledge import confirmed_of, lacks, learn, silent
from kerolox.controller.requests import NOBODY, Elect, LiveBrokers
from kerolox.controller.state import LEAP, ControllerState, MasterChosen, ReplicaGroup, StateEvent
from kerolox.front.requests import Answer
from kerolox.protocol.bodies.controller import ElectedMaster
from kerolox.protocol.bodies.routes import BrokerMemberGroup
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers import controller as headers


def elect(state: ControllerState, live: LiveBrokers, asked: Elect) -> Decision:
    group = state.groups.get(asked.group)
    # Stricter than RocketMQ, which makes the first broker that asks master of a new group, registered or not.
    if group is None or (asked.id != NOBODY and asked.id not in group.replicas):
        return refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, unknown(asked.group, asked.id))
    own = None if asked.id == NOBODY else group.replicas[asked.id].start
    if not asked.is_wanted and asked.start is not None and own not in (None, asked.start):
        return refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"id {asked.id} of broker {asked.group!r} belongs to another process: register again",
        )
    learned = learn(state, live, asked.group)
    state = apply_all(state, learned)
    group = state.groups[asked.group]
    alive = live.of(asked.group)
    unheard = _unheard(group, live)
    if unheard and not asked.is_wanted:
        return _nobody(
            asked,
            f"the controller has just become leader, and the in-sync replicas {unheard} of {asked.group!r} "
            "have not reported their log yet: try again in a few seconds",
            learned,
        )
    if group.is_doubted and asked.accepted_loss is None and not asked.allow_unclean:
        return _nobody(asked, _why_doubted(group, live, asked), learned)
    if group.master_epoch == 0 and asked.id != NOBODY:
        chosen = asked.id if asked.id in alive else None
    else:
        chosen = choose(group, alive, asked, {id: lacks(group, id, live) for id in group.replicas})
    if chosen is None:
        # One event is enough to notify the brokers that their master is gone. RocketMQ emits three.
        lost = asked.id == NOBODY and group.master is not None
        event = MasterChosen(asked.group, None)
        return _nobody(asked, _why_nobody(group, live, asked), (*learned, event) if lost else learned)
    lack = lacks(group, chosen, live)
    if chosen == group.master and not (asked.accepted_loss is not None and (lack or group.is_doubted)):
        answer = _master_answer(group)
        answer.code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        answer.remark = f"broker {asked.group!r} keeps master {group.master} in epoch {group.master_epoch}"
        answer.body = ElectedMaster(sync_state_set=group.in_sync).encode()
        return Decision(answer, learned)
    elected = MasterChosen(asked.group, chosen, lack, LEAP if group.is_doubted else 1)
    after = apply(state, elected).groups[asked.group]
    answer = _master_answer(after)
    members = BrokerMemberGroup(
        broker_addrs={id: replica.address for id, replica in after.replicas.items()},
        broker_name=after.name,
        cluster=after.cluster,
    )
    answer.body = ElectedMaster(broker_member_group=members, sync_state_set=after.in_sync).encode()
    return Decision(answer, (*learned, elected))


def _unheard(group: ReplicaGroup, live: LiveBrokers) -> list[int]:
    """Return the in-sync replicas that may be alive but have not reported their log since the term began. One
    of them may be the master, or after a power failure the one with the longest log."""
    alive = live.of(group.name)
    if live.is_settled or not group.master_epoch or group.master in alive:
        return []
    return [
        id
        for id in sorted(group.in_sync)
        if (id not in alive or alive[id].epoch < 0) and (group.name, id) not in live.gone
    ]


def _nobody(asked: Elect, why: str, events: tuple[StateEvent, ...] = ()) -> Decision:
    by_controller = asked.id == NOBODY
    code = (
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
        if by_controller
        else ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    )
    return Decision(Answer(code=code, remark=why), events)


def _why_nobody(group: ReplicaGroup, live: LiveBrokers, asked: Elect) -> str:
    who = f"broker {asked.id} cannot" if asked.is_wanted else "no replica can"
    alive = live.of(group.name)
    lacking = {
        id: lacks(group, id, live) for id in sorted(group.in_sync & alive.keys() & group.replicas.keys())
    }
    short = ", ".join(f"{id} lacks {bytes}" for id, bytes in lacking.items() if bytes)
    if short:
        return (
            f"{who} be elected for {group.name!r}: the log is confirmed up to "
            f"{confirmed_of(group, live)}, and of the in-sync replicas {sorted(group.in_sync)}, {short} "
            "bytes of that. Start a complete replica; or accept the loss: kerolox controller elect "
            f"--broker {group.name} --id ID --accept-loss BYTES, with the bytes that the replica lacks"
        )
    return (
        f"{who} be elected for {group.name!r}: the in-sync set is {sorted(group.in_sync)}, alive are "
        f"{sorted(alive)}. Start an in-sync replica; or set enableElectUncleanMaster=true, which loses the "
        "messages that only the missing replicas have"
    )


def _why_doubted(group: ReplicaGroup, live: LiveBrokers, asked: Elect) -> str:
    who = f"broker {asked.id} is not" if asked.is_wanted else "no replica is"
    return (
        f"{who} elected for {group.name!r}: the controller's state is an older copy, and "
        f"{silent(group, live)} of the in-sync replicas {sorted(group.in_sync)} have not reported the set "
        "they know. Start them; or, if they are lost, elect a replica without them: kerolox "
        f"controller elect --broker {group.name} --id ID --accept-loss BYTES, with the confirmed bytes that "
        "it lacks"
    )


def _master_answer(group: ReplicaGroup) -> Answer:
    return Answer(
        header=headers.ElectMasterAnswer(
            master_broker_id=group.master,
            master_address=group.address(group.master),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.in_sync_epoch,
        )
    )
