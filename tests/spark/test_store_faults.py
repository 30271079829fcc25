"""Which records are none: the compiled way and its twin find the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import CORE
from kerolox.protocol.record import encode_record, topic_field
from kerolox.spark.store.faults import _record_faults, faults, record_faults

pytestmark = pytest.mark.skipif(CORE is None, reason="the core is not compiled")

records = st.builds(
    lambda body, topic, packed, born, store: (body, topic_field(topic), packed, born, store),
    st.binary(max_size=30), st.sampled_from([b"orders", b"", b"long" * 40]), st.binary(max_size=30),
    st.sampled_from([bytes(8), bytes(20)]), st.sampled_from([bytes(8), bytes(20)]),
)  # fmt: skip


def laid_out(made: list[tuple[bytes, bytes, bytes, bytes, bytes]], base: int) -> tuple[bytearray, list[int]]:
    block, positions = bytearray(), []
    for body, topic, packed, born, store in made:
        positions.append(len(block))
        place = base + len(block)
        block += encode_record(0, 0, 0, place, 0, 0, born, 0, store, 0, 0, body, topic, packed)
    return block, positions


@settings(max_examples=150, deadline=None)
@given(
    st.lists(records, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-200, 200)), max_size=2),
    st.integers(0, 1 << 40),
)
def test_both_find_the_same(
    made: list[tuple[bytes, bytes, bytes, bytes, bytes]],
    changes: list[tuple[int, int]],
    other_sizes: list[tuple[int, int]],
    base: int,
) -> None:
    block, found = laid_out(made, base)
    positions = np.array(found, np.int64)
    sizes = np.diff(positions, append=len(block))
    places = positions + base
    assert not faults(bytes(block), positions, sizes, places, check_bodies=True).any()
    for place, value in changes:
        block[place % len(block)] = value
    for number, more in other_sizes:
        sizes[number % len(sizes)] += more
    for check_bodies in (False, True):
        given_ = (memoryview(block), positions, sizes, places, check_bodies)
        assert record_faults(*given_) == _record_faults(*given_)


def test_places_outside_of_the_block_and_wrong_arrays() -> None:
    block, _ = laid_out([(b"body", topic_field("t"), b"", bytes(8), bytes(8))], 0)
    positions = np.array([0, -1, 1, len(block), 1 << 62, -(1 << 63)])
    sizes = np.full(len(positions), len(block))
    expected = [False, True, True, True, True, True]
    assert faults(bytes(block), positions, sizes, positions, check_bodies=True).tolist() == expected
    assert [*map(bool, _record_faults(bytes(block), positions, sizes, positions, True))] == expected
    with pytest.raises(ValueError, match="as many sizes and places"):
        record_faults(bytes(block), positions, sizes[:1], positions, False)
