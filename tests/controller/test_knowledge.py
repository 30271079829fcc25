"""Conclusions of a controller: a newer set, an older state, a log that ends too early."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kerolox.controller.apply import apply
from kerolox.controller.decide import decide
from kerolox.controller.decision import Decision
from kerolox.controller.knowledge import EPOCH_MAX
from kerolox.controller.requests import (
    ChangeInSync,
    ControllerRequest,
    Doubt,
    Elect,
    KnownSet,
    LastSign,
    Learn,
    LiveBrokers,
    Register,
)
from kerolox.controller.state import (
    LEAP,
    ConfirmedKept,
    ControllerState,
    DoubtChanged,
    MasterChosen,
    RegisteredReplica,
    ReplicaGroup,
    SetLearned,
)

A, C = "broker-a", "DefaultCluster"
STARTS = {1: 11, 2: 12, 3: 13}


def group(**more: object) -> ReplicaGroup:
    """Three brokers of ours; 1 leads in epoch 3, and 1 and 2 are in sync: set number 5."""
    replicas = {id: RegisteredReplica(f"10.0.0.{id}:10911", "", start) for id, start in STARTS.items()}
    values: dict[str, object] = {
        "next_id": 4, "replicas": replicas, "master": 1, "master_epoch": 3,
        "in_sync": frozenset({1, 2}), "in_sync_epoch": 5,
    }  # fmt: skip
    return ReplicaGroup(cluster=C, name=A, **(values | more))  # type: ignore[arg-type]


def known(epoch: int, number: int, master: int, *ids: int, leads: bool = False) -> KnownSet:
    return KnownSet(epoch, number, master, frozenset(ids), leads)


def sign(id: int, end: int = 100, what: KnownSet | None = None, **more: int) -> LastSign:
    return LastSign(3, end, end, start=STARTS[id], known=what, **more)


class Run:
    def __init__(self, first: ReplicaGroup, **alive: LastSign) -> None:
        self.state = ControllerState({A: first})
        self.live = LiveBrokers({A: {int(name[1:]): one for name, one in alive.items()}})

    @property
    def group(self) -> ReplicaGroup:
        return self.state.groups[A]

    def ask(self, request: ControllerRequest) -> Decision:
        decision = decide(self.state, self.live, request)
        for event in decision.events:
            self.state = apply(self.state, event)
        return decision


@pytest.mark.parametrize(
    ("what", "is_newer"),
    [
        (known(3, 6, 1, 1), True),  # within an epoch the larger number wins
        (known(3, 5, 1, 1, 2), False),
        (known(3, 4, 1, 1, 2, 3), False),
        (known(4, 6, 2, 2), True),
        (known(4, 4, 2, 2), False),  # numbers of sets never fall
        (known(4, 6, 2, 1), False),  # a master that is not in sync
        (known(EPOCH_MAX, 6, 2, 2), False),  # it would leave no room
        (known(4, EPOCH_MAX, 2, 2), False),
        (known(4, 6, 2, *range(1, 102)), False),
    ],
)
def test_what_is_newer(what: KnownSet, is_newer: bool) -> None:
    run = Run(group(), b2=sign(2, what=what))
    decision = run.ask(Learn(A))
    learned = SetLearned(A, what.epoch, what.master, what.in_sync, what.number)
    assert (learned in decision.events) is is_newer
    if is_newer:
        assert (run.group.master, run.group.master_epoch) == (what.master, what.epoch)
        assert (run.group.in_sync, run.group.in_sync_epoch) == (what.in_sync, what.number)


@pytest.mark.parametrize(
    ("first", "what", "epoch", "master"),
    [
        (group(master=None, master_epoch=7), known(5, 9, 2, 2), 8, None),  # counted on while nobody led
        (group(master=None, master_epoch=5), known(5, 9, 2, 2), 5, 2),
        (group(master=1, master_epoch=5), known(5, 9, 2, 2), 6, None),  # one epoch has one master
        (group(master=2, master_epoch=5), known(5, 9, 2, 2), 5, 2),
    ],
)
def test_a_newer_set_counts_though_an_older_state_has_counted_its_epochs_on(
    first: ReplicaGroup, what: KnownSet, epoch: int, master: int | None
) -> None:
    run = Run(first, b3=sign(3, what=what))
    run.ask(Learn(A))
    assert (run.group.master_epoch, run.group.master) == (epoch, master)
    assert (run.group.in_sync, run.group.in_sync_epoch, run.group.is_doubted) == ({2}, 9, True)


def test_the_newest_of_all_counts() -> None:
    run = Run(
        group(),
        b1=sign(1, what=known(3, 7, 1, 1)),
        b2=sign(2, what=known(5, 9, 2, 2, 3)),
        b3=sign(3, what=known(3, 6, 1, 1, 3)),
    )
    run.ask(Learn(A))
    assert (run.group.master, run.group.master_epoch, run.group.in_sync) == (2, 5, {2, 3})
    assert not run.group.is_doubted  # 2 and 3 have said what they know


def test_an_older_state_elects_nobody_before_all_in_sync_have_spoken() -> None:
    run = Run(group(is_doubted=True), b2=sign(2))
    refused = run.ask(Elect(group=A))
    assert (refused.answer.code, refused.events) == (2004, ())
    assert "the controller's state is an older copy, and [1]" in str(refused.answer.remark)
    assert run.ask(Elect(group=A, id=2, is_wanted=True)).answer.code == 2012
    # 1 knows that 2 was taken out of the set.
    run.live = LiveBrokers({A: {1: sign(1, what=known(3, 6, 1, 1)), 2: sign(2)}})
    assert run.ask(Elect(group=A, id=2)).answer.code == 2011  # 1 is master, and lives
    assert (run.group.in_sync, run.group.is_doubted) == ({1}, False)
    del run.live.signs[A][1]  # type: ignore[attr-defined]
    assert run.ask(Elect(group=A)).answer.code == 2004
    assert run.group.master is None


def test_who_has_registered_and_not_said_how_much_it_has_has_not_spoken() -> None:
    run = Run(group(is_doubted=True), b1=LastSign(start=11), b2=sign(2))
    assert "[1]" in str(run.ask(Elect(group=A)).answer.remark)
    run.live = LiveBrokers({A: {1: sign(1), 2: sign(2)}})
    assert DoubtChanged(A, False) in run.ask(Learn(A)).events


def test_by_an_operators_word_it_is_taken_as_it_is() -> None:
    run = Run(group(is_doubted=True), b2=sign(2))
    answer = run.ask(Elect(group=A, id=2, is_wanted=True, accepted_loss=0)).answer
    assert answer.code == 0
    assert (run.group.master, run.group.is_doubted) == (2, False)
    # From now on nobody knows more: what was decided since the copy was made is given up.
    run.live = LiveBrokers({A: {1: sign(1, what=known(9, 20, 1, 1)), 2: sign(2)}})
    assert run.ask(Learn(A)).events == ()
    # Also for the one that is master already.
    run = Run(group(is_doubted=True), b1=sign(1))
    assert run.ask(Elect(group=A, id=1, is_wanted=True, accepted_loss=0)).answer.code == 0
    assert (run.group.master_epoch, run.group.in_sync, run.group.is_doubted) == (3 + LEAP, {1}, False)


def test_a_master_of_an_older_state_does_not_take_out_who_may_know_more() -> None:
    run = Run(group(is_doubted=True), b1=sign(1))
    wish = ChangeInSync(group=A, master=1, master_epoch=3, in_sync=frozenset({1}), in_sync_epoch=5)
    refused = run.ask(wish).answer
    assert refused.code == 2013
    assert "[2] of 'broker-a' cannot be removed from the in-sync set yet" in str(refused.remark)
    run.live = LiveBrokers({A: {1: sign(1), 2: LastSign(start=12), 3: sign(3)}})
    assert run.ask(replace(wish, in_sync=frozenset({1, 2, 3}))).answer.code == 0  # more may join


def test_other_groups_of_an_older_state_are_doubted() -> None:
    run = Run(group())
    assert run.ask(Doubt(A)).events == (DoubtChanged(A, True),)
    assert run.ask(Doubt(A)).events == ()
    assert run.ask(Doubt("other")).events == ()


def test_a_leader_that_an_older_state_does_not_know_goes_on() -> None:
    """It registers anew, for its number is not the one of the state, and says that it leads."""
    run = Run(group(replicas={1: RegisteredReplica("10.0.0.1:10911", "", 99)}, in_sync=frozenset({1})))
    told = sign(1, what=known(6, 9, 1, 1, 4, leads=True))
    run.live = LiveBrokers({A: {}})
    answer = run.ask(Register(C, A, 1, "10.0.0.1:10911", told)).answer
    assert answer.code == 0
    assert (answer.header.master_broker_id, answer.header.master_epoch) == (1, 6)  # type: ignore[union-attr]
    assert (run.group.master, run.group.master_epoch, run.group.in_sync) == (1, 6, {1, 4})
    assert run.group.is_doubted  # 4 may know more
    # 4 has an id that this state has not given. It is given to nobody else.
    four = LastSign(6, 100, 100, start=14, known=known(6, 9, 1, 1, 4))
    assert run.ask(Register(C, A, 4, "10.0.0.4:10911", four)).answer.code == 0
    assert (run.group.next_id, run.group.replicas[4].start) == (5, 14)
    # Nor 3's, which comes after 4.
    assert run.ask(Register(C, A, 3, "10.0.0.3:10911", replace(four, start=13))).answer.code == 0
    assert (run.group.next_id, run.group.replicas[3].start) == (5, 13)
    # A state that is not doubted gave all ids below the next one: a replica that was cleaned stays away.
    sure = Run(
        group(replicas={1: RegisteredReplica("10.0.0.1:10911", "", 11)}, in_sync=frozenset({1}), next_id=4)
    )
    assert sure.ask(Register(C, A, 3, "10.0.0.3:10911", replace(four, start=13))).answer.code == 2010
    # RocketMQ's brokers do not say what they know: as ever.
    assert run.ask(Register(C, A, 7, "10.0.0.7:10911")).answer.code == 2010


# --- a log that ends too early --------------------------------------------------------------------


def test_whose_log_ends_before_what_was_confirmed_is_not_elected() -> None:
    run = Run(group(confirmed=150), b2=sign(2, 100))
    refused = run.ask(Elect(group=A)).answer
    assert refused.code == 2004
    assert "confirmed up to 150, and of the in-sync replicas [1, 2], 2 lacks 50 bytes of that" in str(
        refused.remark
    )
    assert run.ask(Elect(group=A, id=2, is_wanted=True, accepted_loss=49)).answer.code == 2012
    decision = run.ask(Elect(group=A, id=2, is_wanted=True, accepted_loss=50))
    assert decision.events == (MasterChosen(A, 2, 50),)
    assert (run.group.master, run.group.confirmed) == (2, 100)


def test_what_leaders_said_since_counts_and_is_written_down() -> None:
    run = Run(group(confirmed=50), b2=sign(2, 100))
    run.live = replace(run.live, confirmed={A: 150})
    decision = run.ask(Elect(group=A))
    assert decision.answer.code == 2004
    assert decision.events == (ConfirmedKept(A, 150), MasterChosen(A, None))
    assert run.group.confirmed == 150


def test_a_process_that_has_shown_its_log_is_not_asked_again() -> None:
    """It may have said so a second ago, and has copied since what its leader confirmed."""
    run = Run(group(confirmed=150), b2=sign(2, 100))
    run.live = replace(run.live, shown={(A, 2): 12})
    assert run.ask(Elect(group=A)).answer.code == 0


def test_another_process_has_to_show_its_log() -> None:
    run = Run(group(confirmed=150), b2=sign(2, 100))
    run.live = replace(run.live, shown={(A, 2): 77})
    assert run.ask(Elect(group=A)).answer.code == 2004
    run.live = LiveBrokers({A: {2: sign(2, 150)}})
    assert run.ask(Elect(group=A)).answer.code == 0


def test_brokers_that_do_not_say_their_number_are_elected_as_ever() -> None:
    """RocketMQ's."""
    replicas = {id: RegisteredReplica(f"10.0.0.{id}:10911", "") for id in STARTS}
    run = Run(group(confirmed=150, replicas=replicas), b2=LastSign(3, 100))
    assert run.ask(Elect(group=A)).answer.code == 0


def test_by_leave_for_unclean_elections_it_is_elected_and_the_loss_is_noted() -> None:
    run = Run(group(confirmed=150), b2=sign(2, 100))
    assert run.ask(Elect(group=A, allow_unclean=True)).events == (MasterChosen(A, 2, 50),)
