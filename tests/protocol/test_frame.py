"""Frames: the three-way feed, the limits, and what is said when they are passed."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.protocol import frame
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter, pack_frame
from kerolox.protocol.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

# A route request as Apache's encoder writes it, both encodings.
JSON_FRAME = bytes.fromhex("0000008700000083") + (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
BINARY_FRAME = bytes.fromhex(
    "0000002d01000029006900 01df00000001000000000000000000000014 0005746f70696300000009546f70696354657374"
)

frames = st.lists(
    st.tuples(st.sampled_from([JSON, BINARY]), st.binary(max_size=60), st.binary(max_size=60)), max_size=6
)


def feed(data: bytes, step: int | None) -> tuple[list[tuple[int, bytes, bytes]], FrameSplitter]:
    splitter = FrameSplitter()
    got = []
    for start in range(0, len(data), step or max(1, len(data))):
        got += splitter.feed(data[start : start + (step or len(data))])
    return got, splitter


@pytest.mark.parametrize("step", [None, 1, 7])
def test_golden_frames_whole_and_in_pieces(step: int | None) -> None:
    got, splitter = feed(JSON_FRAME + BINARY_FRAME, step)
    assert [(encoding, body) for encoding, _, body in got] == [(JSON, b""), (BINARY, b"")]
    assert got[0][1] == JSON_FRAME[8:]
    assert got[1][1] == BINARY_FRAME[8:]
    assert splitter.waiting_bytes == 0


@given(frames, st.integers(1, 40), st.binary(max_size=7))
def test_any_cut_gives_the_same_frames(sent: list[tuple[int, bytes, bytes]], step: int, tail: bytes) -> None:
    data = b"".join(pack_frame(*frame) for frame in sent)
    tail = bytes(len(tail))  # a beginning of a frame that never comes
    got, splitter = feed(data + tail, step)
    assert got == sent
    assert splitter.error is None
    assert splitter.waiting_bytes == len(tail)


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_arbitrary_bytes_never_raise(pieces: list[bytes]) -> None:
    splitter = FrameSplitter()
    for piece in pieces:
        splitter.feed(piece)


def test_a_bad_frame_spares_those_before_it() -> None:
    splitter = FrameSplitter()
    got = splitter.feed(JSON_FRAME + struct.pack(">iI", 4, 100) + JSON_FRAME)
    assert len(got) == 1
    assert splitter.error is not None
    assert splitter.error.at == len(JSON_FRAME)
    assert splitter.feed(JSON_FRAME) == []


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        (struct.pack(">iI", FRAME_BYTES_MAX - 3, 0), "the limit is 16777216"),
        (struct.pack(">iI", 3, 0), "cannot hold"),
        (struct.pack(">iI", -1, 0), "cannot hold"),
        (struct.pack(">iI", 100, 101), "cannot hold"),
        (struct.pack(">iI", HEADER_BYTES_MAX + 10, HEADER_BYTES_MAX + 1), "header of"),
        (bytes.fromhex("1603010200010001"), "TLS client hello"),
    ],
)
def test_what_is_said_of_a_bad_prefix(prefix: bytes, says: str) -> None:
    splitter = FrameSplitter()
    assert splitter.feed(prefix) == []
    assert says in str(splitter.error)


def test_the_largest_frame_passes() -> None:
    splitter = FrameSplitter()
    body = bytes(FRAME_BYTES_MAX - 8 - 2)
    frame = pack_frame(JSON, b"{}", body)
    assert len(frame) == FRAME_BYTES_MAX
    got = []
    for start in range(0, len(frame), 1 << 20):
        got += splitter.feed(frame[start : start + (1 << 20)])
    assert got == [(JSON, b"{}", body)]


SPLITTERS: list[Any] = [pytest.param(frame._split_frames, id="python")]
CORE = load()
if CORE is not None:
    SPLITTERS.append(pytest.param(CORE.split_frames, id="compiled"))


@pytest.mark.parametrize("split", SPLITTERS)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_splitting_tells_where_it_stopped_and_what_it_needs(split: Any, kind: type) -> None:
    whole = pack_frame(JSON, b"head", b"body") + pack_frame(1, b"", b"")
    frames = [(0, b"head", b"body"), (1, b"", b"")]
    assert split(kind(whole), 1000) == (frames, 24, 8)
    assert split(kind(whole + whole[:10]), 1000) == (frames, 24, 16)
    assert split(kind(whole + b"\x00" * 7), 1000) == (frames, 24, 8)
    assert split(kind(whole + b"\xff" * 8), 1000) == (frames, 24, -1)
    assert split(kind(whole), 15) == ([], 0, -1)
    assert split(kind(b""), 15) == ([], 0, 8)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@given(
    st.lists(st.binary(max_size=12) | st.sampled_from([pack_frame(0, b"a", b"b"), pack_frame(1, b"abc")])),
    st.integers(-10, 40),
)
def test_compiled_and_python_split_alike(pieces: list[bytes], bytes_max: int) -> None:
    assert CORE is not None
    data = b"".join(pieces)
    assert CORE.split_frames(data, bytes_max) == frame._split_frames(data, bytes_max)
    assert CORE.split_frames(bytearray(data), 1000) == frame._split_frames(bytearray(data), 1000)
    with pytest.raises(TypeError):
        CORE.split_frames("text", 1)
