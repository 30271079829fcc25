from __future__ import annotations

import itertools
import random

import pytest

from kerolox import Queue
from kerolox.client.consume.allocation import (
    STRATEGIES,
    Strategy,
    average,
    circle,
    consistent_hash,
    fixed,
    machine_room,
    nearby,
    sticky,
)


def queues(count: int, broker: str = "broker-a", topic: str = "TopicTest") -> list[Queue]:
    return [Queue(topic, broker, number) for number in range(count)]


def shares(strategy: Strategy, all_queues: list[Queue], members: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(me, all_queues, members)] for me in members]


def test_average_gives_neighbours_and_the_first_one_more() -> None:
    assert shares(average, queues(8), ["a", "b", "c"]) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(average, queues(2), ["a", "b", "c"]) == [[0], [1], []]


def test_circle() -> None:
    assert shares(circle, queues(8), ["a", "b", "c"]) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_consistent_hash_agrees_with_rocketmq() -> None:
    """The owners RocketMQ's class gives for these names."""
    members = ["c1", "c2", "c3"]
    owners = {
        queue.queue_id: me for me in members for queue in consistent_hash(me, queues(8), members)
    }  # fmt: skip
    assert [owners[number] for number in range(8)] == ["c1", "c2", "c3", "c3", "c1", "c1", "c2", "c1"]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("count", "members"), [(0, 1), (1, 3), (8, 3), (16, 5), (7, 7), (100, 12)])
def test_every_queue_has_one_owner(name: str, count: int, members: int) -> None:
    people = [f"10.0.0.{number}@1234" for number in range(members)]
    given = [queue for me in people for queue in STRATEGIES[name](me, queues(count), people)]
    assert sorted(given) == queues(count)


@pytest.mark.parametrize("strategy", [average, circle, sticky])
def test_shares_are_even(strategy: Strategy) -> None:
    for count, members in itertools.product(range(1, 20), range(1, 8)):
        sizes = [len(share) for share in shares(strategy, queues(count), [f"m{n}" for n in range(members)])]
        assert max(sizes) - min(sizes) <= 1


def moved(strategy: Strategy, before: list[str], after: list[str]) -> int:
    """Queues that change hands though their owner stays."""
    old = {queue: me for me in before for queue in strategy(me, queues(64), before)}
    new = {queue: me for me in after for queue in strategy(me, queues(64), after)}
    return sum(old[queue] != new[queue] for queue in queues(64) if old[queue] in after)


def test_sticky_moves_less_than_average_when_one_leaves() -> None:
    rng = random.Random(1)
    members = [f"m{number}" for number in range(8)]
    for _ in range(10):
        rest = sorted(set(members) - {rng.choice(members)})
        assert moved(sticky, members, rest) < moved(average, members, rest) / 2


def test_fixed_and_machine_rooms() -> None:
    chosen = queues(2)
    assert fixed(chosen)("me", queues(8), ["me", "you"]) == chosen
    all_queues = [*queues(3, "north@a"), *queues(2, "south@b"), *queues(2, "plain")]
    assert shares(machine_room(["north"]), all_queues, ["a", "b"]) == [[0, 2], [1]]


def test_nearby_shares_rooms_without_members_among_all() -> None:
    all_queues = sorted([*queues(2, "north"), *queues(2, "south"), *queues(2, "west")])
    strategy = nearby(lambda queue: queue.broker, lambda member: member.partition("-")[0])
    members = ["north-1", "south-1"]
    got = {me: strategy(me, all_queues, members) for me in members}
    assert [queue.broker for queue in got["north-1"]] == ["north", "north", "west"]
    assert [queue.broker for queue in got["south-1"]] == ["south", "south", "west"]
