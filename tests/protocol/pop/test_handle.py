"""Handles of popped messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest
from kerolox.protocol.pop.handle import ORDER_QUEUE, Handle

LONGS = st.integers(-(2**63) + 1, 2**63 - 1)
EXAMPLE = "120 1794771855026 60000 3 0 broker-a 2 123"


def test_a_handle_of_rocketmq_is_read_and_written_alike() -> None:
    handle = Handle.parse(EXAMPLE)
    assert handle == Handle(120, 1794771855026, 60000, 3, "0", "broker-a", 2, 123)
    assert str(handle) == EXAMPLE


def test_further_fields_are_ignored() -> None:
    assert Handle.parse(f"{EXAMPLE} more fields") == Handle.parse(EXAMPLE)


def test_an_ordered_pop_has_its_own_revive_queue() -> None:
    assert Handle.parse(f"0 1 2 {ORDER_QUEUE} 0 b 0 0").revive_queue == 999


@given(
    st.tuples(
        LONGS, LONGS, LONGS, LONGS, st.sampled_from("012"), st.from_regex(r"[a-z-]+", fullmatch=True), LONGS,
        LONGS,
    ).map(Handle._make)
)  # fmt: skip
def test_every_handle_is_read_as_it_was_written(handle: Handle) -> None:
    assert Handle.parse(str(handle)) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "120 1794771855026 60000 3 0 broker-a 2",
        "x 1794771855026 60000 3 0 broker-a 2 123",
        "120 1794771855026 6.5 3 0 broker-a 2 123",
        "120 1794771855026 60000 3 0 broker-a 2 99999999999999999999",
        "120 1794771855026 60000 3 0 broker-a 2 9223372036854775808",
        "120 ١ 60000 3 0 broker-a 2 123",
        "120  1794771855026 60000 3 0 broker-a 2",
    ],
)
def test_a_text_that_is_no_handle_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Handle.parse(text)
