"""Groups of our members under kills, partitions and loss, in virtual time; many seeds are ``long``."""

from __future__ import annotations

import pytest

from .simulation import Simulation, run_virtual

SEEDS_PER_TEST = 10


def play(seed: int, members: int) -> Simulation:
    """One seed, as both tests play it."""
    simulation = Simulation(
        seed,
        members,
        batch_push=seed % 2 == 0,
        hasty=seed % 4 > 0,  # many elections: the times of a real group leave room for few
        preferred=("n1",) if seed % 5 == 0 else (),
    )
    try:
        run_virtual(simulation.run(40))
    except BaseException as error:
        error.add_note(f"seed {seed}, {members} members")
        raise
    return simulation


@pytest.mark.parametrize("first", range(0, 30, SEEDS_PER_TEST))
@pytest.mark.parametrize("members", [3, 5])
def test_nothing_committed_is_lost_or_changed(members: int, first: int) -> None:
    played = [play(seed, members) for seed in range(first, first + SEEDS_PER_TEST)]
    assert sum(simulation.elections for simulation in played) > 5 * SEEDS_PER_TEST
    assert sum(node.ledger.truncations for one in played for node in one.nodes.values()) > SEEDS_PER_TEST


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 2000, 100))
@pytest.mark.parametrize("members", [3, 4, 5])
def test_nothing_committed_is_lost_or_changed_at_length(members: int, first: int) -> None:
    for seed in range(first, first + 100):
        play(seed, members)


def test_the_simulation_notices_a_member_that_forgets_its_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it checks can fail: seeds that pass say something."""
    from .simulation import SimNode

    start = SimNode.start

    def forgetful(self: SimNode) -> None:
        self.promise = self.promise._replace(voted_for=None)
        start(self)

    monkeypatch.setattr(SimNode, "start", forgetful)
    with pytest.raises(BaseException, match=r"two leaders in term|unhandled errors"):
        [run_virtual(Simulation(seed, 3, hasty=True).run(60)) for seed in range(1, 200, 4)]
