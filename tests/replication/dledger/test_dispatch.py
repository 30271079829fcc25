"""What a leader sends next, and what it believes a follower has."""

from __future__ import annotations

import pytest

from kerolox.protocol.bodies.dledger import PushAnswer
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.replication.dledger.commit import committed
from kerolox.replication.dledger.dispatch import (
    BATCH_BYTES,
    DispatchFailed,
    Quota,
    Stage,
    Step,
    Window,
    after_compare,
    batches,
    first_step,
)


def entries(first: int, count: int, size: int = 10) -> list[LedgerEntry]:
    return [LedgerEntry(index, 1, index * (48 + size), b"x" * size) for index in range(first, first + count)]


@pytest.mark.parametrize(
    ("compared", "code", "low", "high", "step"),
    [
        (20, 200, 0, 20, Step(Stage.APPEND, 21)),
        (20, 200, 0, 25, Step(Stage.TRUNCATE, 20)),
        (20, 406, 0, 15, Step(Stage.COMPARE, 15)),  # it is shorter
        (20, 406, 0, 20, Step(Stage.COMPARE, 19)),  # it is another one
        (20, 406, 0, 30, Step(Stage.COMPARE, 19)),
        (20, 406, -1, -1, Step(Stage.TRUNCATE, 10)),  # it has nothing
        (20, 406, 0, 9, Step(Stage.TRUNCATE, 10)),  # it ends before this log begins
        (20, 406, 31, 40, Step(Stage.TRUNCATE, 10)),  # it begins behind this log
        (12, 406, 13, 40, Step(Stage.TRUNCATE, 10)),
        (10, 406, 0, 20, Step(Stage.TRUNCATE, 10)),  # nothing lower is left
    ],
)
def test_comparing(compared: int, code: int, low: int, high: int, step: Step) -> None:
    answer = PushAnswer(code=code, begin_index=low, end_index=high)
    assert after_compare(compared, begin=10, end=30, answer=answer) == step


def test_comparing_begins_anew_after_other_answers() -> None:
    with pytest.raises(DispatchFailed, match="405"):
        after_compare(20, 10, 30, PushAnswer(code=405))
    assert first_step(-1) is None
    assert first_step(7) == Step(Stage.COMPARE, 7)


def test_the_window_knows_what_is_on_its_way() -> None:
    window = Window(5, requests_max=3)
    assert (window.acked, window.next_index, window.room) == (4, 5, 3)
    window.sent(entries(5, 1), 100.0)
    window.sent(entries(6, 2), 100.2)
    assert (window.next_index, window.room, len(window)) == (8, 1, 2)
    assert window.overdue(100.9, 1.0) is None
    assert window.overdue(101.0, 1.0) == (5, 5)
    assert window.answered(5, 1)
    assert window.acked == 5
    assert window.overdue(101.2, 1.0) == (6, 7)
    window.sent(entries(6, 2), 101.2)  # again
    assert (len(window), window.next_index) == (1, 8)
    assert window.answered(6, 2)
    assert (window.acked, len(window)) == (7, 0)
    assert not window.answered(6, 2)  # the first one, late
    assert not window.answered(5, 1)


def test_an_answer_to_a_later_request_answers_those_before() -> None:
    window = Window(0, requests_max=10)
    for index in range(4):
        window.sent(entries(index, 1), 100.0)
    assert window.answered(2, 1)
    assert (window.acked, len(window)) == (2, 1)


def test_a_follower_is_not_believed_to_have_what_it_was_not_sent() -> None:
    window = Window(0, requests_max=10)
    window.sent(entries(0, 1), 100.0)
    with pytest.raises(DispatchFailed, match="of which it was sent none"):
        window.answered(1, 1)
    with pytest.raises(DispatchFailed, match="of which it was sent none"):
        window.answered(0, 100)


def test_many_bytes_on_their_way_leave_no_room() -> None:
    window = Window(0, requests_max=1000)
    window.sent(entries(0, 10, size=4 << 20), 100.0)
    assert window.room == 0


def test_batches() -> None:
    assert [len(cut) for cut in batches(entries(0, 3), many=False)] == [1, 1, 1]
    assert [len(cut) for cut in batches(entries(0, 3), many=True)] == [3]
    big = batches(entries(0, 5, size=BATCH_BYTES // 2), many=True)
    assert [len(cut) for cut in big] == [2, 2, 1]
    assert [entry.index for cut in big for entry in cut] == list(range(5))


def test_the_quota_is_per_second() -> None:
    quota = Quota(1000)
    assert quota.take(600, 10.0) == 0
    assert quota.take(600, 10.1) == 0
    assert quota.take(600, 10.2) == pytest.approx(0.8)
    assert quota.take(600, 11.0) == 0


@pytest.mark.parametrize(
    ("marks", "first_own", "known", "index"),
    [
        ((10, 10, 3), 5, 2, 10),
        ((10, 3, 3), 5, 2, 2),  # entries of earlier terms only: not by counting
        ((10, 4, 4), 5, 4, 4),
        ((10, 5, 3), 5, 2, 5),
        ((10, -1, -1), 5, 2, 2),
        ((10, 9, 8, 7, 6), 0, 2, 8),
        ((10,), 0, 2, 10),
        ((10, 10), 0, 2, 10),
        ((10, 3), 0, 2, 3),  # two members: both are needed
        ((3, 3, 3), 0, 7, 7),  # never falls
    ],
)
def test_what_is_committed(marks: tuple[int, ...], first_own: int, known: int, index: int) -> None:
    assert committed(marks, first_own, known) == index
