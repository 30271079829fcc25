"""Controllers under faults; and the same seed is the same story."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from kerolox.controller.state import RegisteredReplica, ReplicaGroup

from .elections import judge, run_elections
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


@pytest.mark.parametrize("seed", range(12))
def test_epochs_grow_and_each_has_one_master(seed: int) -> None:
    found = run_elections(seed)
    assert not found.wrong, "\n".join(found.wrong)


def test_a_seed_is_a_story() -> None:
    """In another process, with other hashes, too: or a failing seed could not be played again."""
    tell = (
        "from tests.simulate.elections import run_elections\n"
        "import hashlib\n"
        "print(hashlib.sha256('\\n'.join(run_elections(7, trace=True).story).encode()).hexdigest())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", tell],
            env=dict(os.environ, PYTHONHASHSEED=str(number)),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (1, 2)
    }
    assert len(told) == 1


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
