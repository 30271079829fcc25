from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol import properties as names
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from kerolox.protocol.limits import INFLATED_BODY_BYTES_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_records, encode_message
from kerolox.spark import records
from kerolox.spark.columns import COLUMNS, arrow_schema
from kerolox.spark.records import decode, decode_in_parts, positions_of

WORDS = ["a", "price", "größe", "键", "x" * 40, "TAGS", "KEYS", "UNIQ_KEY", "tab\tname", "0"]


def packed_properties(rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        return b""
    table = {
        rng.choice(WORDS): rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(rng.randrange(1, 6))
    }
    packed = names.pack(table)
    choice = rng.random()
    if choice < 0.4:
        return packed.rstrip(b"\x02")  # writers between 4.9.1 and 5.2.0
    if choice < 0.45:
        return packed + packed  # every name twice
    if choice < 0.5:
        return packed + b"empty\x01\x02\x01noname\x02odd\x02"
    if choice < 0.53:
        return b"bad\x01\xff\xfe\x02" + packed
    return packed


def messages(seed: int, count: int, *, strange: bool) -> list[StoredMessage]:
    rng = random.Random(seed)
    made = []
    for number in range(count):
        body, sys_flag = rng.randbytes(rng.choice((0, 1, 7, 128, 1000))), 0
        if strange and rng.random() < 0.2:
            kind = rng.choice((COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD))
            body, sys_flag = compress(body, kind), COMPRESSED | kind
        six = strange and rng.random() < 0.2
        if six:
            sys_flag |= 0x10
        topic = (
            "long" * 40 if strange and rng.random() < 0.1 else rng.choice(("orders", "täglich", "%RETRY%g"))
        )
        made.append(
            StoredMessage(
                topic, body, rng.randrange(8), number, rng.getrandbits(40), packed_properties(rng),
                flag=rng.randrange(-5, 5), sys_flag=sys_flag, born_timestamp=rng.getrandbits(41),
                born_host=rng.randbytes(20 if six else 8), store_timestamp=rng.getrandbits(41),
                store_host=rng.choice((b"\x7f\0\0\x01\0\0\x2a\x9f", b"\x0a\x01\x02\x03\0\0\x2a\x9f")),
                reconsume_times=rng.randrange(3),
            )
        )  # fmt: skip
    return made


def expected(message: StoredMessage, broker: str) -> dict[str, object]:
    """The row by the plain decoder."""
    properties = names.unpack(message.packed_properties)
    return {
        "topic": message.topic,
        "broker": broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "msg_id": message.message_id,
        "offset_msg_id": message.offset_id,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": message.plain_body(),
        "properties": list(properties.items()),
        "born_timestamp": message.born_timestamp * 1000,
        "store_timestamp": message.store_timestamp * 1000,
        "born_host": message.born_address,
        "store_host": message.store_address,
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
    }


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    columns = {}
    for field in batch.schema:
        column = batch.column(field.name)
        if pa.types.is_timestamp(field.type):
            column = column.view(pa.int64())
        columns[field.name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_blocks_decode_to_what_the_plain_decoder_reads(seed: int, strange: bool) -> None:
    block = b"".join(encode_message(each) for each in messages(seed, 60, strange=strange))
    batch = decode(block, positions_of(block), arrow_schema(), "broker-a")
    batch.validate(full=True)
    assert rows(batch) == [expected(each, "broker-a") for each in decode_records(block)]


def test_records_with_gaps_between_them() -> None:
    parts, places, at = [], [], 0
    for number, message in enumerate(messages(1, 30, strange=True)):
        gap = b"\x00\x01\x02" * (number % 4)
        record = encode_message(message)
        places.append(at + len(gap))
        parts += [gap, record]
        at += len(gap) + len(record)
    block = b"".join(parts)
    batch = decode(block, np.array(places), arrow_schema(["queue_offset", "body"]))
    assert [row["queue_offset"] for row in rows(batch)] == list(range(30))
    assert [row["body"] for row in rows(batch)] == [
        each.plain_body() for each in messages(1, 30, strange=True)
    ]


def test_only_the_columns_asked_for() -> None:
    block = b"".join(encode_message(each) for each in messages(2, 5, strange=False))
    schema = arrow_schema(["tags", "properties"], properties="string")
    batch = decode(block, positions_of(block), schema)
    assert batch.schema == schema
    assert batch.column("properties").to_pylist() == [
        each.packed_properties.decode("utf-8", "replace") for each in decode_records(block)
    ]


def test_no_records() -> None:
    batch = decode(b"", np.array([], np.int64), arrow_schema())
    assert (batch.num_rows, batch.schema.names) == (0, list(COLUMNS))


@pytest.mark.parametrize("place", range(91))
def test_damaged_lengths_are_noticed_or_change_one_value(place: int) -> None:
    """A flipped byte gives an error or rows, never a crash or bytes from outside the block."""
    block = bytearray(b"".join(encode_message(each) for each in messages(3, 3, strange=False)))
    block[place] ^= 0xFF
    try:
        batch = decode(bytes(block), positions_of(bytes(block)), arrow_schema())
    except ProtocolError:
        return
    batch.validate(full=True)
    assert batch.num_rows == 3


def test_a_cut_off_record_is_an_error() -> None:
    block = b"".join(encode_message(each) for each in messages(4, 3, strange=False))
    with pytest.raises(ProtocolError, match=r"cut off|beyond"):
        decode(block[:-1], positions_of(block), arrow_schema())


@given(st.lists(st.integers(-5, 300), max_size=300), st.integers(0, 3))
def test_where_records_begin_compiled_and_not(sizes: list[int], cut: int) -> None:
    """Blocks of nothing but sizes: good ones, ones that cannot be, and a last one that is cut off."""
    block = b"".join(size.to_bytes(4, signed=True) + bytes(max(0, size - 4)) for size in sizes)
    end = max(0, len(block) - cut)
    expected = records._record_starts(block, 0, end)
    assert records.record_starts(block, 0, end) == expected
    assert records.record_starts(memoryview(block), 0, end) == expected
    starts, stop = expected
    if stop < end:
        with pytest.raises(ProtocolError, match="no record begins here"):
            records.positions_of(block, 0, end)
    else:
        assert records.positions_of(block, 0, end).tobytes() == starts


@pytest.mark.parametrize("compiled", [True, False])
def test_bodies_that_inflate_to_much_come_in_batches_of_their_own(
    monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    """60 bodies of 60 MiB were one batch of 3.6 GB, which Arrow refuses with a TypeError."""
    if not compiled:
        monkeypatch.setattr("kerolox.spark.records.at_once", lambda *_: None)
    monkeypatch.setattr("kerolox.spark.records.INFLATED_BLOCK_BYTES_MAX", 1 << 20)
    flags = COMPRESSED | COMPRESSION_ZLIB
    bodies = [b"a", bytes(600_000), b"b", bytes(600_000), bytes(2_000_000), b"c" * 10]
    made = messages(1, 7, strange=False)
    bomb = compress(bytes(INFLATED_BODY_BYTES_MAX + 1))
    for message, body in zip(made, [*bodies, None], strict=True):
        message.body, message.sys_flag = (bomb if body is None else compress(body)), flags
    block = b"".join(encode_message(message) for message in made)
    schema = arrow_schema(["queue_offset", "body"])
    parts = list(decode_in_parts(block, positions_of(block), schema))
    assert all(part.batch.nbytes < 2_100_000 for part in parts)
    assert len(parts) > 3
    found = [row for part in parts for row in part.batch.to_pylist()]
    assert [row["queue_offset"] for row in found] == [message.queue_offset for message in made]
    assert [row["body"] for row in found] == [*bodies, bomb]
    assert [bool(part.reason) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "INFLATED_BODY_BYTES_MAX" in parts[-1].reason
