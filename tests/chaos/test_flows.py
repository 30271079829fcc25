"""Two kills of a pipeline and one topic made anew; ``make chaos`` does dozens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .flow_story import FlowStory, FlowTally, compare, notices
from .story import Violation


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("abb", "1 are missing and 0 too many"),
        ("abbcc", "0 are missing and 1 too many"),
        ("abcc", "1 are missing and 1 too many"),
    ],
)
def test_the_verdict_finds_what_is_missing_or_twice(found: str, said: str) -> None:
    expected = Counter([b"a", b"b", b"b", b"c"])
    compare("all", Counter([b"c", b"b", b"a", b"b"]), expected)
    with pytest.raises(Violation, match=said):
        compare("all", Counter(letter.encode() for letter in found), expected)


def test_every_flow_has_to_notice_by_itself() -> None:
    said = (
        "flow_failed flow=bad error='the topic was deleted and made anew'\n"
        "kerolox: flow good failed: offset 7 is not the one: the topic was deleted and made anew\n"
        "kerolox: flow bad failed: no broker answers\n"
    )
    assert notices(said, "good")
    assert not notices(said, "bad")
    assert not notices(said, "all")


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(1200)
def test_every_message_is_in_one_table_and_a_new_topic_is_noticed(tmp_path: Path) -> None:
    tally = FlowTally()
    FlowStory(tmp_path / "story", 1, tally).run(kills=1, topics=2)
    assert tally.kills.total() == 2
    assert (tally.topics_made_anew, tally.noticed) == (1, 3)
    assert 0 < tally.bad_rows < tally.messages
