"""Three kills of a streaming query and of who leads its brokers; ``make chaos`` does dozens."""

from __future__ import annotations

from pathlib import Path

import pytest

from .story import Story, Tally


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_every_order_is_counted_once(tmp_path: Path) -> None:
    tally = Tally()
    root, once = tmp_path / "story", "effectively-once"
    story = Story(root, 1, master="local[2,4]", guarantee=once, tally=tally, elected=True)
    story.run(["task", "broker", "driver"])
    assert sum(tally.kills.values()) == 3
    assert tally.orders
    assert tally.windows
    assert tally.totals_twice == 0
