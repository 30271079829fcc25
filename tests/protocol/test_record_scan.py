from __future__ import annotations

import mmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.errors import ProtocolError
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    decode_record,
    encode_blank,
    encode_record,
    seal_properties,
    seal_record,
    topic_field,
)
from kerolox.protocol.record_scan import CHECK_BODY, CHECK_RECORD, LogBytes, Stop, _plain_records, scan

CORE = load()

IPV4 = host_bytes("10.0.0.1:10911")
IPV6 = host_bytes("[2001:db8::1]:10911")
PROPERTIES = b"TAGS\x01TagA\x02"


def record(
    number: int = 0,
    body: bytes = b"hello",
    topic: str = "TopicTest",
    born: bytes = IPV4,
    store: bytes = IPV4,
    properties: bytes = PROPERTIES,
) -> bytes:
    return encode_record(
        3, 0, number, 1000 + number, 0, 1, born, 99, store, 0, 0, body, topic_field(topic), properties
    )


LOG = [
    record(0),
    record(1, body=b"", properties=b""),
    record(2, topic="%RETRY%" + "g" * 200),
    record(3, born=IPV6),
    record(4, store=IPV6, body=b"x" * 1000),
    record(5, born=IPV6, store=IPV6, topic="%RETRY%" + "g" * 200),
]


def test_all_kinds_of_records() -> None:
    found = scan(b"".join(LOG))
    assert (found.stop, found.position, found.what) == (Stop.END, sum(map(len, LOG)), "")
    for number, (entry, raw) in enumerate(zip(found.entries, LOG, strict=True)):
        message = decode_record(raw)
        magic = MAGIC_V2 if number in (2, 5) else MAGIC_V1
        assert entry == (
            len(raw),
            magic,
            3,
            number,
            1000 + number,
            message.sys_flag,
            99,
            message.topic.encode(),
            message.packed_properties,
        )


def test_a_mapped_file_is_walked_as_it_is() -> None:
    data = b"".join(LOG)
    with mmap.mmap(-1, len(data) + 100) as log:
        log[: len(data)] = data
        found = scan(log)
        assert found.entries == scan(data).entries
        assert all(isinstance(entry[7], bytes) for entry in found.entries)
        assert (found.stop, found.position) == (Stop.UNWRITTEN, len(data))


def test_start_end_and_count() -> None:
    data = b"".join(LOG)
    first = len(LOG[0])
    assert [entry[3] for entry in scan(data, first).entries] == [1, 2, 3, 4, 5]
    part = scan(data, count_max=2)
    assert [entry[3] for entry in part.entries] == [0, 1]
    assert (part.stop, part.position) == (Stop.END, len(LOG[0]) + len(LOG[1]))
    assert scan(data, 0, first).entries == scan(LOG[0]).entries
    assert scan(data, 0, len(data) + 5).stop is Stop.END
    assert scan(b"").stop is Stop.END
    assert scan(data, count_max=0).entries == []


@pytest.mark.parametrize("last", LOG)
def test_a_record_that_is_not_all_there_needs_more(last: bytes) -> None:
    for length in range(1, len(last)):
        found = scan(LOG[0] + last[:length])
        assert (found.stop, found.position, len(found.entries)) == (Stop.INCOMPLETE, len(LOG[0]), 1), length
        assert scan(LOG[0] + last, 0, len(LOG[0]) + length) == found


def test_blank_and_unwritten() -> None:
    at = len(LOG[0])
    found = scan(LOG[0] + encode_blank(50) + b"\xee" * 42)
    assert (found.stop, found.position, len(found.entries)) == (Stop.BLANK, at, 1)
    found = scan(LOG[0] + encode_blank(8))
    assert found.stop is Stop.BLANK
    assert scan(LOG[0] + encode_blank(50)).stop is Stop.INCOMPLETE
    assert scan(LOG[0] + encode_blank(200) + bytes(192)).stop is Stop.BLANK
    assert scan(LOG[0] + bytes(8)).stop is Stop.UNWRITTEN
    assert scan(LOG[0] + bytes(500)).stop is Stop.UNWRITTEN


def test_where_records_lie_is_compared_if_it_is_known() -> None:
    def placed(offset: int) -> bytes:
        return encode_record(3, 0, 0, offset, 0, 1, IPV4, 99, IPV4, 0, 0, b"hello", topic_field("T"), b"")

    size = len(placed(0))
    log = placed(700) + placed(700 + size) + placed(700 + 2 * size)
    assert len(scan(log, lies_at=700).entries) == 3
    assert len(scan(log, size, lies_at=700).entries) == 2
    for kind in (placed(5), LOG[2], LOG[3]):  # usual ones, and others
        found = scan(log + kind, lies_at=700)
        assert (found.stop, found.position, len(found.entries)) == (Stop.CORRUPT, 3 * size, 3)
        assert "says it lies at" in found.what
        assert len(scan(log + kind).entries) == 4


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@settings(max_examples=400)
@given(st.data())
def test_the_compiled_walk_is_the_same(data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.sampled_from(LOG), max_size=6))
    log = bytearray(b"".join(picked) + data.draw(st.binary(max_size=40)))
    for _ in range(data.draw(st.integers(0, 3)) if log else 0):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, len(log)) | st.just(0))
    end = data.draw(st.integers(start, len(log)) | st.just(len(log)))
    rest = (data.draw(st.integers(0, 7)), data.draw(st.none() | st.just(1000) | st.integers(0, 2000)))
    assert CORE is not None
    assert CORE.plain_records(bytes(log), start, end, *rest) == _plain_records(bytes(log), start, end, *rest)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@pytest.mark.parametrize("bounds", [(-1, 5), (0, len(LOG[0]) + 1)])
def test_the_compiled_walk_stays_within_the_bytes(bounds: tuple[int, int]) -> None:
    assert CORE is not None
    with pytest.raises(ValueError, match="not within"):
        CORE.plain_records(LOG[0], *bounds, 9, None)


def patched(raw: bytes, at: int, value: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


R = LOG[0]  # 88 + 5 body, topic length at 93, properties length at 103


@pytest.mark.parametrize(
    ("damaged", "what", "skip_bytes"),
    [
        (patched(R, 4, b"\xda\xa3\x20\xa8"), "record magic 0xDAA320A8", 0),
        (patched(R, 0, b"\0\0\0\x72"), "record size 114 with body 5, topic 9 and properties 10 bytes", 114),
        (patched(R, 0, b"\0\0\0\x0a"), "record size 10 with body 5, topic 9 and properties 10 bytes", 10),
        (patched(R, 0, b"\0\0\0\x09"), "record size 9 with body 5, topic 9 and properties 10 bytes", 0),
        (
            patched(R, 0, b"\xff\xff\xff\xff"),
            "record size -1 with body 5, topic 9 and properties 10 bytes",
            0,
        ),
        # A body one byte longer takes the T of the topic for its length.
        (patched(R, 84, b"\0\0\0\x06"), "topic length 84 in a record of 115 bytes", 0),
        (patched(R, 84, b"\xff\xff\xff\xff"), "topic length 104 in a record of 115 bytes", 0),
        (patched(R, 84, b"\x7f\xff\xff\xff"), "body length 2147483647 in a record of 115 bytes", 0),
        (patched(R, 93, b"\x80"), "topic length -128 in a record of 115 bytes", 0),
        (patched(R, 93, b"\x7f"), "topic length 127 in a record of 115 bytes", 0),
        (patched(R, 103, b"\0\x09"), "record size 115 with body 5, topic 9 and properties 9 bytes", 115),
        (patched(R, 103, b"\0\x7f"), "properties length 127 in a record of 115 bytes", 0),
        (patched(R, 103, b"\xff\xff"), "record size 115 with body 5, topic 9 and properties -1 bytes", 115),
        (patched(R, 36, b"\0\0\0\x30"), "body length 1392596065 in a record of 115 bytes", 0),
    ],
)
def test_damage(damaged: bytes, what: str, skip_bytes: int) -> None:
    found = scan(R + damaged)
    assert found[1:] == (len(R), Stop.CORRUPT, what, skip_bytes)
    assert found.entries == scan(R).entries


def test_a_damaged_length_can_be_skipped_over() -> None:
    damaged = patched(R, 103, b"\0\x09")
    found = scan(damaged + LOG[1])
    assert found.skip_bytes == len(R)
    assert [entry[3] for entry in scan(damaged + LOG[1], found.position + found.skip_bytes).entries] == [1]


def test_a_blank_or_a_damaged_record_at_the_very_end() -> None:
    assert scan(R + patched(R, 0, b"\0\0\0\x20")[:40])[1:3] == (len(R), Stop.CORRUPT)
    small_ipv6 = patched(record(topic="", body=b"", properties=b""), 36, b"\0\0\0\x30")
    assert scan(small_ipv6).what == "record of 91 bytes is too small for its IPv6 hosts"


def test_body_crc_is_checked_when_asked() -> None:
    data = b"".join(LOG)
    assert scan(data, check=CHECK_BODY) == scan(data)
    for number, raw in enumerate(LOG):
        if number == 1:
            continue  # has no body
        body_at = len(raw) - len(decode_record(raw).packed_properties) - len(decode_record(raw).topic) - 5
        damaged = patched(raw, body_at, b"\xfe")
        assert scan(damaged).stop is Stop.END
        found = scan(LOG[0] + damaged + LOG[0], check=CHECK_BODY)
        assert (found.stop, found.position, found.skip_bytes) == (Stop.CORRUPT, len(LOG[0]), 0)
        assert "body CRC" in found.what


def test_record_crc_is_checked_when_asked() -> None:
    sealed = seal_record(record(properties=seal_properties(PROPERTIES)))
    assert scan(sealed + sealed, check=CHECK_RECORD).stop is Stop.END
    found = scan(sealed + R, check=CHECK_RECORD)
    assert (found.stop, found.position, found.what) == (
        Stop.CORRUPT,
        len(sealed),
        "record CRC missing or wrong",
    )
    assert scan(patched(sealed, 20, b"\x01"), check=CHECK_RECORD).stop is Stop.CORRUPT
    assert scan(patched(sealed, 20, b"\x01"), check=CHECK_BODY).stop is Stop.END


def judge(data: LogBytes, check: int) -> None:
    found = scan(data, check=check)
    assert 0 <= found.position <= len(data)
    assert sum(entry[0] for entry in found.entries) == found.position
    assert found.skip_bytes >= 0
    if found.stop is Stop.CORRUPT:
        assert found.what


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(LOG), max_size=3).map(b"".join),
    st.sampled_from(
        [b"", b"\0\0\0\x80\xda\xa3\x20\xa7", b"\0\0\0\x80\xda\xa3\x20\xab", b"\0\0\0\x08\xcb\xd4\x31\x94"]
    ),
    st.binary(max_size=200),
    st.integers(0, 2),
)
def test_arbitrary_bytes_never_raise(good: bytes, head: bytes, data: bytes, check: int) -> None:
    judge(good + head + data, check)


@settings(max_examples=100)
@given(st.sampled_from(LOG), st.integers(0, 320), st.binary(min_size=1, max_size=6), st.integers(0, 2))
def test_damage_never_raises_and_both_readers_agree(raw: bytes, at: int, value: bytes, check: int) -> None:
    damaged = patched(raw, at % len(raw), value)[: len(raw)]
    judge(damaged + R, check)
    found = scan(damaged)
    try:
        message = decode_record(damaged)
    except ProtocolError:
        assert not found.entries
    else:
        assert found.entries[0][7] == message.topic.encode() or "\ufffd" in message.topic
        assert found.entries[0][8] == message.packed_properties
