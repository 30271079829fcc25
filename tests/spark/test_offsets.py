from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.client.messages import Queue
from kerolox.errors import ProtocolError
from kerolox.spark.offsets import (
    QueueOffsets,
    StreamOffset,
    from_tree,
    in_namespace,
    is_marked,
    read_offsets,
    to_tree,
)
from kerolox.spark.source.stream import between

A0, A1, B0 = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1), Queue("t", "broker-b", 0)
QUEUES = st.builds(Queue, st.text(max_size=5), st.text(max_size=5), st.integers(0, 2**31 - 1))


@given(st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=8))
@settings(max_examples=100)
def test_places_travel_as_json(places: QueueOffsets) -> None:
    mark = StreamOffset("g", "host:1", places)
    text = json.dumps(mark.encode())
    assert StreamOffset.decode(json.loads(text)) == mark
    backwards = StreamOffset("g", "host:1", dict(reversed(places.items())))
    assert json.dumps(backwards.encode()) == text


def test_keys_are_sorted_by_number_and_name() -> None:
    tree = to_tree({Queue("t", "b", 10): 1, Queue("t", "b", 9): 2, Queue("s", "b", 0): 3})
    assert json.dumps(tree) == '{"s": {"b": {"0": 3}}, "t": {"b": {"9": 2, "10": 1}}}'


@pytest.mark.parametrize("word", ["earliest", "latest", "group", "Latest"])
def test_words(word: str) -> None:
    assert read_offsets(word) == word.lower()


def test_what_users_write() -> None:
    given_ = '{"t": {"broker-a": {"0": 23, "1": -1}, "broker-b": {"0": -2}}}'
    assert read_offsets(given_) == {A0: 23, A1: -1, B0: -2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("first", "^$"),
        ("23", "^$"),
        ("[1]", "^$"),
        ('{"t": 23}', "brokers of t: expected an object, found 23"),
        ('{"t": {"b": [1]}}', "queues of t/b"),
        ('{"t": {"b": {"x": 1}}}', "queue 'x' of t/b is no number"),
        ('{"t": {"b": {"0": "1"}}}', "offset '1' of t/b/0"),
        ('{"t": {"b": {"0": -3}}}', "offset -3"),
        ('{"t": {"b": {"0": true}}}', "offset True"),
        ('{"t": ', "Expecting value"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_offsets(text)


@pytest.mark.parametrize(
    "form", [{"fmt": "rmq1"}, {"fmt": "rmq1", "group": "g", "q": 3}, {"fmt": "rmq2"}, {}]
)
def test_offsets_of_something_else(form: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="no offset of the format rocketmq"):
        StreamOffset.decode(form)


def test_only_ours_are_marked() -> None:
    assert is_marked(StreamOffset("g", "").encode())
    assert not any(map(is_marked, ({}, None, [], "rmq1", {"fmt": "other"})))


def test_namespaces() -> None:
    assert in_namespace({A0: 1}, "ns") == {Queue("ns%t", "broker-a", 0): 1}
    assert in_namespace({A0: 1}, "") == {A0: 1}
    assert from_tree({}) == {}


# --- what a batch reads ------------------------------------------------------------------------------


def ranges(start: StreamOffset, end: StreamOffset) -> list[str]:
    return [repr(each) for each in between(start.encode(), end.encode())]


def test_from_the_end_of_the_batch_before() -> None:
    before, after = StreamOffset("g", "", {A0: 5, A1: 7}), StreamOffset("g", "", {A0: 9, A1: 7})
    assert ranges(before, after) == ["t/broker-a/0[5, 9)"]
    assert ranges(after, after) == ranges(after, before) == []


def test_the_end_tells_where_the_first_batch_began() -> None:
    end = StreamOffset("g", "", {A0: 9}, begins={A0: 5})
    for first in (0, 5, 9, 20):
        assert ranges(StreamOffset("g", "", {A0: first}, first=True), end) == ["t/broker-a/0[5, 9)"]


def test_new_queues_and_queues_made_again() -> None:
    start = StreamOffset("g", "", {A0: 50})
    end = StreamOffset("g", "", {A0: 4, B0: 3}, begins={A0: 0, B0: 1})
    assert ranges(start, end) == ["t/broker-a/0[0, 4)", "t/broker-b/0[1, 3)"]
    # What the batch before was told is not meant for the one after it.
    assert ranges(end, StreamOffset("g", "", {A0: 6, B0: 3})) == ["t/broker-a/0[4, 6)"]


def test_a_queue_that_nobody_began_is_not_read() -> None:
    assert ranges(StreamOffset("g", ""), StreamOffset("g", "", {A0: 9})) == []
