"""A broker's registration, as JSON and packed, of every age."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.bodies.registration import (
    Registration,
    body_crc32,
    decode_registration,
    encode_registration,
)
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.limits import INFLATED_BYTES_MAX

VERSION_JSON = '{"counter":0,"stateVersion":0,"timestamp":1794766976625}'
TOPIC_JSON = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
    '"topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":8}'
)
TOPICS_JSON = (
    f'{{"dataVersion":{VERSION_JSON},"mappingDataVersion":{VERSION_JSON},"topicConfigTable":{{"TopicTest":'
    f'{TOPIC_JSON}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}'
)


def registration() -> Registration:
    return Registration(
        filter_server_list=("10.0.0.1:1",),
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=3, timestamp=5),
            topic_config_table={
                "TopicTest": TopicConfig(topic_name="TopicTest", read_queue_nums=8, write_queue_nums=8),
                "Other": TopicConfig(topic_name="Other", perm=4, attributes={"+message.type": "a b"}),
            },
            topic_queue_mapping_info_map={
                "Static": QueueMapping(bname="a", topic="Static", curr_id_map={0: 1}, total_queues=2)
            },
        ),
    )


def packed(*pieces: bytes | int) -> bytes:
    out = b""
    for piece in pieces:
        out += struct.pack(">i", piece) if isinstance(piece, int) else struct.pack(">i", len(piece)) + piece
    return zlib.compress(out, 9)


def test_topic_lines() -> None:
    topic = TopicConfig.decode(TOPIC_JSON)
    assert topic.to_line() == "TopicTest 8 8 6 SINGLE_TAG {}"
    assert topic.to_line(with_attributes=False) == "TopicTest 8 8 6 SINGLE_TAG"
    for line in (topic.to_line(), topic.to_line(with_attributes=False), topic.to_line() + "oops"):
        assert TopicConfig.from_line(line) == topic
    spaced = TopicConfig(topic_name="t", attributes={"k": "a b"})
    assert TopicConfig.from_line(spaced.to_line()) == spaced


@pytest.mark.parametrize("line", ["", "t", "t 8 8 6", "t a 8 6 SINGLE_TAG", " 8 8 6 SINGLE_TAG {}"])
def test_broken_topic_lines(line: str) -> None:
    with pytest.raises(ProtocolError, match="topic line"):
        TopicConfig.from_line(line)


@pytest.mark.parametrize("said", [True, False])
def test_compressed_registration_round_trip(said: bool) -> None:
    data = encode_registration(registration(), compressed=True)
    assert data[:2] == b"\x78\xda"
    assert decode_registration(data, compressed=said) == registration()  # the header may lie


def test_plain_registration_round_trip() -> None:
    data = encode_registration(registration())
    assert decode_registration(data) == registration()
    assert json.loads(data)["topicConfigSerializeWrapper"]["topicConfigTable"]["Other"]["perm"] == 4


def test_compressed_registration_of_a_4x_broker() -> None:
    data = packed(b'{"counter":1,"timestamp":2}', 1, b"TopicTest 8 8 6 SINGLE_TAG", b"[]")
    decoded = decode_registration(data, compressed=True, version=409)
    table = decoded.topic_config_serialize_wrapper
    assert table.data_version == DataVersion(counter=1, timestamp=2)
    assert table.topic_config_table == {
        "TopicTest": TopicConfig(topic_name="TopicTest", read_queue_nums=8, write_queue_nums=8)
    }
    assert zlib.decompress(encode_registration(decoded, compressed=True, version=409)).endswith(
        b"\x00\x00\x00\x1aTopicTest 8 8 6 SINGLE_TAG\x00\x00\x00\x02[]"
    )
    with pytest.raises(ProtocolError, match="mapping count"):
        decode_registration(data, compressed=True, version=413)


def test_registration_of_the_oldest_brokers_is_the_bare_table() -> None:
    table = TopicConfigTable.decode(TOPICS_JSON)
    assert decode_registration(TOPICS_JSON.encode(), version=36) == Registration(
        topic_config_serialize_wrapper=table
    )
    assert decode_registration(TOPICS_JSON.encode(), version=37) == Registration()


def test_filter_servers_that_cannot_be_read_are_left_out() -> None:
    data = packed(b"{}", 0, b"not a list", 0)
    assert decode_registration(data, compressed=True) == Registration()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"\x78\xda",
        b"\x78\xdanonsense",
        zlib.compress(b""),
        packed(-5),
        packed(2**31 - 1),
        packed(b"{}", 1000),
        packed(b"{}", 1, b"t 8"),
        packed(b"[]", 0, b"[]", 0),
        packed(b"{}", 0, b"[]", 1, b"7"),
    ],
)
def test_broken_compressed_registrations(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_registration(data, compressed=True)


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(bytes(INFLATED_BYTES_MAX + 1), 9)
    assert len(bomb) < 100_000
    with pytest.raises(ProtocolError, match="INFLATED_BYTES_MAX"):
        decode_registration(bomb, compressed=True)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=120), st.booleans())
def test_any_registration_is_read_or_refused(data: bytes, deflate: bool) -> None:
    try:
        decode_registration(zlib.compress(data) if deflate else data, compressed=deflate)
    except ProtocolError:
        pass


def test_crc_of_a_body() -> None:
    assert body_crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert body_crc32(b"") == 0
