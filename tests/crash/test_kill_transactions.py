"""A few kills around transactions; ``make crash`` does hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .nursery import Nursery
from .transactions import Killer


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_transaction_ends_as_it_should_and_once(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    killer = Killer(nursery, tmp_path / "store", seed)
    killer.run(5)
    assert killer.tally.total == 5
    assert killer.tally.verifications
    assert killer.tally.transactions
