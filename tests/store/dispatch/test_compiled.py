"""What follows the log, compiled and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.protocol.java import index_hash, java_hash
from kerolox.protocol.record_scan import Entry
from kerolox.store.dispatch import entries as rule
from kerolox.store.dispatch import keys
from kerolox.store.queue.entry import SIMPLE

CORE = load()

RUNS: list[Any] = [pytest.param(rule._queue_runs, id="python")]
ITEMS: list[Any] = [pytest.param(keys._key_items, id="python")]
if CORE is not None:
    RUNS.append(pytest.param(CORE.queue_runs, id="compiled"))
    ITEMS.append(pytest.param(CORE.key_items, id="compiled"))

QueueRuns = Callable[[list[Entry], tuple[bytes, ...]], "list[rule.QueueRun] | None"]
KeyItems = Callable[[list[Entry]], list[tuple[int, int, int]]]


def entry(
    number: int, properties: bytes = b"", *, topic: bytes = b"T", queue_id: int = 0, sys_flag: int = 0
) -> Entry:
    return (100, 0, queue_id, number, 1000 + 100 * number, sys_flag, 77, topic, properties)


@pytest.mark.parametrize("queue_runs", RUNS)
def test_entries_of_each_queue_together(queue_runs: QueueRuns) -> None:
    tags = b"x\x01y\x02TAGS\x01blue\x02"
    entries = [entry(5, tags), entry(0, queue_id=1), entry(6, topic=b"U"), entry(6, b"TAGS\x01gr\xc3\xbcn")]
    assert queue_runs(entries, ()) == [
        (b"T", 0, 5, SIMPLE.pack(1500, 100, java_hash("blue")) + SIMPLE.pack(1600, 100, java_hash("grün"))),
        (b"T", 1, 0, SIMPLE.pack(1000, 100, 0)),
        (b"U", 0, 6, SIMPLE.pack(1600, 100, 0)),
    ]
    assert queue_runs([], ()) == []


@pytest.mark.parametrize("queue_runs", RUNS)
@pytest.mark.parametrize(
    "entries",
    [
        [entry(1), entry(3)],
        [entry(1), entry(1)],
        [entry(1, sys_flag=0x4)],
        [entry(1, sys_flag=0x80)],
        [entry(1, b"STOP\x01x\x02")],
        [entry(1, queue_id=number) for number in range(65)],
    ],
    ids=["gap", "again", "prepared", "inner batch", "stop word", "many queues"],
)
def test_what_needs_care_is_left(queue_runs: QueueRuns, entries: list[Entry]) -> None:
    assert queue_runs([entry(9, queue_id=1000), *entries], (b"NOT", b"STOP")) is None


@pytest.mark.parametrize("key_items", ITEMS)
def test_unique_key_and_keys(key_items: KeyItems) -> None:
    def code(topic: str, key: str) -> int:
        return index_hash(java_hash(f"{topic}#{key}"))

    unique = "7F000001162E18B4AAC28E2F6D2A0001"
    first = b"UNIQ_KEY\x01%b\x02" % unique.encode()
    entries = [
        entry(0, first),
        entry(1, first),
        entry(2, first + b"KEYS\x01a  b\x02"),
        entry(3, b"KEYS\x01\xe5\x95\x8a\xf0\x9f\x90\x8d\x02", topic=b"U"),
        entry(4, first, sys_flag=0xC),
        entry(5),
    ]
    assert key_items(entries) == [
        (code("T", unique), 1000, 77),
        (code("T", unique), 1100, 77),
        (code("T", unique), 1200, 77),
        (code("T", "a"), 1200, 77),
        (code("T", "b"), 1200, 77),
        (code("U", "啊🐍"), 1300, 77),
    ]


word = st.sampled_from(
    [b"UNIQ_KEY", b"TAGS", b"KEYS", b"K", b"7F000001162E18B4AAC28E2F6D2A0001", b" ", b"\xff", b""]
)
packed = st.lists(word | st.sampled_from([b"\x01", b"\x02"]) | st.binary(max_size=3), max_size=12).map(
    b"".join
)
entries = st.lists(
    st.tuples(
        packed, st.sampled_from([b"T", b"U", "ü".encode(), b"\xff"]), st.integers(0, 2), st.integers(0, 0x7FF)
    ),
    max_size=6,
).map(
    lambda rows: [
        entry(number, properties, topic=topic, queue_id=queue_id, sys_flag=sys_flag)
        for number, (properties, topic, queue_id, sys_flag) in enumerate(rows)
    ]
)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@settings(max_examples=100, deadline=None)
@given(entries)
def test_compiled_and_python_agree(given_entries: list[Entry]) -> None:
    assert CORE is not None
    assert CORE.key_items(given_entries) == keys._key_items(given_entries)
    plain = [(*one[:5], one[5] & 0x73B, *one[6:]) for one in given_entries]
    for some in (given_entries, plain):
        assert CORE.queue_runs(some, (b"K7",)) == rule._queue_runs(some, (b"K7",))


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@pytest.mark.parametrize("wrong", [None, [None], [()], [(0,) * 9], [(1 << 70, 0, 0, 0, 0, 0, 0, b"", b"")]])
def test_compiled_refuses_wrong_arguments(wrong: Any) -> None:
    assert CORE is not None
    with pytest.raises((TypeError, OverflowError)):
        CORE.key_items(wrong)
    with pytest.raises((TypeError, OverflowError)):
        CORE.queue_runs(wrong, ())
    with pytest.raises(TypeError):
        CORE.queue_runs([], ("text",))
