from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    body_crc_ok,
    decode_each,
    decode_record,
    decode_records,
    encode_blank,
    encode_message,
    encode_record,
    record_crc_ok,
    record_size,
    seal_properties,
    seal_record,
    topic_field,
)

IPV4 = host_bytes("10.0.0.1:10911")
IPV6 = host_bytes("[2001:db8::1]:10911")

# Made by RocketMQ: topic TopicTest, body hello, TAGS=TagA, KEYS=k1 k2.
HELLO = bytes.fromhex(
    "0000007edaa320a73610a686000000020000000000000000000000070000000000000400000000000000018bcfe56800"
    "0a000009000015b30000018bcfe568010a00000100002a9f0000000000000000000000000000000568656c6c6f09546f"
    "706963546573740015544147530154616741024b455953016b31206b3202"
)
# The worked example of MESSAGE.md, also RocketMQ's.
WORKED = bytes.fromhex(
    "000000aedaa320a769c865ed000000020000000000000000000000050000000000000400000000000000018bcfe56800"
    "0a0000010000d4310000018bcfe5687b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5109546f70696354657374003c4b455953016b310254414753015461674102554e49515f4b455901374630"
    "303030303130303030303030303030303030303030303030303030303002"
)


def record(**fields: Any) -> bytes:
    values: dict[str, Any] = {
        "queue_id": 2,
        "flag": 0,
        "queue_offset": 5,
        "physical_offset": 1024,
        "sys_flag": 0,
        "born_timestamp": 1700000000000,
        "born_host": host_bytes("10.0.0.1:54321"),
        "store_timestamp": 1700000000123,
        "store_host": host_bytes("127.0.0.1:10911"),
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": b"Hello RocketMQ",
        "topic_field": topic_field("TopicTest"),
        "properties": b"KEYS\x01k1\x02TAGS\x01TagA\x02UNIQ_KEY\x017F000001000000000000000000000000\x02",
        **fields,
    }
    return encode_record(**values)


def test_the_worked_example_is_written() -> None:
    assert record() == WORKED


def test_the_worked_example_is_read() -> None:
    message = decode_record(WORKED)
    assert message == StoredMessage(
        topic="TopicTest",
        body=b"Hello RocketMQ",
        queue_id=2,
        queue_offset=5,
        physical_offset=1024,
        packed_properties=b"KEYS\x01k1\x02TAGS\x01TagA\x02UNIQ_KEY\x017F000001000000000000000000000000\x02",
        born_timestamp=1700000000000,
        born_host=host_bytes("10.0.0.1:54321"),
        store_timestamp=1700000000123,
        store_host=host_bytes("127.0.0.1:10911"),
        body_crc=0x69C865ED,
        size=174,
    )
    assert message.offset_id == "7F00000100002A9F0000000000000400"
    assert message.keys == ("k1",)
    assert body_crc_ok(message)


def test_a_record_of_rocketmq_is_read_and_written_back() -> None:
    message = decode_record(HELLO)
    assert (message.topic, message.body, message.queue_id, message.queue_offset) == (
        "TopicTest",
        b"hello",
        2,
        7,
    )
    assert message.properties == {"TAGS": "TagA", "KEYS": "k1 k2"}
    assert message.offset_id == "0A00000100002A9F0000000000000400"
    assert encode_message(message) == HELLO


def test_the_record_of_an_old_broker() -> None:
    """Values seen in a broker of version 4: 129 bytes, CRC 151131488, no properties."""
    raw = record(
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=1575884746075,
        born_host=host_bytes("127.0.0.1:0"),
        store_timestamp=1575884746086,
        store_host=host_bytes("10.0.6.82:8123"),
        body=b"Once, there was a chance for me!",
        topic_field=topic_field("FooBar"),
        properties=b"",
    )
    assert len(raw) == 129
    assert raw[:12] == bytes.fromhex("00000081daa320a7") + (151131488).to_bytes(4, "big")
    message = decode_record(raw)
    assert message.body_crc == 151131488
    assert message.offset_id == "0A00065200001FBB0000000000000000"
    assert message.properties == {}


# --- the record's own CRC ---------------------------------------------------------------------------


def test_the_sealed_example() -> None:
    plain = decode_record(WORKED).packed_properties
    sealed = seal_record(record(properties=seal_properties(plain)))
    assert len(sealed) == 194
    assert sealed.endswith(b"__CRC32#\x010583562971\x02")
    assert record_crc_ok(sealed)
    assert decode_record(sealed).properties["__CRC32#"] == "0583562971"


@pytest.mark.parametrize(
    ("properties", "before"),
    [
        (b"", b""),
        (b"a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (b"__CRC32#\x011234567890\x02a\x01b\x02", b"a\x01b\x02"),
    ],
)
def test_room_for_the_crc(properties: bytes, before: bytes) -> None:
    assert seal_properties(properties) == before + bytes(20)


def test_any_change_breaks_the_seal() -> None:
    sealed = seal_record(record(properties=seal_properties(b"a\x01b\x02")))
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        assert not record_crc_ok(bytes(changed)), at
    assert not record_crc_ok(WORKED)
    assert not record_crc_ok(b"")


# --- widths and versions ---------------------------------------------------------------------------


@pytest.mark.parametrize("born", [IPV4, IPV6], ids=["born4", "born6"])
@pytest.mark.parametrize("store", [IPV4, IPV6], ids=["store4", "store6"])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "%RETRY%" + "g" * 121, "%RETRY%" + "g" * 248])
def test_hosts_and_versions(born: bytes, store: bytes, topic: str) -> None:
    raw = record(born_host=born, store_host=store, topic_field=topic_field(topic), sys_flag=0x301)
    message = decode_record(raw)
    assert message.topic == topic
    assert (message.born_host, message.store_host) == (born, store)
    assert message.sys_flag == 0x301 | (0x10 if born is IPV6 else 0) | (0x20 if store is IPV6 else 0)
    assert message.store_timestamp == 1700000000123
    assert message.body == b"Hello RocketMQ"
    assert message.size == len(raw)
    assert int.from_bytes(raw[4:8], "big") == (MAGIC_V1 if len(topic) <= 127 else MAGIC_V2)
    size = record_size(14, topic_field(topic), len(message.packed_properties), len(born) + len(store))
    assert size == len(raw)
    assert encode_message(message) == raw


def test_the_ipv6_bits_follow_the_hosts() -> None:
    assert decode_record(record(sys_flag=0x30)).sys_flag == 0
    assert record(sys_flag=0x30) == WORKED


@pytest.mark.parametrize("body", [b"", b"x", bytes(4 * 1024 * 1024)], ids=["empty", "one", "4MiB"])
@pytest.mark.parametrize("properties", [b"", b"p\x01" + b"v" * 32764 + b"\x02"], ids=["none", "most"])
def test_bodies_and_properties_of_all_sizes(body: bytes, properties: bytes) -> None:
    message = decode_record(record(body=body, properties=properties))
    assert message.body == body
    assert message.packed_properties == properties
    assert message.body_crc == crc32(body) & 0x7FFFFFFF
    assert body_crc_ok(message)


def test_a_changed_body_is_noticed() -> None:
    message = decode_record(WORKED)
    message.body = b"Hello RocketMq"
    assert not body_crc_ok(message)


# --- what does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "bits"),
    [
        ("queue_id", 32),
        ("flag", 32),
        ("sys_flag", 32),
        ("reconsume_times", 32),
        ("queue_offset", 64),
        ("physical_offset", 64),
        ("born_timestamp", 64),
        ("store_timestamp", 64),
        ("prepared_offset", 64),
    ],
)
def test_numbers_to_their_edges_and_over(field: str, bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    for value in (low, -1, 0, high):
        expected = value & ~0x30 if field == "sys_flag" else value
        assert getattr(decode_record(record(**{field: value})), field) == expected
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequest, match=f"{field}={value}"):
            record(**{field: value})


def test_what_no_record_can_hold() -> None:
    with pytest.raises(InvalidRequest, match="32768 bytes"):
        record(properties=bytes(32768))
    with pytest.raises(InvalidRequest, match="host of 7 bytes"):
        record(born_host=bytes(7))
    with pytest.raises(InvalidRequest, match="32768 bytes"):
        topic_field("t" * 32768)


# --- many, cut off, damaged ------------------------------------------------------------------------


def test_records_back_to_back() -> None:
    records = [record(queue_offset=number, born_host=IPV6 if number % 2 else IPV4) for number in range(5)]
    messages = decode_records(b"".join(records))
    assert [message.queue_offset for message in messages] == [0, 1, 2, 3, 4]
    assert decode_records(b"") == []
    assert decode_records(HELLO + WORKED, len(HELLO)) == [decode_record(WORKED)]
    assert decode_records(HELLO + WORKED, 0, len(HELLO)) == [decode_record(HELLO)]


def test_what_follows_a_record_is_not_looked_at() -> None:
    assert decode_record(WORKED + b"\xff" * 50) == decode_record(WORKED)
    assert decode_record(b"\xff" * 50 + WORKED + b"\xff", 50) == decode_record(WORKED)


@pytest.mark.parametrize("whole", [HELLO, record(born_host=IPV6, store_host=IPV6)], ids=["ipv4", "ipv6"])
def test_a_record_cut_off_anywhere(whole: bytes) -> None:
    for length in range(len(whole)):
        with pytest.raises(ProtocolError, match="cut off"):
            decode_record(whole[:length])
    with pytest.raises(ProtocolError) as caught:
        decode_records(whole + whole[:-1])
    assert caught.value.at == len(whole)


def patched(at: int, value: bytes) -> bytes:
    return WORKED[:at] + value + WORKED[at + len(value) :]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (patched(0, bytes.fromhex("000000ad")), "do not add up"),
        (patched(0, bytes.fromhex("ffffffff")), "record size -1"),
        (patched(0, bytes.fromhex("0000005a")), "record size 90"),
        (patched(4, bytes.fromhex("daa320a8")), "magic 0xDAA320A8"),
        (patched(4, bytes.fromhex("cbd43194")), "blank"),
        (patched(84, bytes.fromhex("ffffffff")), "do not add up"),
        (patched(84, bytes.fromhex("7fffffff")), "do not add up"),
        (patched(102, b"\x80"), "do not add up"),
        (patched(112, b"\x80"), "do not add up"),
        (encode_blank(100) + bytes(92), "blank"),
        (bytes(200), "magic 0x00000000"),
    ],
)
def test_damage(data: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_record(data)


def test_a_negative_topic_length_is_refused_even_where_lengths_add_up() -> None:
    raw = bytearray(record(topic_field=b"\x7f" + b"t" * 127))
    at = 88 + len(b"Hello RocketMQ")
    raw[at] = 0x80
    raw[at + 1 : at + 1] = b"t"
    raw[0:4] = len(raw).to_bytes(4, "big")
    with pytest.raises(ProtocolError):
        decode_record(bytes(raw))


@settings(max_examples=100)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\0\0\0\x80\xda\xa3\x20\xa7", b"\0\0\0\x80\xda\xa3\x20\xab"]),
)
def test_arbitrary_bytes_raise_protocol_errors_only(data: bytes, head: bytes) -> None:
    try:
        decode_records(head + data)
    except ProtocolError:
        pass


@settings(max_examples=100)
@given(st.integers(0, 193), st.binary(min_size=1, max_size=8))
def test_damaged_records_raise_protocol_errors_only(at: int, value: bytes) -> None:
    for whole in (WORKED, record(born_host=IPV6)):
        try:
            decode_records(whole[:at] + value + whole[at + len(value) :])
        except ProtocolError:
            pass


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@settings(max_examples=100)
@given(
    st.builds(
        StoredMessage,
        topic=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255),
        body=st.binary(max_size=300),
        queue_id=int32,
        queue_offset=int64,
        physical_offset=int64,
        packed_properties=st.binary(max_size=100),
        flag=int32,
        sys_flag=int32,
        born_timestamp=int64,
        born_host=hosts,
        store_timestamp=int64,
        store_host=hosts,
        reconsume_times=int32,
        prepared_offset=int64,
    )
)
def test_round_trip(message: StoredMessage) -> None:
    raw = encode_message(message)
    back = decode_record(raw)
    assert back.size == len(raw)
    assert body_crc_ok(back)
    message.sys_flag = back.sys_flag
    message.size, message.body_crc = back.size, back.body_crc
    assert back == message


def test_records_are_decoded_one_for_one_whatever_lies_between() -> None:
    first, second = (encode_message(StoredMessage("T", body, 0, 0, 0)) for body in (b"one", b"two"))
    both = [decode_record(first), decode_record(second)]
    assert decode_each([first, second]) == both
    assert decode_each([first, b"", second, second[:-1], b"junk"]) == [both[0], None, both[1], None, None]
    # Bytes behind a record belong to nobody.
    assert decode_each([first + second, second]) == both
    assert decode_each([]) == []
