"""Controllers under faults; and controllers that are broken."""

from __future__ import annotations

import msgspec
import pytest

from kerolox.controller.state import RegisteredReplica, ReplicaGroup

from .elections import judge, run_elections
from .mutants import planted
from .standins import GROUP, Heard

REPLICAS = {id: RegisteredReplica(f"10.0.0.{id}:10911", "") for id in (1, 2, 3)}
FIRST = ReplicaGroup(
    cluster="C",
    name=GROUP,
    next_id=4,
    replicas=REPLICAS,
    master=1,
    master_epoch=1,
    in_sync=frozenset({1, 2}),
    in_sync_epoch=2,
)


@pytest.mark.parametrize("seed", range(8))
def test_epochs_grow_and_each_has_one_master(seed: int) -> None:
    found = run_elections(seed)
    assert not found.wrong, "\n".join(found.wrong)


@pytest.mark.parametrize("mutant", ["anybody_is_elected", "told_before_it_is_committed"])
def test_a_controller_that_is_broken_is_found(mutant: str) -> None:
    with planted(mutant):
        assert any(run_elections(seed).wrong for seed in range(100))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"master": 3, "master_epoch": 2, "in_sync": frozenset({3}), "in_sync_epoch": 3}, "3 was elected"),
        ({"master": 2, "in_sync": frozenset({2}), "in_sync_epoch": 3}, "epoch 1 had master 1 and has 2"),
        ({"master_epoch": 0}, "the master's epoch went from 1 to 0"),
        ({"in_sync": frozenset({1, 3})}, "the set 2 was {1, 2} and is {1, 3}"),
        ({"in_sync": frozenset({2}), "in_sync_epoch": 3}, "master 1 is not in sync"),
    ],
)
def test_the_judge_finds(changes: dict[str, object], words: str) -> None:
    after = msgspec.structs.replace(FIRST, **changes)
    wrong = judge([FIRST, after], Heard())
    assert any(words in one for one in wrong), wrong


def test_the_judge_finds_what_brokers_were_told_and_is_not_so() -> None:
    assert judge([FIRST], Heard(masters=[(1, 1)], altered=[(1, 1, frozenset({1, 2}), 2)])) == []
    assert judge([FIRST], Heard(masters=[(1, 2)]))
    assert judge([FIRST], Heard(altered=[(1, 1, frozenset({1}), 3)]))
