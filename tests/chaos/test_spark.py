"""Three kills of a streaming query and its broker; ``make chaos`` does dozens, executors too."""

from __future__ import annotations

from pathlib import Path

import pytest

from .story import Story, Tally


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_every_order_is_counted_once(tmp_path: Path) -> None:
    tally = Tally()
    story = Story(tmp_path / "story", 1, master="local[2,4]", guarantee="effectively-once", tally=tally)
    story.run(["task", "broker", "driver"])
    assert sum(tally.kills.values()) == 3
    assert tally.orders
    assert tally.windows
    assert tally.totals_twice == 0
