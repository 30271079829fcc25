"""A byte stream split into frames, and back. See FRAME.md.

The splitter accepts the bytes as they arrive and returns all complete frames at once: processing many frames
in one pass makes the servers fast.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kerolox.compiled import compiled
from kerolox.errors import ProtocolError
from kerolox.protocol.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

JSON = 0
BINARY = 1

_PREFIX = struct.Struct(
    ">i"  # bytes that follow: 4 + header + body
    "I"  # high byte: how the header is encoded; low three bytes: header length
)
_TLS_CLIENT_HELLO = 0x16

# (encoding, header, body)
Frame = tuple[int, bytes, bytes]


class LongFrame:
    """A frame whose body is received directly into its final memory."""

    __slots__ = ("body", "encoding", "filled", "header")

    def __init__(self, encoding: int, header: bytes, body: memoryview, filled: int) -> None:
        self.encoding = encoding
        self.header = header
        self.body = body
        self.filled = filled  # bytes of the body received so far

    @property
    def room(self) -> memoryview:
        """Memory for the next bytes of the body."""
        return self.body[self.filled :]

    @property
    def is_whole(self) -> bool:
        return self.filled == len(self.body)


class FrameSplitter:
    """Splits bytes into frames. After ``error`` is set the stream is unusable and further input is
    ignored."""

    __slots__ = ("_buffer", "_bytes_max", "_consumed", "_needed", "error")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.error: ProtocolError | None = None
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._needed = 0  # do not look at the buffer before it holds this much
        self._consumed = 0  # position of the buffer's start in the whole stream, for error texts

    def feed(self, data: bytes) -> list[Frame]:
        """Return all frames that are complete now. Frames before an invalid one are still returned."""
        if self.error is not None:
            return []
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return []
            source = buffer
        frames, position, needed = split_frames(source, self._bytes_max)
        if needed < 0:
            length, mark = _PREFIX.unpack_from(source, position)
            self.error = self._explain(length, mark & 0xFFFFFF, position)
        self._needed = needed
        self._consumed += position
        if source is buffer:
            del buffer[:position]
        elif position < len(data):
            buffer += data[position:]
        return frames

    def take_long(self, bytes_min: int, room: Callable[[int], memoryview]) -> LongFrame | None:
        """Return the incomplete frame if it is at least this long and its header is complete. The caller then
        fills it with the next bytes of the stream; ``room`` allocates its memory."""
        buffer = self._buffer
        if self._needed < bytes_min or len(buffer) < _PREFIX.size:
            return None
        length, mark = _PREFIX.unpack_from(buffer)
        at = _PREFIX.size + (mark & 0xFFFFFF)
        if len(buffer) < at:
            return None
        body = room(4 + length - at)
        body[: len(buffer) - at] = memoryview(buffer)[at:]
        found = LongFrame(mark >> 24, bytes(buffer[_PREFIX.size : at]), body, len(buffer) - at)
        self._consumed += 4 + length
        self._needed = 0
        self._buffer = bytearray()
        return found

    def clear(self) -> None:
        """Drop the buffered bytes: the connection was closed."""
        self._buffer = bytearray()
        self._needed = 0

    @property
    def waiting_bytes(self) -> int:
        """Number of buffered bytes of the incomplete frame."""
        return len(self._buffer)

    def _explain(self, length: int, header_length: int, position: int) -> ProtocolError:
        at = self._consumed + position
        if at == 0 and (length >> 24) & 0xFF == _TLS_CLIENT_HELLO:
            return ProtocolError(
                "a TLS client hello on a port without TLS. Connect without TLS, or configure a server "
                "certificate: tls.server.certPath and tls.server.keyPath, or tls.test.mode.enable=true",
                at=at,
            )
        if length + 4 > self._bytes_max:
            return ProtocolError(f"frame of {length + 4} bytes, the limit is {self._bytes_max}", at=at)
        if header_length > HEADER_BYTES_MAX:
            return ProtocolError(f"header of {header_length} bytes, the limit is {HEADER_BYTES_MAX}", at=at)
        return ProtocolError(f"frame length {length} cannot hold a header of {header_length} bytes", at=at)


def _split_frames(source: bytes | bytearray, bytes_max: int) -> tuple[list[Frame], int, int]:
    """Return the complete frames, the position where they end, and the number of bytes that the next frame
    needs from there: -1 if the bytes are not a frame."""
    frames: list[Frame] = []
    position = 0
    end = len(source)
    unpack = _PREFIX.unpack_from
    while end - position >= 8:
        length, mark = unpack(source, position)
        header_length = mark & 0xFFFFFF
        if length + 4 > bytes_max or length < 4 + header_length or header_length > HEADER_BYTES_MAX:
            return frames, position, -1
        stop = position + 4 + length
        if stop > end:
            return frames, position, stop - position
        body = position + 8 + header_length
        frames.append((mark >> 24, bytes(source[position + 8 : body]), bytes(source[body:stop])))
        position = stop
    return frames, position, 8


split_frames = compiled("split_frames", _split_frames)


def pack_frame(encoding: int, header: bytes, body: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    return _PREFIX.pack(4 + len(header) + len(body), encoding << 24 | len(header)) + header + body


def pack_prefix(encoding: int, header_length: int, body_length: int) -> bytes:
    """Return the eight bytes before a header, for callers that assemble a frame themselves."""
    return _PREFIX.pack(4 + header_length + body_length, encoding << 24 | header_length)
