"""The client's end of an HTTP/2 connection for tests: frames by hand, and a reader of the server's frames."""

from __future__ import annotations

from dataclasses import dataclass, field

import hpack

from kerolox.protocol.http2 import frames
from kerolox.protocol.http2.connection import Event, ServerConnection
from kerolox.protocol.http2.errors import ErrorCode
from kerolox.protocol.http2.header_list import Fields
from kerolox.protocol.http2.limits import DEFAULT, FRAME_BYTES, Http2Limits

REQUEST: Fields = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/kerolox/Echo"),
    (b":authority", b"127.0.0.1"),
    (b"te", b"trailers"),
]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.head(len(payload), kind, flags, stream_id) + payload


def data_frames(stream_id: int, data: bytes) -> bytes:
    """Return the data in frames of the usual length."""
    parts = [data[at : at + FRAME_BYTES] for at in range(0, len(data), FRAME_BYTES)]
    return b"".join(frame(frames.DATA, 0, stream_id, part) for part in parts)


@dataclass
class Sent:
    """A frame that the server sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def is_end(self) -> bool:
        return self.kind in (frames.DATA, frames.HEADERS) and bool(self.flags & frames.END_STREAM)


@dataclass
class Wire:
    """A server connection with its client."""

    limits: Http2Limits = DEFAULT
    now_s: float = 0.0
    server: ServerConnection = field(init=False)
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)
    decoder: hpack.Decoder = field(default_factory=hpack.Decoder)

    def __post_init__(self) -> None:
        self.server = ServerConnection(self.limits)

    def feed(self, *parts: bytes) -> list[Event]:
        return self.server.receive(b"".join(parts), self.now_s)

    def greet(self, *values: tuple[int, int]) -> None:
        """Exchange prefaces and settings."""
        assert self.feed(frames.PREFACE, frames.settings(values)) == []
        self.sent()

    def headers(self, stream_id: int, flags: int = frames.END_STREAM, fields: Fields = REQUEST) -> bytes:
        return frame(frames.HEADERS, flags | frames.END_HEADERS, stream_id, self.encoder.encode(fields))

    def sent(self) -> list[Sent]:
        """Take the frames that the server wants to write."""
        out = b"".join(self.server.output)
        self.server.output.clear()
        found, at = [], 0
        while at < len(out):
            length, kind, flags, stream_id = frames.read_head(out, at)
            at += frames.HEAD_BYTES + length
            found.append(Sent(kind, flags, stream_id, out[at - length : at]))
        assert at == len(out)
        return found

    def end(self) -> ErrorCode:
        """Return the code with which the server ended the connection."""
        last = self.sent()[-1]
        assert last.kind == frames.GOAWAY
        assert self.server.error is not None
        code = ErrorCode(frames.read_goaway(last.payload)[1])
        assert code == self.server.error.http2_code
        return code

    def data_of(self, stream_id: int, sent: list[Sent]) -> bytes:
        return b"".join(one.payload for one in sent if one.kind == frames.DATA and one.stream_id == stream_id)
