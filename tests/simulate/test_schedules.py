"""Whole clusters under faults: a handful of schedules, and faults in the product that they find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .faults import OF_BROKERS, OF_CONTROLLERS, OF_DISKS, OF_POWER, OF_STATE
from .mutants import MUTANTS, NEEDS, planted
from .schedule import run_schedule, seeds_with, shape_of

SEEDS_MAX = 400  # until a fault that was put in is found; most are by the first few

# Found by controllers alone, see test_elections.py.
OF_ELECTIONS = {"sets_are_not_fenced", "told_before_it_is_committed"}


@pytest.mark.parametrize("seed", range(5))
def test_nothing_acknowledged_is_lost_whatever_happens(seed: int) -> None:
    outcome = run_schedule(seed)
    assert not outcome.wrong, "\n".join(outcome.wrong)


def test_seeds_meet_every_kind_of_fault() -> None:
    met = {kind for seed in range(200) for kind in shape_of(seed).kinds}
    assert met == {*OF_CONTROLLERS, *OF_BROKERS, *OF_DISKS, *OF_POWER, *OF_STATE}


def test_a_seed_is_a_story() -> None:
    """In another process, with other hashes, too."""
    tell = (
        "import hashlib, re\n"
        "from tests.simulate.schedule import run_schedule\n"
        "told = '\\n'.join(run_schedule(1, trace=True).story)\n"
        "told = re.sub(r'kerolox-simulate-\\S+?/|seconds=\\S+', '', told)\n"
        "print(hashlib.sha256(told.encode()).hexdigest())"
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


def found_at(mutant: str) -> int | None:
    with planted(mutant):
        seeds = seeds_with(NEEDS.get(mutant), SEEDS_MAX)
        return next((seed for seed in seeds if run_schedule(seed).wrong), None)


def test_a_fault_that_was_put_in_is_found() -> None:
    assert found_at("out_of_the_set_before_it_is_agreed") is not None


@pytest.mark.long
@pytest.mark.parametrize("mutant", sorted(MUTANTS.keys() - OF_ELECTIONS))
def test_every_fault_that_was_put_in_is_found(mutant: str) -> None:
    assert found_at(mutant) is not None
