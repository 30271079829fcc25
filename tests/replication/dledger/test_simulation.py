"""Groups of our members under kills, partitions and loss, in virtual time: seeds by the hundred."""

from __future__ import annotations

import pytest

from .simulation import Simulation, run_virtual

SEEDS_PER_TEST = 10


@pytest.mark.parametrize("first", range(0, 60, SEEDS_PER_TEST))
@pytest.mark.parametrize(("members", "batch_push"), [(3, False), (5, True)])
def test_nothing_committed_is_lost_or_changed(members: int, batch_push: bool, first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            hasty = seed % 4 > 0  # many elections; the times of a real group leave room for few
            run_virtual(Simulation(seed, members, batch_push=batch_push, hasty=hasty).run(40))
        except BaseException as error:
            error.add_note(f"seed {seed}, {members} members")
            raise
