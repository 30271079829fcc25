"""Frames of HTTP/2: their layout, and how those of a server are built."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from kerolox.protocol.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9  # length (3), type (1), flags (1), stream (4)

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

_HEAD = struct.Struct(
    ">I"  # high three bytes: length of the payload; low byte: type
    "B"  # flags
    "I"  # stream; the highest bit is reserved
)
_SETTING = struct.Struct(">HI")  # identifier, value
_WORD = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")  # last stream, error code
assert _HEAD.size == HEAD_BYTES

read_word = _WORD.unpack
read_goaway = _GOAWAY.unpack_from


def read_head(source: bytes | bytearray, at: int) -> tuple[int, int, int, int]:
    """Return payload length, type, flags and stream of the frame that begins at `at`."""
    first, flags, stream_id = _HEAD.unpack_from(source, at)
    return first >> 8, first & 0xFF, flags, stream_id & 0x7FFFFFFF


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the identifiers and values of a SETTINGS payload, whose length is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the nine bytes before a payload."""
    return _HEAD.pack(length << 8 | kind, flags, stream_id)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_SETTING.pack(*pair) for pair in values)
    return head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = head(0, SETTINGS, ACK, 0)


def ping_ack(payload: bytes) -> bytes:
    """Return the answer to a PING frame."""
    return head(8, PING, ACK, 0) + payload


def ping(payload: bytes) -> bytes:
    """Return a PING frame with eight bytes of payload."""
    return head(8, PING, 0, 0) + payload


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return head(4, RST_STREAM, 0, stream_id) + _WORD.pack(code)


def window_update(stream_id: int, size_bytes: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return head(4, WINDOW_UPDATE, 0, stream_id) + _WORD.pack(size_bytes)


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """Return a GOAWAY frame. The peer may repeat requests on streams above `last_stream_id`."""
    debug = text.encode()[:1024]
    return head(8 + len(debug), GOAWAY, 0, 0) + _GOAWAY.pack(last_stream_id, code) + debug


def header_frames(stream_id: int, block: bytes, flags: int, frame_bytes_max: int) -> bytes:
    """Return a header block as HEADERS and, if it is long, CONTINUATION frames."""
    if len(block) <= frame_bytes_max:
        return head(len(block), HEADERS, flags | END_HEADERS, stream_id) + block
    parts = [block[at : at + frame_bytes_max] for at in range(0, len(block), frame_bytes_max)]
    out = [head(len(parts[0]), HEADERS, flags, stream_id), parts[0]]
    for number, part in enumerate(parts[1:], 1):
        end = END_HEADERS if number == len(parts) - 1 else 0
        out += (head(len(part), CONTINUATION, end, stream_id), part)
    return b"".join(out)
