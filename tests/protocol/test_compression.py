from __future__ import annotations

import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.compression import beginning, compress, decompress, inflate_zlib
from kerolox.protocol.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_UNNAMED,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)
from kerolox.protocol.limits import INFLATED_BODY_BYTES_MAX

KINDS = [COMPRESSION_UNNAMED, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB]
BODY = b"Once, there was a chance for me!" * 400


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "body", [b"", b"x", BODY, bytes(4 * 1024 * 1024)], ids=["empty", "one", "text", "4MiB"]
)
def test_round_trip(kind: int, body: bytes) -> None:
    assert decompress(compress(body, kind), COMPRESSED | kind) == body


def test_a_plain_body_comes_back_as_it_is() -> None:
    assert decompress(b"not compressed", COMPRESSION_LZ4) is not None
    assert decompress(b"not compressed", COMPRESSION_LZ4) == b"not compressed"


def test_formats_are_the_agreed_ones() -> None:
    assert zlib.decompress(compress(BODY)) == BODY
    frame = compress(BODY, COMPRESSION_LZ4)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0x20, "Java reads frames with independent blocks only"
    assert compress(BODY, COMPRESSION_ZSTD)[:4] == bytes.fromhex("28b52ffd")


def test_a_zstd_stream_without_its_size_is_read() -> None:
    # What Java's stream writer makes.
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    frame = stream.compress(BODY) + stream.flush()
    assert decompress(frame, COMPRESSED | COMPRESSION_ZSTD) == BODY
    assert decompress(frame + frame, COMPRESSED | COMPRESSION_ZSTD) == BODY + BODY


def test_lz4_frames_follow_each_other() -> None:
    frames = compress(BODY, COMPRESSION_LZ4) + lz4.frame.compress(b"tail")
    assert decompress(frames, COMPRESSED | COMPRESSION_LZ4) == BODY + b"tail"


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_cut_off_anywhere_is_an_error(kind: int) -> None:
    whole = compress(BODY[:300] + bytes(range(256)), kind)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decompress(whole[:length], COMPRESSED | kind)


@pytest.mark.parametrize("kind", KINDS)
def test_inflating_stops_at_the_bound(kind: int) -> None:
    bomb = compress(bytes(64 * 1024 * 1024), kind)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="INFLATED_BODY_BYTES_MAX"):
            decompress(bomb, COMPRESSED | kind, bytes_max=1024 * 1024)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024 * 1024


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_itself_is_allowed(kind: int) -> None:
    assert decompress(compress(bytes(1000), kind), COMPRESSED | kind, bytes_max=1000) == bytes(1000)
    with pytest.raises(ProtocolError):
        decompress(compress(bytes(1001), kind), COMPRESSED | kind, bytes_max=1000)


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x700])
def test_unknown_kinds(kind: int) -> None:
    with pytest.raises(ProtocolError, match="unknown kind"):
        decompress(b"x", COMPRESSED | kind)
    with pytest.raises(InvalidRequest, match="unknown"):
        compress(b"x", kind)


@settings(max_examples=100)
@given(
    st.binary(max_size=80),
    st.sampled_from(KINDS),
    st.sampled_from([b"", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x78\x9c"]),
)
def test_arbitrary_bytes_raise_protocol_errors_only(data: bytes, kind: int, head: bytes) -> None:
    try:
        decompress(head + data, COMPRESSED | kind, bytes_max=100_000)
    except ProtocolError:
        pass


@settings(max_examples=100)
@given(st.sampled_from(KINDS), st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_raises_protocol_errors_only(kind: int, at: int, value: int) -> None:
    data = bytearray(compress(BODY, kind))
    data[at % len(data)] = value
    try:
        decompress(bytes(data), COMPRESSED | kind, bytes_max=100_000)
    except ProtocolError:
        pass


def test_zlib_alone() -> None:
    assert inflate_zlib(zlib.compress(b"route")) == b"route"


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_the_beginning_of_a_bomb_costs_its_beginning(kind: int) -> None:
    bomb = compress(b"begin" + bytes(INFLATED_BODY_BYTES_MAX), kind)
    with pytest.raises(ProtocolError, match="INFLATED_BODY_BYTES_MAX"):
        decompress(bomb, COMPRESSED | kind)
    tracemalloc.start()
    try:
        found = beginning(bomb, COMPRESSED | kind, 100)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == b"begin" + bytes(95)
    assert most < 4 << 20
    assert beginning(b"no such stream", COMPRESSED | kind, 4) == b"no s"
    assert beginning(b"plain", 0, 3) == b"pla"
