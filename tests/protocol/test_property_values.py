"""The properties a filter looks at, found compiled and not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.errors import ProtocolError
from kerolox.protocol import record
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import encode_message

CORE = load()
WAYS: list[Any] = [pytest.param(record._property_values, id="python")]
if CORE is not None:
    WAYS.append(pytest.param(CORE.property_values, id="compiled"))

pieces = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\1", b"\2", b"x", "ä".encode()]), max_size=14)


def packed(properties: bytes, **fields: Any) -> bytes:
    return encode_message(StoredMessage("orders", b"the body", 2, 7, 7000, properties, **fields))


@pytest.mark.parametrize("property_values", WAYS)
def test_the_last_value_that_is_one(property_values: Any) -> None:
    data = packed(b"a\x01old\x02b\x012\x02ba\x01x\x02a\x01new\x02b\x01\x02", born_host=bytes(20))
    there = b"before" + data + b"behind"
    assert property_values(there, 6, len(data), (b"a", b"b", b"c")) == b"new\x022\x02\x02"
    assert property_values(there, 6, len(data), ()) == b""
    wide = packed(b"a\x01\x01\x02", store_host=bytes(20), sys_flag=0x8)
    assert property_values(wide, 0, len(wide), (b"a",)) == b"\x01\x02"


@pytest.mark.skipif(CORE is None, reason="nothing is compiled here")
@settings(max_examples=200)
@given(pieces, st.sampled_from(["orders", "o" * 200]), st.booleans(), st.booleans())
def test_both_find_the_same(properties: list[bytes], topic: str, wide_born: bool, wide_store: bool) -> None:
    assert CORE is not None
    message = StoredMessage(
        topic,
        b"",
        0,
        0,
        0,
        b"".join(properties),
        born_host=bytes(20 if wide_born else 8),
        store_host=bytes(20 if wide_store else 8),
    )
    data = encode_message(message)
    for wanted in ((b"a",), (b"ab", b"a"), (b"x", "ä".encode(), b"b")):
        found = CORE.property_values(data, 0, len(data), wanted)
        assert found == record._property_values(data, 0, len(data), wanted)


@pytest.mark.skipif(CORE is None, reason="nothing is compiled here")
@settings(max_examples=200)
@given(st.integers(0, 130), st.binary(max_size=8), st.integers(0, 60))
def test_damage_is_no_answer_or_the_same(at: int, damage: bytes, cut: int) -> None:
    assert CORE is not None
    data = packed(b"a\x01x\x02b\x01y\x02")
    data = (data[:at] + damage + data[at + len(damage) :])[: len(data) - cut]
    found = CORE.property_values(data, 0, len(data), (b"a", b"b"))
    if found is not None:
        assert found == record._property_values(data, 0, len(data), (b"a", b"b"))


def test_what_does_not_lie_in_the_bytes() -> None:
    data = packed(b"a\x01x\x02")
    if CORE is not None:
        for at, size in ((1, len(data)), (-1, len(data)), (0, -1), (0, 90), (0, 0), (len(data) + 9, 1)):
            assert CORE.property_values(data, at, size, (b"a",)) is None
        assert CORE.property_values(data, 0, len(data), (b"a",) * 17) is None
        with pytest.raises(TypeError):
            CORE.property_values(data, 0, len(data), ("a",))
        with pytest.raises(TypeError):
            CORE.property_values(bytearray(data), 0, len(data), ())
    with pytest.raises(ProtocolError):
        record._property_values(data[:80], 0, 80, (b"a",))
