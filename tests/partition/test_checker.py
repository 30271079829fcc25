"""The checker finds what it is there to find: each history and each log here is wrong in one way."""

from __future__ import annotations

import pytest

from tests.rig.history import Send
from tests.rig.logs import Log
from tests.rig.test_checker import FIRST, LATE, OTHER_QUEUE, T, sent

from . import checker
from .checker import Relation, misnamed, relation
from .history import Alone, PairHistory


def history(*sends: Send) -> PairHistory:
    return PairHistory(list(sends))


def test_what_was_stored_may_go_only_with_its_leader() -> None:
    late = history(sent(OTHER_QUEUE, LATE))
    assert checker.lost(late, [], T) == ["FLUSH_SLAVE_TIMEOUT of ours b'three', queue 1 offset 0, is missing"]
    late.swapped_s = 12.0
    assert not checker.lost(late, [], T)
    acknowledged = history(sent(FIRST))
    acknowledged.swapped_s = 12.0
    assert checker.lost(acknowledged, [], T)
    assert not checker.lost(history(sent(FIRST, "SendFailed")), [], T)


@pytest.mark.parametrize(
    ("began_s", "ended_s", "wrong"), [(9, 12, 1), (10.5, 12, 0), (9, 10.5, 0), (9, 10, 0), (11, 12, 0)]
)
def test_acknowledged_while_nobody_could_confirm(began_s: float, ended_s: float, wrong: int) -> None:
    """Only what began and ended in that time."""
    one = history(sent(FIRST))
    one.alone.append(Alone(began_s, ended_s, "the follower was frozen"))
    assert len(checker.acknowledged_alone(one)) == wrong
    late = PairHistory([sent(FIRST, LATE)], one.alone)
    assert not checker.acknowledged_alone(late)


def test_a_follower_has_to_say_what_is() -> None:
    leader = Log(0, b"abcdef")
    same, longer, other, other_longer = (Log(0, data) for data in (b"abcd", b"abcdefg", b"abX", b"abXdefgh"))
    assert relation(leader, same) is Relation.PART
    assert relation(leader, longer) is Relation.AHEAD
    assert relation(leader, other) is relation(leader, other_longer) is Relation.DIFFERS
    assert not misnamed(leader, same, "COPYING")
    assert not misnamed(leader, longer, "LEADER_BEHIND")
    assert not misnamed(leader, other, "DIVERGED")
    assert not misnamed(leader, other_longer, "LEADER_BEHIND")
    (wrong,) = misnamed(leader, other, "COPYING")
    assert wrong == "the logs differ, and the follower says COPYING, not DIVERGED"
    assert misnamed(leader, same, "DIVERGED")
    assert misnamed(leader, longer, "COPYING")
    assert misnamed(leader, longer, "DIVERGED")
    assert misnamed(leader, other, "LEADER_BEHIND")
    assert checker.refused_without_reason(["DIVERGED"])
