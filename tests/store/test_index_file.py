"""Entering items into the slots of an index file, compiled and not."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.store.index.index_file import ENTRY, IndexItem, _index_entries

CORE = load()
Enter = Callable[[list[IndexItem], "array[int]", int, int], tuple[bytes, int, set[int]]]
WAYS: list[Any] = [pytest.param(_index_entries, id="python")]
if CORE is not None:
    WAYS.append(pytest.param(CORE.index_entries, id="compiled"))


@pytest.mark.parametrize("enter", WAYS)
def test_entries_are_chained_by_slot(enter: Enter) -> None:
    table = array("i", [0] * 5000)
    table[7] = 3
    items = [(7, 100, 9_000), (4999, 200, 10_000), (5007, 300, 12_999), (8, 400, 0)]
    packed, used, pages = enter(items, table, 10, 9_000)
    assert list(ENTRY.iter_unpack(packed)) == [
        (7, 100, 0, 3),
        (4999, 200, 1, 0),
        (5007, 300, 3, 10),
        (8, 400, 0, 0),
    ]
    assert (used, pages) == (2, {0, 4})
    assert (table[7], table[8], table[4999]) == (12, 13, 11)
    assert enter([], table, 14, 9_000) == (b"", 0, set())


@pytest.mark.parametrize("enter", WAYS)
def test_slots_and_times_that_cannot_be(enter: Enter) -> None:
    table = array("i", [-5, 99, 4, 0])
    items = [(0, 1, 1 << 60), (1, 2, -5), (2, 3, 5)]
    packed, used, _ = enter(items, table, 5, 1)
    assert [entry[2:] for entry in ENTRY.iter_unpack(packed)] == [(2**31 - 1, 0), (0, 0), (0, 4)]
    assert used == 0
    assert [entry[2] for entry in ENTRY.iter_unpack(enter([(3, 1, 5000)], table, 8, 0)[0])] == [0]


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 1 << 43)),
        max_size=30,
    ),
    st.lists(st.integers(-3, 40), min_size=1, max_size=20),
    st.integers(1, 30),
    st.integers(-1, 1 << 42),
)
def test_compiled_and_python_agree(
    items: list[IndexItem], slots: list[int], count: int, begin_ms: int
) -> None:
    assert CORE is not None
    one, other = array("i", slots), array("i", slots)
    assert CORE.index_entries(items, one, count, begin_ms) == _index_entries(items, other, count, begin_ms)
    assert one == other


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@pytest.mark.parametrize("item", [None, (), (1, 2), (1 << 40, 1, 1), (1, 1 << 70, 1), ("a", 1, 1)])
def test_compiled_changes_nothing_when_it_fails(item: Any) -> None:
    assert CORE is not None
    table = array("i", [0] * 4)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        CORE.index_entries([(1, 1, 1), item], table, 1, 1)
    assert table == array("i", [0] * 4)
    for arguments in (
        (),
        ([], table, 1),
        ([], b"read only", 1, 1),
        ([], array("i"), 1, 1),
        ([], table, 2**31, 1),
    ):
        with pytest.raises((TypeError, ValueError, BufferError)):
            CORE.index_entries(*arguments)
