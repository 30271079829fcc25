"""Division of queues by the broker: RocketMQ's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.pop.assignment import popped, pulled, queues_of
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.routes import QueueData, TopicRoute

QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(4)]


def names(queues: list[MessageQueue] | None) -> list[str]:
    assert queues is not None
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_all_readable_queues_of_all_brokers_are_divided() -> None:
    route = TopicRoute(
        queue_datas=(
            QueueData(broker_name="b", perm=6, read_queue_nums=2, write_queue_nums=4),
            QueueData(broker_name="a", perm=4, read_queue_nums=1),
            QueueData(broker_name="c", perm=2, read_queue_nums=8),
        )
    )
    assert names(queues_of("T", route)) == ["a0", "b0", "b1"]


def test_pulled_queues_are_those_of_the_strategy() -> None:
    members = ["x", "y", "z"]
    assert names(pulled("AVG", "x", QUEUES, members)) == ["a0", "a1", "a2"]
    assert names(pulled("AVG_BY_CIRCLE", "y", QUEUES, members)) == ["a1", "b0", "b3"]
    assert pulled("AVG", "stranger", QUEUES, members) == []
    assert pulled("MACHINE_ROOM", "x", QUEUES, members) is None


@pytest.mark.parametrize("share", [-1, 0, 2, 3])
def test_members_that_share_everything_pop_all_queues_of_each_broker(share: int) -> None:
    assert names(popped("AVG", "x", QUEUES, ["x", "y", "z"], share)) == ["a-1", "b-1"]


def test_members_pop_their_queues_and_those_of_the_next_ones() -> None:
    members = ["w", "x", "y", "z"]
    assert names(popped("AVG", "x", QUEUES, members, 1)) == ["a2", "a3", "b0", "b1"]
    assert names(popped("AVG", "z", QUEUES, members, 1)) == ["b2", "b3", "a0", "a1"]


def test_more_members_than_queues_have_one_queue_each() -> None:
    members = [f"m{number:02}" for number in range(10)]
    assert names(popped("AVG", "m00", QUEUES, members, 1)) == ["a0"]
    assert names(popped("AVG", "m09", QUEUES, members, 1)) == ["a1"]


def test_an_unknown_strategy_divides_nothing() -> None:
    assert popped("OTHER", "x", QUEUES, ["x"], 0) is None


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.sampled_from(["AVG", "AVG_BY_CIRCLE"]))
def test_every_queue_is_popped(queues: int, members: int, share: int, strategy: str) -> None:
    all_queues = [MessageQueue("T", "a", number) for number in range(queues)]
    names_of = [f"m{number:02}" for number in range(members)]
    found = {queue for me in names_of for queue in popped(strategy, me, all_queues, names_of, share) or ()}
    assert found in ({MessageQueue("T", "a", -1)}, set(all_queues))
