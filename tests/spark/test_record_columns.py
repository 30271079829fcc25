"""The compiled decoder and its twin, on the same records: good ones, strange ones and damaged ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kerolox.compiled import CORE
from kerolox.errors import ProtocolError
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from kerolox.protocol.record import encode_record, topic_field
from kerolox.spark.columns import COLUMNS, arrow_schema
from kerolox.spark.record_columns import at_once
from kerolox.spark.records import Positions, decode, decode_by_numpy

pytestmark = pytest.mark.skipif(CORE is None, reason="the core is not compiled")

WORDS = [
    b"",
    b"a",
    b"KEYS",
    b"TAGS",
    b"UNIQ_KEY",
    b"KEYT",
    b"UNIQ_KEZ",
    "größe".encode(),
    b"\xff\xfe",
    b"x\x01y",
]
words = st.sampled_from(WORDS) | st.binary(max_size=20)
pairs = st.tuples(
    words, st.sampled_from([b"\x01", b"\x01", b"\x01", b""]), words, st.sampled_from([b"\x02", b""])
)
properties = st.lists(pairs, max_size=8).map(lambda made: b"".join(b"".join(pair) for pair in made))
hosts = st.sampled_from(
    [b"\x7f\0\0\x01\0\0\x2a\x9f", b"\x0a\x01\x02\x03\xff\xff\xff\xff", bytes(20)]
) | st.binary(min_size=20, max_size=20)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
topics = st.sampled_from([b"orders", "täglich".encode(), b"\xc3", b"", b"long" * 40])


@st.composite
def record(draw: st.DrawFn) -> bytes:
    body, flags = draw(st.binary(max_size=60)), draw(st.sampled_from([0, 0, 0, 2, 8, 0x80]))
    kind = draw(
        st.sampled_from([None, None, None, COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x700])
    )
    if kind is not None:
        body, flags = body if kind == 0x700 else compress(body, kind), flags | COMPRESSED | kind
        if kind == 0x700 and draw(st.integers(0, 9)):
            flags &= ~COMPRESSED  # an unknown kind is an error of the whole block: seldom
    return encode_record(
        draw(numbers), draw(numbers), draw(longs), draw(longs), flags, draw(longs), draw(hosts), draw(longs),
        draw(hosts), draw(numbers), draw(longs), body, topic_field(draw(topics)), draw(properties),
    )  # fmt: skip


columns = st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=1, max_size=len(COLUMNS)) | st.just(
    list(COLUMNS)
)
schemas = st.builds(
    lambda names, kind: arrow_schema(names, properties=kind), columns, st.sampled_from(["map", "string"])
)
gaps = st.sampled_from([b"", b"", b"\0\1\2"])


def laid_out(records: list[bytes], between: list[bytes]) -> tuple[bytearray, Positions]:
    block, places = bytearray(), []
    for number, each in enumerate(records):
        block += between[number % len(between)] if between else b""
        places.append(len(block))
        block += each
    return block, np.array(places, np.int64)


def outcome(block: bytes, positions: Positions, schema: pa.Schema, *, core: bool) -> pa.RecordBatch | None:
    try:
        batch = (
            at_once(block, positions, schema, "broker-a")
            if core
            else decode_by_numpy(block, positions, schema, "broker-a")
        )
    except ProtocolError:
        return None
    if batch is not None:
        batch.validate(full=True)
    return batch


def same(block: bytes, positions: Positions, schema: pa.Schema) -> None:
    by_core = outcome(block, positions, schema, core=True)
    by_numpy = outcome(block, positions, schema, core=False)
    assert (by_core is None) == (by_numpy is None)
    if by_core is not None and by_numpy is not None:
        assert by_core.equals(by_numpy)


FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(st.lists(record(), min_size=1, max_size=12), st.lists(gaps, max_size=4), schemas)
def test_the_same_columns(records: list[bytes], between: list[bytes], schema: pa.Schema) -> None:
    block, positions = laid_out(records, between)
    same(bytes(block), positions, schema)
    same(memoryview(block), positions, schema)  # type: ignore[arg-type]


@FEW
@given(
    st.lists(record(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 100),
    schemas,
)
def test_damage_is_the_same_error_or_the_same_columns(
    records: list[bytes], changes: list[tuple[int, int]], cut: int, schema: pa.Schema
) -> None:
    block, positions = laid_out(records, [])
    for place, value in changes:
        block[place % len(block)] = value
    if cut < 90:
        same(bytes(block), positions, schema)
    else:  # a record that is not whole
        with pytest.raises(ProtocolError):
            decode(bytes(block)[: -1 - cut % 90], positions, schema)


@FEW
@given(st.binary(min_size=91, max_size=300), st.lists(st.integers(0, 209), min_size=1, max_size=4))
@example(b"\x00\x00\x00\x5b\xda\xa3\x20\xa7" + bytes(83), [0])
def test_arbitrary_bytes(block: bytes, places: list[int]) -> None:
    positions = np.array(sorted({place % (len(block) - 90) for place in places}), np.int64)
    for kind in ("map", "string"):
        same(block, positions, arrow_schema(properties=kind))


def test_positions_outside_of_the_block_are_not_read() -> None:
    block = encode_record(
        0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"body", topic_field("t"), b"KEYS\x01k\x02"
    )
    schema = arrow_schema()
    for place in (-1, 1, len(block), 1 << 62, -(1 << 63)):
        assert at_once(block, np.array([0, place]), schema, None) is None
    assert at_once(block, np.array([0, 0]), schema, None) is not None  # the same one twice


def test_more_properties_than_the_core_takes() -> None:
    packed = b"".join(b"name%d\x01value\x02" % number for number in range(300))
    block = encode_record(0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"", topic_field("t"), packed)
    positions = np.array([0])
    assert at_once(block, positions, arrow_schema(), None) is None
    assert len(decode(block, positions, arrow_schema()).column("properties")[0]) == 300
    assert at_once(block, positions, arrow_schema(properties="string"), None) is not None


def test_a_failing_callback_is_an_error_and_leaves_nothing() -> None:
    assert CORE is not None
    block = encode_record(0, 0, 0, 0, 1, 0, bytes(20), 0, bytes(8), 0, 0, b"zip", topic_field("t"), b"")
    positions = np.array([0])

    def refuse(*_: object) -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        CORE.record_columns(block, positions, b"\x00\x01", refuse, refuse)
    with pytest.raises(TypeError):
        CORE.record_columns(block, positions, b"\x01", lambda *_: "text", refuse)
    with pytest.raises(ValueError, match="no"):
        CORE.record_columns(block, positions, b"\x08", refuse, refuse)
    for kinds in (b"\xff", b"\x01\x01"):
        with pytest.raises(ValueError, match="unknown or asked for twice"):
            CORE.record_columns(block, positions, kinds, refuse, refuse)
