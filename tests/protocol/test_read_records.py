"""Records of a pull answer, read compiled and not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.errors import ProtocolError
from kerolox.protocol import record
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_records, encode_message

CORE = load()
WAYS: list[Any] = [pytest.param(record._read_records, id="python")]
if CORE is not None:
    WAYS.append(pytest.param(CORE.read_records, id="compiled"))

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
messages = st.builds(
    StoredMessage,
    topic=st.text(max_size=60) | st.just("orders") | st.just("o" * 200),
    body=st.binary(max_size=100),
    queue_id=int32,
    queue_offset=int64,
    physical_offset=int64,
    packed_properties=st.binary(max_size=60),
    flag=int32,
    sys_flag=int32,
    born_timestamp=int64,
    born_host=hosts | st.just(bytes(8)),
    store_timestamp=int64,
    store_host=hosts | st.just(bytes(8)),
    reconsume_times=int32,
    prepared_offset=int64,
)


def some(number: int, **fields: Any) -> StoredMessage:
    return StoredMessage(
        "orders", b"body %d" % number, 2, number, 1000 * number, b"TAGS\x01blue\x02", **fields
    )


@pytest.mark.parametrize("read_records", WAYS)
def test_messages_of_a_broker_and_their_flags(read_records: Any) -> None:
    data = encode_message(some(1, sys_flag=0x1)) + encode_message(some(2, sys_flag=0x8, born_host=bytes(20)))
    found, flags = read_records(b"before" + data, 6, StoredMessage, "broker-a")
    assert [message.body for message in found] == [b"body 1", b"body 2"]
    assert {message.broker_name for message in found} == {"broker-a"}
    assert flags == 0x1 | 0x8 | 0x10
    assert read_records(data, len(data), StoredMessage, "") == ([], 0)


@pytest.mark.parametrize("read_records", WAYS)
def test_one_that_is_none_makes_all_of_them_none(read_records: Any) -> None:
    whole = encode_message(some(1))
    assert read_records(whole + whole[:-1], 0, StoredMessage, "") is None
    assert read_records(whole, 1, StoredMessage, "") is None
    with pytest.raises(ProtocolError, match="cut off"):
        decode_records(whole + whole[:-1])


@pytest.mark.parametrize("read_records", WAYS)
def test_an_error_of_the_class_is_not_swallowed(read_records: Any) -> None:
    def make(*values: object) -> None:
        raise LookupError("no room")

    with pytest.raises(LookupError, match="no room"):
        read_records(encode_message(some(1)), 0, make, "")


@pytest.mark.skipif(CORE is None, reason="nothing is compiled here")
@settings(max_examples=100)
@given(st.lists(messages, max_size=4), st.integers(0, 400), st.binary(max_size=8), st.integers(0, 3))
def test_both_read_the_same(found: list[StoredMessage], at: int, damage: bytes, cut: int) -> None:
    assert CORE is not None
    data = b"".join(map(encode_message, found))
    for given_bytes in (
        data,
        data[: len(data) - cut],
        data[:at] + damage + data[at + len(damage) :],
        data[at:],
        damage,
    ):
        wanted = record._read_records(given_bytes, 0, StoredMessage, "b")
        assert CORE.read_records(given_bytes, 0, StoredMessage, "b") == wanted


@pytest.mark.skipif(CORE is None, reason="nothing is compiled here")
@settings(max_examples=100)
@given(
    st.sampled_from([b"", b"\0\0\0\x5b\xda\xa3\x20\xa7", b"\0\0\0\x80\xda\xa3\x20\xab"]),
    st.binary(max_size=200),
)
def test_both_survive_arbitrary_bytes(head: bytes, data: bytes) -> None:
    assert CORE is not None
    wanted = record._read_records(head + data, 0, StoredMessage, "")
    assert CORE.read_records(head + data, 0, StoredMessage, "") == wanted
