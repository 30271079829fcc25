"""A few kills around transactions; ``make crash`` does hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .nursery import Nursery
from .transactions import Killer


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_transaction_ends_as_it_should_and_once(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    killer = Killer(nursery, tmp_path / "store", seed)
    killer.run(5)
    while not killer.acknowledged:  # all came before the first acknowledgement
        killer.run(1)
    assert killer.tally.total >= 5
    assert killer.tally.verifications
