"""A few losses of power; ``make crash`` has a hundred seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .power import PowerCut


@pytest.mark.parametrize("seed", [1001, 1002, 1003, 1004])
async def test_nothing_acknowledged_is_lost_with_the_power(tmp_path: Path, seed: int) -> None:
    cut = PowerCut(tmp_path / "store", seed)
    losses = 4
    await cut.run(losses)
    while not cut.acked:  # all of them came before the first acknowledgement
        losses += 1
        await cut.run(losses)


@pytest.mark.parametrize("seed", [1001, 1002])
async def test_a_store_opens_whatever_the_disk_kept(tmp_path: Path, seed: int) -> None:
    cut = PowerCut(tmp_path / "store", seed, "async")
    await cut.run(4)  # raises unless it opens and agrees with itself
