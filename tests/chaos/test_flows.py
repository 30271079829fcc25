"""Two kills of a pipeline and one topic made anew; ``make chaos`` does dozens."""

from __future__ import annotations

from pathlib import Path

import pytest

from .flow_story import FlowStory, FlowTally


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(1200)
def test_every_message_is_in_one_table_and_a_new_topic_is_noticed(tmp_path: Path) -> None:
    tally = FlowTally()
    FlowStory(tmp_path / "story", 1, tally).run(kills=1, topics=2)
    assert tally.kills.total() == 2
    assert (tally.topics_made_anew, tally.noticed) == (1, 3)
    assert 0 < tally.bad_rows < tally.messages
