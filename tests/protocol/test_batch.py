from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.batch import encode_batch, encode_batch_records, split_batch, unwrap
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.limits import BATCH_MESSAGE_COUNT_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_records, topic_field

HOST = host_bytes("10.0.0.1:10911")
ITEM = bytes.fromhex(
    "0000002f0000000000000000000000000000000568656c6c6f00145741495401747275650254414753015461674102"
)
ITEM_PARTS = (0, b"hello", b"WAIT\x01true\x02TAGS\x01TagA\x02")


def test_an_item_of_rocketmq() -> None:
    assert split_batch(ITEM) == [ITEM_PARTS]
    assert encode_batch([ITEM_PARTS]) == ITEM
    assert split_batch(ITEM * 3) == [ITEM_PARTS] * 3


def test_an_empty_batch_and_empty_items() -> None:
    assert split_batch(b"") == []
    assert encode_batch([]) == b""
    assert split_batch(encode_batch([(-1, b"", b"")])) == [(-1, b"", b"")]
    assert len(encode_batch([(0, b"", b"")])) == 22


def test_the_size_of_an_item_is_not_trusted() -> None:
    assert split_batch(b"\xff\xff\xff\xff" + ITEM[4:]) == [ITEM_PARTS]


def test_a_batch_cut_off_anywhere() -> None:
    for length in range(1, len(ITEM)):
        with pytest.raises(ProtocolError, match="message 1 of a batch") as caught:
            split_batch(ITEM + ITEM[:length])
        assert caught.value.at == len(ITEM)


@pytest.mark.parametrize(
    "damaged",
    [
        ITEM[:16] + b"\xff\xff\xff\xff" + ITEM[20:],
        ITEM[:16] + b"\x7f\xff\xff\xff" + ITEM[20:],
        ITEM[:25] + b"\x7f\xff" + ITEM[27:],
        ITEM[:25] + b"\x80\x00" + ITEM[27:] + bytes(40000),
    ],
)
def test_damage(damaged: bytes) -> None:
    with pytest.raises(ProtocolError, match="message 0 of a batch"):
        split_batch(damaged)


def test_too_many_messages() -> None:
    with pytest.raises(ProtocolError, match="BATCH_MESSAGE_COUNT_MAX"):
        split_batch(encode_batch([(0, b"", b"")]) * (BATCH_MESSAGE_COUNT_MAX + 1))


def test_what_does_not_fit_an_item() -> None:
    with pytest.raises(InvalidRequest, match="message 1 of the batch"):
        encode_batch([ITEM_PARTS, (0, b"", bytes(32768))])
    with pytest.raises(InvalidRequest, match="flag 2147483648"):
        encode_batch([(2**31, b"", b"")])


@settings(max_examples=100)
@given(st.binary(max_size=120))
def test_arbitrary_bytes_raise_protocol_errors_only(data: bytes) -> None:
    try:
        split_batch(data)
    except ProtocolError:
        pass


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)),
        max_size=5,
    )
)
def test_round_trip(items: list[tuple[int, bytes, bytes]]) -> None:
    assert split_batch(encode_batch(items)) == items


def test_records_of_a_batch_follow_each_other() -> None:
    items = [(1, b"one", b"UNIQ_KEY\x01A\x02"), (2, b"", b"UNIQ_KEY\x01B"), (3, b"three", b"")]
    records = encode_batch_records(
        items, 2, 7, 1000, 0x2, 11, HOST, 22, HOST, 1, topic_field("T"), b"CLUSTER\x01c\x02"
    )
    messages = decode_records(b"".join(records))
    assert [message.queue_offset for message in messages] == [7, 8, 9]
    assert [message.physical_offset for message in messages] == [
        1000,
        1000 + len(records[0]),
        1000 + len(records[0]) + len(records[1]),
    ]
    assert [message.flag for message in messages] == [1, 2, 3]
    assert [message.body for message in messages] == [b"one", b"", b"three"]
    assert [message.packed_properties for message in messages] == [
        b"UNIQ_KEY\x01A\x02CLUSTER\x01c\x02",
        b"UNIQ_KEY\x01B\x02CLUSTER\x01c\x02",
        b"CLUSTER\x01c\x02",
    ]
    for message in messages:
        assert (message.topic, message.queue_id, message.sys_flag, message.reconsume_times) == (
            "T",
            2,
            0x2,
            1,
        )
        assert (message.born_timestamp, message.store_timestamp, message.prepared_offset) == (11, 22, 0)


def test_without_batch_properties_an_item_keeps_its_own_untouched() -> None:
    (record,) = encode_batch_records(
        [(0, b"x", b"a\x01b")], 0, 0, 0, 0, 0, HOST, 0, HOST, 0, topic_field("T")
    )
    assert decode_records(record)[0].packed_properties == b"a\x01b"


def inner_batch(sys_flag: int, body: bytes) -> StoredMessage:
    return StoredMessage(
        topic="T",
        body=body,
        queue_id=3,
        queue_offset=100,
        physical_offset=4096,
        packed_properties=b"INNER_NUM\x012\x02",
        sys_flag=sys_flag,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=2,
        store_host=HOST,
        broker_name="b",
    )


def test_an_inner_batch_is_unwrapped() -> None:
    whole = inner_batch(
        0xC0, encode_batch([(1, b"one", b"UNIQ_KEY\x01A\x02"), (2, b"two", b"UNIQ_KEY\x01B\x02")])
    )
    first, second = unwrap(whole)
    assert (first.queue_offset, first.body, first.flag, first.unique_key) == (100, b"one", 1, "A")
    assert (second.queue_offset, second.body, second.flag, second.unique_key) == (101, b"two", 2, "B")
    for message in (first, second):
        assert (message.topic, message.queue_id, message.physical_offset) == ("T", 3, 4096)
        assert (message.born_timestamp, message.store_timestamp, message.broker_name) == (1, 2, "b")
        assert (message.born_host, message.store_host, message.sys_flag) == (HOST, HOST, 0xC0)


@pytest.mark.parametrize("sys_flag", [0, 0x40, 0x80])
def test_other_messages_are_not(sys_flag: int) -> None:
    message = inner_batch(sys_flag, ITEM)
    assert unwrap(message) == [message]


def test_a_damaged_inner_batch() -> None:
    with pytest.raises(ProtocolError):
        unwrap(inner_batch(0xC0, ITEM[:-1]))
