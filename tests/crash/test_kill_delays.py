"""A few kills around delay levels; ``make crash`` does hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .delays import Killer
from .nursery import Nursery
from .verify import Violation


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_parked_comes_and_only_one_write_of_it_twice(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    killer = Killer(nursery, tmp_path / "store", seed)
    killer.run(4)
    while not killer.acknowledged:  # all came before the first acknowledgement
        killer.run(1)
    assert killer.tally.total >= 4
    assert killer.tally.verifications


def test_the_judge_notices_a_lost_message(nursery: Nursery, tmp_path: Path) -> None:
    killer = Killer(nursery, tmp_path / "store", 7)
    while not killer.acknowledged:
        killer.kill_one()
    killer.acknowledged.add(12345)
    with pytest.raises(Violation, match=r"did not come, \[12345\]"):
        killer.verify()
