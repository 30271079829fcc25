"""From which broker of a name is read: what is decided, without any server."""

from __future__ import annotations

import pytest

from kerolox import PullOptions, PushOptions
from kerolox.client.calls.readers import (
    AVOID_FIRST_S,
    AVOID_MAX_S,
    FOLLOWER,
    LEADER,
    LEADER_ALONE,
    STUCK_MAX_S,
    Reader,
    Replica,
    in_order,
)
from kerolox.client.errors import OffsetGone
from kerolox.client.messages import Queue
from kerolox.errors import ConnectFailed, ConnectionLost, OptionError, RequestFailed, RequestTimeout
from kerolox.protocol.codes import ResponseCode

ALL = {0: "a", 1: "b", 2: "c"}
REFUSED = RequestFailed(ResponseCode.SYSTEM_BUSY, "no reads here", address="b", request="PULL_MESSAGE")


@pytest.mark.parametrize(
    ("members", "read_from", "suggested", "spread", "ids"),
    [
        (ALL, LEADER, 0, 0, [0, 1, 2]),
        (ALL, LEADER, 2, 0, [2, 0, 1]),
        (ALL, LEADER, 1, 0, [1, 2, 0]),
        ({0: "a", 2: "c"}, LEADER, 1, 0, [2, 0]),  # as RocketMQ's clients: the next one
        ({0: "a", 3: "d"}, LEADER, 1, 0, [0, 3]),
        ({1: "b", 2: "c"}, LEADER, 0, 0, [1, 2]),  # no leader: a follower
        (ALL, FOLLOWER, 0, 0, [1, 2, 0]),
        (ALL, FOLLOWER, 0, 3, [2, 1, 0]),
        ({0: "a"}, FOLLOWER, 0, 5, [0]),
        (ALL, LEADER_ALONE, 1, 0, [0]),
        ({1: "b"}, LEADER_ALONE, 0, 0, []),
        ({}, FOLLOWER, 0, 0, []),
    ],
)
def test_order(members: dict[int, str], read_from: str, suggested: int, spread: int, ids: list[int]) -> None:
    found = in_order(members, read_from, suggested=suggested, spread=spread)
    assert [replica.id for replica in found] == ids
    assert all(members[replica.id] == replica.address for replica in found)


def chosen(reader: Reader, now_s: float = 0.0) -> int:
    found = reader.choose(ALL, now_s)
    assert found is not None
    return found.id


def test_a_leader_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    reader = Reader()
    leader = Replica(0, "a")
    reader.failed(leader, ConnectFailed("a", "refused"), 0.0)
    assert chosen(reader, AVOID_FIRST_S - 0.1) == 1
    assert chosen(reader, AVOID_FIRST_S) == 0
    reader.failed(leader, RequestTimeout("a", "PULL_MESSAGE", 3), 10.0)
    assert chosen(reader, 10 + 2 * AVOID_FIRST_S - 0.1) == 1
    for _ in range(10):
        reader.failed(leader, ConnectFailed("a", "refused"), 20.0)
    assert chosen(reader, 20 + AVOID_MAX_S) == 0
    reader.answered(leader)
    reader.failed(leader, ConnectFailed("a", "refused"), 100.0)
    assert chosen(reader, 100 + AVOID_FIRST_S) == 0


def test_a_leader_that_was_away_and_is_back_is_asked_at_once() -> None:
    reader = Reader()
    reader.failed(Replica(0, "a"), ConnectFailed("a", "refused"), 0.0)
    assert chosen(reader) == 1
    assert reader.choose({1: "b", 2: "c"}, 0.0) == Replica(1, "b")
    assert chosen(reader) == 0


def test_what_a_leader_refuses_is_refused() -> None:
    reader = Reader()
    for error in (REFUSED, ConnectionLost("a", "closed"), OffsetGone(Queue("T", "a", 0), 5, 0, 3)):
        reader.failed(Replica(0, "a"), error, 0.0)
        assert chosen(reader) == 0


def test_what_a_follower_refuses_another_gives() -> None:
    reader = Reader(FOLLOWER)
    reader.failed(Replica(1, "b"), REFUSED, 0.0)
    assert chosen(reader) == 2
    reader.failed(Replica(2, "c"), OffsetGone(Queue("T", "a", 0), 5, 0, 3), 0.0)
    assert chosen(reader) == 0
    reader.failed(Replica(0, "a"), ConnectFailed("a", "refused"), 0.0)
    assert chosen(reader) == 1  # when all failed, the first again
    assert chosen(reader, AVOID_FIRST_S) == 1


def test_suggestions_are_followed_until_something_fails() -> None:
    reader = Reader()
    reader.answered(Replica(0, "a"), 1)
    assert chosen(reader) == 1
    reader.failed(Replica(1, "b"), ConnectionLost("b", "closed"), 0.0)
    assert chosen(reader) == 0


def test_one_that_is_stuck_is_asked_ever_more_rarely() -> None:
    reader = Reader(FOLLOWER)
    pauses = []
    for _ in range(8):
        reader.answered(Replica(1, "b"), stuck=True)
        pauses.append(reader.pause_s())
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-1] == STUCK_MAX_S
    reader.answered(Replica(1, "b"))
    assert reader.pause_s() == 0.05


def test_the_option_has_two_values() -> None:
    assert PushOptions().read_from == PullOptions().read_from == "leader"
    assert PullOptions(read_from="follower").read_from == "follower"
    for wrong in ("slave", LEADER_ALONE, "", None):
        with pytest.raises(OptionError, match='"leader" or "follower"'):
            PushOptions(read_from=wrong)  # type: ignore[arg-type]
