"""Queues of messages: the vectors of Guava's consistent hash over Java's hash of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.proxy.queue_choice import QueueChoice, jump_hash


@pytest.mark.parametrize(
    ("group", "of_4", "of_8", "of_16"),
    [
        ("g1", 0, 6, 9),
        ("group-0", 1, 1, 1),
        ("order-1001", 2, 2, 2),
        ("用户", 3, 3, 10),
        ("polygenelubricants", 2, 2, 2),  # its hash in Java is the smallest number
    ],
)
def test_message_groups(group: str, of_4: int, of_8: int, of_16: int) -> None:
    choice = QueueChoice()
    found = [choice.choose(range(count), group, None) for count in (4, 8, 16)]
    assert found == [of_4, of_8, of_16]


@given(key=st.integers(-(2**31), 2**31 - 1), buckets=st.integers(1, 1000))
def test_a_key_moves_only_to_a_new_bucket(key: int, buckets: int) -> None:
    before, after = jump_hash(key, buckets), jump_hash(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def test_others_take_turns_and_priorities_have_queues() -> None:
    choice = QueueChoice()
    assert [choice.choose((3, 5, 7), "", None) for _ in range(6)] == [3, 5, 7, 3, 5, 7]
    assert [choice.choose((0, 1, 2), "", priority) for priority in (0, 2, 9)] == [0, 2, 2]
