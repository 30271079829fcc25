"""Errors of HTTP/2, by scope: one stream, or the whole connection."""

from __future__ import annotations

from enum import IntEnum

from kerolox.errors import ProtocolError


class ErrorCode(IntEnum):
    """Error codes of RST_STREAM and GOAWAY frames (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def code_name(code: int) -> str:
    """Return the name of an error code, or its number if it has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"0x{code:x}"


class Http2Error(ProtocolError):
    """Violation of HTTP/2 that ends the connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.http2_code = code


class StreamError(ProtocolError):
    """Violation of HTTP/2 that ends one stream."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(f"stream {stream_id}: {code.name}: {text}")
        self.stream_id = stream_id
        self.http2_code = code
