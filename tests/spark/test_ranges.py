from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.client.messages import Queue
from kerolox.spark.source.ranges import TOGETHER_ROWS, Range, ranges, shares, split, tasks

QUEUES = [Queue("t", broker, number) for broker in ("a", "b") for number in range(4)]
BACKLOG = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 1000), max_size=8)
NAMES = st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 100), st.integers(1, 400)), max_size=6)


def test_nothing_lies_behind_the_end() -> None:
    one, two = QUEUES[:2]
    assert ranges({one: 5, two: 5}, {one: 5, two: 4}) == []
    assert ranges({one: 5}, {one: 7, two: 4}) == [Range(one, 5, 7)]


@given(NAMES, st.none() | st.integers(1, 20), st.none() | st.integers(1, 100))
@settings(max_examples=100)
def test_pieces_are_the_whole(
    given_: list[tuple[Queue, int, int]], pieces_min: int | None, rows_max: int | None
) -> None:
    whole = [Range(queue, start, start + count) for queue, start, count in given_]
    pieces = split(whole, pieces_min=pieces_min, rows_max=rows_max)

    def offsets(of: list[Range]) -> list[tuple[Queue, int]]:
        return [(each.queue, offset) for each in of for offset in range(each.start, each.end)]

    assert offsets(pieces) == offsets(whole)
    assert all(piece.count > 0 for piece in pieces)
    if rows_max is not None:
        assert all(piece.count <= rows_max for piece in pieces)
    if pieces_min is not None:
        assert len(pieces) >= min(pieces_min, len(offsets(whole)))
    if pieces_min is None and rows_max is None:
        assert pieces == whole


def test_long_ranges_are_cut_first() -> None:
    pieces = split([Range(QUEUES[0], 0, 90), Range(QUEUES[1], 0, 10)], pieces_min=4)
    assert [piece.count for piece in pieces] == [30, 30, 30, 10]
    assert [piece.count for piece in split([Range(QUEUES[0], 5, 30)], rows_max=10)] == [8, 8, 9]


@given(BACKLOG, st.integers(1, 2000), st.integers(0, 50))
@settings(max_examples=100)
def test_shares_keep_the_limit_and_use_it(backlog: dict[Queue, int], limit: int, turn: int) -> None:
    found = shares(backlog, limit, turn=turn)
    assert all(0 < found[queue] <= backlog[queue] for queue in found)
    total = sum(backlog.values())
    assert sum(found.values()) == min(limit, total)
    if limit >= sum(count > 0 for count in backlog.values()):
        assert set(found) == {queue for queue, count in backlog.items() if count}


@given(BACKLOG, st.integers(1, 100_000), st.lists(st.floats(1, 5000), min_size=8, max_size=8))
@settings(max_examples=100)
def test_shares_by_size(backlog: dict[Queue, int], limit: int, means: list[float]) -> None:
    sizes = dict(zip(QUEUES, means, strict=True))
    found = shares(backlog, limit, sizes=sizes)
    assert all(0 < found[queue] <= backlog[queue] for queue in found)
    assert bool(found) == any(backlog.values())
    used = sum(count * sizes[queue] for queue, count in found.items())
    assert used <= limit * 1.000001 or list(found.values()) == [1]


def test_more_queues_than_the_limit_take_turns() -> None:
    backlog = dict.fromkeys(QUEUES, 100)
    served = set()
    for turn in range(8):
        served |= set(shares(backlog, 3, turn=turn))
    assert served == set(QUEUES)


def test_short_ranges_are_read_by_one_task() -> None:
    short = [Range(queue, 5, 15) for queue in QUEUES[:3]]
    assert [task.parts for task in tasks(short)] == [tuple(short)]
    long = Range(QUEUES[1], 0, TOGETHER_ROWS + 1)
    assert [task.parts for task in tasks([short[0], long, short[2]])] == [(short[0],), (long,), (short[2],)]
    assert len(tasks(short, pieces_min=3)) == len(tasks(short, rows_max=10)) == 3
    assert tasks([]) == []
