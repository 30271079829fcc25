"""The rules one by one, and the runs that were measured on RocketMQ's own classes (5.5.0)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kerolox.controller.apply import apply
from kerolox.controller.decide import decide
from kerolox.controller.decision import Decision
from kerolox.controller.requests import (
    NOBODY,
    ChangeInSync,
    ControllerRequest,
    DescribeGroups,
    Elect,
    Forget,
    LastSign,
    LiveBrokers,
    NextId,
    Register,
    TakeId,
    WhoIsMaster,
)
from kerolox.controller.state import (
    GROUPS_MAX,
    REPLICAS_MAX,
    ControllerState,
    IdGiven,
    ReplicaGroup,
)
from kerolox.front.requests import Answer
from kerolox.protocol.bodies.controller import BrokerReplicasInfo, ElectedMaster, SyncStateSet

A, C = "broker-a", "DefaultCluster"


class Run:
    """One group, and a run of requests."""

    def __init__(self, replicas: int = 0) -> None:
        self.state = ControllerState()
        self.alive: dict[int, LastSign] = {}
        self.settled = True
        self.gone: frozenset[tuple[str, int]] = frozenset()
        for id in range(1, replicas + 1):
            assert self.ask(TakeId(C, A, id, self.code(id))).code == 0
            self.alive[id] = LastSign(epoch=0, max_offset=0)

    def code(self, id: int) -> str:
        return f"10.0.0.{id}:10911;{id}"

    @property
    def group(self) -> ReplicaGroup:
        return self.state.groups[A]

    @property
    def mastership(self) -> tuple[int | None, int, set[int], int]:
        group = self.group
        return group.master, group.master_epoch, set(group.in_sync), group.in_sync_epoch

    def decide(self, request: ControllerRequest) -> Decision:
        return decide(self.state, LiveBrokers({A: self.alive}, self.settled, self.gone), request)

    def ask(self, request: ControllerRequest) -> Answer:
        answer, events = self.decide(request)
        for event in events:
            self.state = apply(self.state, event)
        return answer

    def elect(self, id: int = NOBODY, wanted: bool = False, unclean: bool = False) -> Answer:
        return self.ask(Elect(group=A, id=id, is_wanted=wanted, allow_unclean=unclean))

    def alter(self, *ids: int, **other: Any) -> Answer:
        group = self.group
        asked: dict[str, Any] = {
            "master": group.master or 0,
            "master_epoch": group.master_epoch,
            "in_sync_epoch": group.in_sync_epoch,
            **other,
        }
        return self.ask(ChangeInSync(group=A, in_sync=frozenset(ids), **asked))


# --- measured runs ----------------------------------------------------------------------------


def test_the_sample_run() -> None:
    run = Run(2)
    assert run.elect(1).code == 0
    assert run.mastership == (1, 1, {1}, 1)
    answer = run.alter(1, 2)
    assert (answer.code, answer.header.new_sync_state_set_epoch) == (0, 2)  # type: ignore[union-attr]
    del run.alive[1]
    assert run.elect().code == 0
    assert run.mastership == (2, 2, {2}, 3)
    del run.alive[2]
    run.alive[1] = LastSign()
    assert run.elect(1).code == 2012
    assert run.elect().code == 2004
    assert run.mastership == (None, 3, {2}, 3)
    # From here on RocketMQ counts up an epoch with each attempt.
    assert run.elect().code == 2004
    assert run.mastership == (None, 3, {2}, 3)
    run.alive[2] = LastSign()
    assert run.elect(2).code == 0
    assert run.mastership == (2, 4, {2}, 4)


def test_an_id_is_taken_once_and_asked_for_twice() -> None:
    run = Run()
    assert run.ask(NextId(C, A)).header.next_broker_id == 1  # type: ignore[union-attr]
    assert run.ask(TakeId(C, A, 2, run.code(2))).code == 2014  # the first one is 1
    assert run.ask(TakeId(C, A, 1, run.code(1))).code == 0
    again = run.decide(TakeId(C, A, 1, run.code(1)))
    assert (again.answer.code, again.events) == (0, ())
    refused = run.ask(TakeId(C, A, 1, run.code(2)))
    assert refused.code == 2014
    assert "taken by 10.0.0.1:10911" in str(refused.remark)
    assert run.group.address(1) == "10.0.0.1:10911"
    assert run.ask(NextId(C, A)).header.next_broker_id == 2  # type: ignore[union-attr]


def test_ids_beyond_the_next_are_refused() -> None:
    """RocketMQ gives 7 when 2 is next, and then nobody can join any more when 7 is next."""
    run = Run(1)
    assert run.ask(TakeId(C, A, 7, run.code(7))).code == 2014
    assert run.group.next_id == 2


def test_forgetting_all_that_are_in_sync_keeps_the_epochs() -> None:
    """RocketMQ then begins at 0 again, and brokers that know higher epochs refuse what they are told."""
    run = Run(2)
    run.elect(1)
    del run.alive[1]
    assert run.ask(Forget(group=A, ids="1")).code == 0
    assert run.mastership == (None, 1, set(), 2)
    assert run.ask(NextId(C, A)).header.next_broker_id == 3  # type: ignore[union-attr]
    assert run.ask(WhoIsMaster(A)).header.master_epoch == 1  # type: ignore[union-attr]
    assert run.elect(2).code == 2012
    assert run.elect(2, unclean=True).code == 0
    assert run.mastership == (2, 2, {2}, 3)


# --- registration -----------------------------------------------------------------------------


def test_a_broker_registers_and_hears_of_the_master() -> None:
    run = Run(2)
    assert run.ask(Register(C, A, 3, "x:1")).code == 2010
    assert run.ask(Register(C, "other", 1, "x:1")).code == 2010
    answer = run.ask(Register(C, A, 2, "10.0.0.2:10911"))
    assert (answer.code, answer.header.master_broker_id) == (0, None)  # type: ignore[union-attr]
    assert SyncStateSet.decode(answer.whole_body) == SyncStateSet()
    run.elect(1)
    answer = run.ask(Register(C, A, 2, "10.0.9.9:10911"))
    header: Any = answer.header
    assert (header.master_broker_id, header.master_address) == (1, "10.0.0.1:10911")
    assert (header.master_epoch, header.sync_state_set_epoch) == (1, 1)
    assert SyncStateSet.decode(answer.whole_body).sync_state_set == {1}
    assert run.group.address(2) == "10.0.9.9:10911"
    del run.alive[1]  # a master that does not live is not told
    assert run.ask(Register(C, A, 2, "10.0.9.9:10911")).header.master_broker_id is None  # type: ignore[union-attr]
    # The master itself, at another address: told with the new one when it is elected again.
    run.alive[1] = LastSign()
    run.ask(Register(C, A, 1, "10.1.1.1:1"))
    assert run.elect(1).header.master_address == "10.1.1.1:1"  # type: ignore[union-attr]
    assert run.ask(Register(C, A, 1, "x" * 300)).code == 2005


def test_a_master_that_starts_anew_does_not_go_on_in_its_epoch() -> None:
    run = Run(3)
    run.elect(1)
    assert run.mastership == (1, 1, {1}, 1)
    header: Any = run.ask(Register(C, A, 1, "10.0.0.1:10911")).header
    assert header.master_broker_id is None
    assert run.mastership == (None, 2, {1}, 1)  # it is elected when it asks, in an epoch of its own
    assert run.elect(1).code == 0
    assert run.mastership == (1, 3, {1}, 2)
    assert run.alter(1, 2, 3).code == 0
    run.alive = {1: LastSign(3, 150), 2: LastSign(3, 100), 3: LastSign(3, 200)}
    run.ask(Register(C, A, 1, "10.0.0.1:10911"))
    assert run.mastership == (None, 4, {1, 2, 3}, 3)
    run.ask(Register(C, A, 1, "10.0.0.1:10911"))  # no master: as ever
    assert run.elect(1).header.master_broker_id == 3  # type: ignore[union-attr]
    assert run.mastership == (3, 5, {3}, 4)


def test_after_a_power_failure_the_one_that_has_most_is_waited_for() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2, 3)
    run.settled = False
    run.alive = {1: LastSign(1, 100)}
    run.ask(Register(C, A, 1, "10.0.0.1:10911"))
    assert "[2, 3]" in str(run.elect(1).remark)
    run.alive[2] = LastSign()  # it has registered, and not said yet how much it has
    run.alive[3] = LastSign(1, 90)
    assert "[2]" in str(run.elect(1).remark)
    run.alive[2] = LastSign(1, 120)
    assert run.elect(1).header.master_broker_id == 2  # type: ignore[union-attr]


def test_one_name_is_one_group_in_all_clusters() -> None:
    run = Run(1)
    refused = run.ask(TakeId("Other", A, 2, run.code(2)))
    assert refused.code == 2014
    assert "belongs to cluster 'DefaultCluster'" in str(refused.remark)


@pytest.mark.parametrize("wrong", [("", A, "c;1"), (C, "", "c;1"), (C, A, ""), (C, "x" * 256, "c;1")])
def test_names_have_a_length(wrong: tuple[str, str, str]) -> None:
    cluster, name, code = wrong
    assert Run().ask(TakeId(cluster, name, 1, code)).code == 2014


def test_groups_and_replicas_are_bounded() -> None:
    run = Run()
    run.state = ControllerState({f"g{n}": ReplicaGroup(cluster=C, name=f"g{n}") for n in range(GROUPS_MAX)})
    assert "exceed the limit of" in str(run.ask(TakeId(C, A, 1, "c;1")).remark)
    run = Run(REPLICAS_MAX)
    assert "replicas, the limit" in str(run.ask(TakeId(C, A, REPLICAS_MAX + 1, "c;1")).remark)
    assert run.ask(TakeId(C, A, REPLICAS_MAX, run.code(REPLICAS_MAX))).code == 0  # again


# --- elections --------------------------------------------------------------------------------


def test_the_first_to_ask_is_the_first_master() -> None:
    run = Run(2)
    assert run.elect(3).code == 2010
    assert run.ask(Elect(group="other", id=1)).code == 2010
    answer = run.elect(2)
    header: Any = answer.header
    assert (answer.code, header.master_broker_id, header.master_address) == (0, 2, "10.0.0.2:10911")
    assert (header.master_epoch, header.sync_state_set_epoch) == (1, 1)
    assert answer.whole_body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{"1":"10.0.0.1:10911","2":"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"},"syncStateSet":[2]}'
    )
    answer = run.elect(1)  # the next one hears who it is
    header = answer.header
    assert (answer.code, header.master_broker_id, header.master_epoch) == (2011, 2, 1)
    assert answer.whole_body == b'{"syncStateSet":[2]}'
    assert ElectedMaster.decode(answer.whole_body).broker_member_group is None


def test_a_first_master_has_to_live() -> None:
    run = Run(2)
    del run.alive[1]
    assert run.elect(1).code == 2012
    assert run.mastership == (None, 0, set(), 0)


def test_who_has_most_of_the_log_is_elected() -> None:
    run = Run(5)
    run.elect(1)
    run.alter(1, 2, 3, 4, 5)
    del run.alive[1]
    run.alive[2] = LastSign(epoch=1, max_offset=100)
    run.alive[3] = LastSign(epoch=1, max_offset=100 + (3 << 30))  # a difference of more than 32 bits
    run.alive[4] = LastSign(epoch=1, max_offset=100 + (3 << 30), priority=5)
    run.alive[5] = LastSign(epoch=0, max_offset=1 << 40)
    assert run.elect().header.master_broker_id == 4  # type: ignore[union-attr]


def test_equals_are_told_apart_by_their_ids() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2, 3)
    del run.alive[1]
    run.alive[2] = run.alive[3] = LastSign(epoch=1, max_offset=7)
    assert run.elect().header.master_broker_id == 2  # type: ignore[union-attr]


def test_an_administrator_chooses_who_is_in_sync_and_alive() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2)
    assert run.elect(3, wanted=True).code == 2012
    answer = run.elect(1, wanted=True)
    assert (answer.code, answer.header.master_broker_id) == (2011, 1)  # type: ignore[union-attr]
    assert run.elect(2, wanted=True).code == 0
    assert run.mastership == (2, 2, {2}, 3)
    assert "enableElectUncleanMaster" in str(run.elect(3, wanted=True).remark)
    assert run.elect(3, wanted=True, unclean=True).code == 0
    assert run.mastership == (3, 3, {3}, 4)


def test_who_is_not_in_sync_is_elected_only_by_leave_and_only_for_want_of_others() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2)
    del run.alive[1]
    assert run.elect(3, unclean=True).header.master_broker_id == 2  # type: ignore[union-attr]
    del run.alive[2]
    assert run.elect(3).code == 2012
    assert run.elect(unclean=True).header.master_broker_id == 3  # type: ignore[union-attr]


def test_a_controller_that_has_just_started_does_not_judge() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2)
    run.settled = False
    run.alive = {2: LastSign()}
    for asked in (Elect(group=A), Elect(group=A, id=2)):
        refused = run.decide(asked)
        assert refused.answer.code in (2004, 2012)
        assert not refused.events
        assert "have not reported their log yet" in str(refused.answer.remark)
    assert run.ask(Forget(group=A, ids="3")).code == 2009
    run.alive = {2: LastSign(1, 0)}
    run.gone = frozenset({(A, 1)})  # it was heard, and lost
    assert run.elect().code == 0
    assert run.mastership == (2, 2, {2}, 3)


def test_an_administrator_does_not_wait_for_that() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2)
    run.settled = False
    run.alive = {2: LastSign()}
    assert run.elect(2, wanted=True).code == 0


# --- the in-sync set --------------------------------------------------------------------------


def test_the_in_sync_set_in_the_order_of_its_rules() -> None:
    run = Run(3)
    assert run.ask(
        ChangeInSync(group="other", master=1, master_epoch=1, in_sync=frozenset({1}), in_sync_epoch=1)
    ).code == 2013  # fmt: skip
    assert run.alter(1, 2).code == 2002  # nobody is master
    run.elect(1)
    assert run.alter(1, master=9, master_epoch=9).code == 2013  # unchanged comes first
    assert run.alter(1, 2, master=2, master_epoch=9).code == 2002
    assert run.alter(1, 2, master_epoch=9, in_sync_epoch=9).code == 2000
    assert run.alter(1, 9, in_sync_epoch=9).code == 2001
    assert run.alter(1, 9).code == 2003
    del run.alive[3]
    assert run.alter(1, 3).code == 2006
    assert run.alter(2).code == 2013  # without the master
    assert run.mastership == (1, 1, {1}, 1)
    answer = run.alter(1, 2)
    assert SyncStateSet.decode(answer.whole_body) == SyncStateSet(
        sync_state_set=frozenset({1, 2}), sync_state_set_epoch=2
    )
    assert run.mastership == (1, 1, {1, 2}, 2)


# --- looking and cleaning ---------------------------------------------------------------------


def test_what_brokers_and_tools_are_told() -> None:
    run = Run(2)
    assert run.ask(WhoIsMaster("other")).code == 2008
    run.elect(1)
    del run.alive[1]
    answer = run.ask(WhoIsMaster(A))
    header: Any = answer.header
    assert (header.master_broker_id, header.master_address, header.master_epoch) == (1, "10.0.0.1:10911", 1)
    assert SyncStateSet.decode(answer.whole_body).sync_state_set == {1}
    told = run.ask(DescribeGroups((A, "other"))).whole_body
    table = BrokerReplicasInfo.decode(told).replicas_info_table
    assert list(table) == [A]
    assert [(one.broker_id, one.alive) for one in table[A].in_sync_replicas] == [(1, False)]
    assert [(one.broker_id, one.alive) for one in table[A].not_in_sync_replicas] == [(2, True)]
    run.elect()
    told = run.ask(DescribeGroups((A,))).whole_body
    assert b"masterBrokerId" not in told
    assert b"masterAddress" not in told


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Forget(group="other"), "broker 'other' has no id"),
        (Forget(group=A), "has a master, 1"),
        (Forget(group=A, ids="x"), "expected numbers"),
        (Forget(group=A, ids="2;3"), r"\[2\] of broker 'broker-a' are alive"),
        (Forget(group=A, ids="9"), r"none of the replicas \[9\]"),
    ],
)
def test_what_is_not_forgotten(asked: Forget, why: str) -> None:
    run = Run(3)
    run.elect(1)
    del run.alive[3]
    refused = run.decide(asked)
    assert refused.answer.code == 2009
    assert not refused.events

    assert re.search(why, str(refused.answer.remark))


def test_what_is_forgotten() -> None:
    run = Run(3)
    run.elect(1)
    run.alter(1, 2, 3)
    del run.alive[3]
    assert run.ask(Forget(group=A, ids="3; ")).code == 0
    assert run.mastership == (1, 1, {1, 2}, 3)
    assert sorted(run.group.replicas) == [1, 2]
    assert run.ask(TakeId(C, A, 3, run.code(3))).code == 2014  # not given twice
    assert run.ask(Forget(group=A, ids="1", even_living=True)).code == 0
    assert not run.state.groups


def test_a_group_without_master_is_forgotten_when_nobody_of_it_lives() -> None:
    run = Run(2)
    assert "are alive" in str(run.ask(Forget(group=A)).remark)
    run.alive.clear()
    assert run.ask(Forget(group=A)).code == 0
    assert not run.state.groups


def test_an_event_of_a_group_that_is_gone_changes_nothing() -> None:
    run = Run(1)
    run.elect(1)
    before = run.state
    events = run.decide(Forget(group=A, even_living=True)).events
    gone = apply(before, events[0])
    assert apply(gone, events[0]) == gone
    given = IdGiven(A, C, 1, "x:1", "x:1;1")
    assert apply(before, given) == before
