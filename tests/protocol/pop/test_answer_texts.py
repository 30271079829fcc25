"""The three strings of a POP answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol.pop.answer_texts import (
    QueueOffsets,
    message_offset_text,
    order_count_text,
    read_message_offsets,
    read_order_counts,
    read_start_offsets,
    start_offset_text,
)

QUEUES = st.dictionaries(
    st.tuples(st.sampled_from("012"), st.integers(0, 1000)),
    st.sets(st.integers(0, 2**62), min_size=1, max_size=32).map(sorted),
    max_size=5,
)


def test_texts_are_those_of_rocketmq() -> None:
    queues = [QueueOffsets("0", 2, 120, [120, 123, 124]), QueueOffsets("1", 0, 7, [7])]
    assert start_offset_text(queues) == "0 2 120;1 0 7"
    assert message_offset_text(queues) == "0 2 120,123,124;1 0 7"
    assert order_count_text("0", 2, [120, 121], {120: 1, 121: 1}) == "0 qo2%120 1;0 qo2%121 1;0 2 1"
    assert order_count_text("0", 2, [120, 121], {120: 3}) == "0 qo2%120 3;0 2 0"


def test_nothing_found_is_an_empty_text() -> None:
    assert start_offset_text([]) == message_offset_text([]) == ""
    assert read_start_offsets("") == read_message_offsets(None) == {}


@given(QUEUES)
def test_texts_are_read_as_they_were_written(queues: dict[tuple[str, int], list[int]]) -> None:
    written = [
        QueueOffsets(retry, queue, min(offsets), offsets) for (retry, queue), offsets in queues.items()
    ]
    found = {(retry, str(queue)): offsets for (retry, queue), offsets in queues.items()}
    assert read_message_offsets(message_offset_text(written)) == found
    assert read_start_offsets(start_offset_text(written)) == {key: min(value) for key, value in found.items()}


@given(
    st.lists(st.integers(0, 100), min_size=1, unique=True),
    st.dictionaries(st.integers(0, 100), st.integers(0, 9)),
)
def test_counts_are_read_as_they_were_written(offsets: list[int], counts: dict[int, int]) -> None:
    found = read_order_counts(order_count_text("0", 5, offsets, counts))
    assert {key: value for key, value in found.items() if key[1] != "5"} == {
        ("0", f"qo5%{offset}"): counts[offset] for offset in offsets if counts.get(offset)
    }
    assert found["0", "5"] == min(counts.get(offset, 0) for offset in offsets)


@pytest.mark.parametrize("text", ["0 1", "0 1 2 3", "0 1 2;0 1 3", "0 1 x", "0 1 -2", ";"])
def test_a_text_that_java_would_reject_is_rejected(text: str) -> None:
    with pytest.raises(ProtocolError):
        read_start_offsets(text)
