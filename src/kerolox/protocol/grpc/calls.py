"""gRPC over HTTP/2: how a call begins, its messages in the data, and how it ends."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final
from urllib.parse import quote

import msgspec

from kerolox.errors import KeroloxError
from kerolox.protocol.http2.header_list import Fields, encode

_PREFIX = struct.Struct(
    ">B"  # 1 if the message is compressed
    "I"  # length of the message
)
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_TEXT_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_TEXT_MAX: Final = 1024

RESPONSE: Final = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])


class GrpcStatus(IntEnum):
    """Statuses of gRPC, for calls that end without a response of the service."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CallFailed(KeroloxError):
    """End of a call with a status of gRPC instead of a response."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class CallHead(msgspec.Struct, frozen=True):
    """The headers of a call."""

    path: str
    metadata: dict[str, str]  # the first value of each key, which is in lower case
    timeout_s: float | None


def read_head(fields: Fields) -> CallHead:
    """Read the headers of a request. Raises CallFailed if it is no call."""
    pseudo: dict[bytes, bytes] = {}
    metadata: dict[str, str] = {}
    for name, value in fields:
        if name[:1] == b":":
            pseudo[name] = value
        else:
            metadata.setdefault(name.decode("latin-1"), value.decode("utf-8", "replace"))
    kind = metadata.get("content-type", "")
    if pseudo[b":method"] != b"POST" or not kind.startswith("application/grpc"):
        raise CallFailed(
            GrpcStatus.UNKNOWN,
            f"a {pseudo[b':method'].decode('latin-1')} request of type {kind!r}: this port serves gRPC calls",
        )
    if metadata.get("grpc-encoding", "identity") != "identity":
        raise CallFailed(
            GrpcStatus.UNIMPLEMENTED,
            f"grpc-encoding {metadata['grpc-encoding']!r} is not supported: send messages uncompressed",
        )
    path = pseudo[b":path"].decode("latin-1")
    return CallHead(path, metadata, _timeout_s(metadata.get("grpc-timeout")))


def _timeout_s(text: str | None) -> float | None:
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise CallFailed(GrpcStatus.INVALID_ARGUMENT, f"grpc-timeout {text[:32]!r} is no time")
    return int(found[1]) * _UNITS[found[2]]


def trailers(status: GrpcStatus = GrpcStatus.OK, text: str = "") -> bytes:
    """Return the block of trailers that ends a call."""
    if status is GrpcStatus.OK:
        return _OK
    return encode(_status_fields(status, text))


def refusal(status: GrpcStatus, text: str) -> bytes:
    """Return the only block of a call that ends without a message."""
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    return encode(fields + _status_fields(status, text))


def _status_fields(status: GrpcStatus, text: str) -> Fields:
    message = quote(text[:_TEXT_MAX], safe=_TEXT_SAFE).encode()
    return [(b"grpc-status", b"%d" % status), (b"grpc-message", message)]


_OK: Final = encode([(b"grpc-status", b"0")])


def pack(message: bytes) -> bytes:
    """Return a message as it stands in the data."""
    return _PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Splits the data of one call into messages."""

    __slots__ = ("_buffer", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._buffer = bytearray()
        self._bytes_max = bytes_max

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now. Raises CallFailed at a long or compressed one."""
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        at, size = 0, len(source)
        while size - at >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(source, at)
            if compressed:
                raise CallFailed(GrpcStatus.UNIMPLEMENTED, "a compressed message: send messages uncompressed")
            if length > self._bytes_max:
                raise CallFailed(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"a message of {length} bytes, the limit is {self._bytes_max}",
                )
            begin = at + _PREFIX.size
            if begin + length > size:
                break
            at = begin + length
            yield bytes(source[begin:at])
        if source is self._buffer:
            del self._buffer[:at]
        elif at < size:
            self._buffer += source[at:]

    def check_end(self) -> None:
        """Raise CallFailed if the data ends inside a message."""
        if self._buffer:
            raise CallFailed(
                GrpcStatus.INVALID_ARGUMENT, f"the request ends {len(self._buffer)} bytes into a message"
            )
