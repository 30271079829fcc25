"""Compressed bodies: zlib, LZ4 frames and zstd frames, as given by the message's ``sys_flag``.

A few bytes can inflate to gigabytes, so inflating stops at a named limit with an error. Brokers do not
compress or inflate message bodies: they store and serve them as received.
"""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Final

import lz4.frame
import zstandard

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_UNNAMED,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)
from kerolox.protocol.limits import INFLATED_BODY_BYTES_MAX

COMPRESS_FROM_BYTES: Final = 4096  # smaller bodies are sent as they are
LEVEL: Final = 5
_CHUNK: Final = 128 * 1024
_ZSTD_WINDOW_MIN: Final = 8 * 1024 * 1024  # every decoder must take windows up to here (RFC 8878)


def compress(body: bytes, kind: int = COMPRESSION_ZLIB, level: int = LEVEL) -> bytes:
    """Compress a body with one of the ``COMPRESSION_*`` kinds. The sender sets ``COMPRESSED | kind``."""
    if kind in (COMPRESSION_ZLIB, COMPRESSION_UNNAMED):
        return zlib.compress(body, level)
    if kind == COMPRESSION_LZ4:
        # Java's LZ4 stream knows one speed, and reads frames with independent blocks only.
        return bytes(lz4.frame.compress(body, block_linked=False))
    if kind == COMPRESSION_ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    raise InvalidRequest(
        f"compression kind {kind:#x} is unknown; known are LZ4 0x100, zstd 0x200, zlib 0x300"
    )


def decompress(body: bytes, sys_flag: int, bytes_max: int = INFLATED_BODY_BYTES_MAX) -> bytes:
    """Return the body as its sender wrote it, inflated if it is compressed."""
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind in (COMPRESSION_ZLIB, COMPRESSION_UNNAMED):
        return inflate_zlib(body, bytes_max)
    if kind == COMPRESSION_LZ4:
        return _inflate_lz4(body, bytes_max)
    if kind == COMPRESSION_ZSTD:
        return _inflate_zstd(body, bytes_max)
    raise ProtocolError(
        f"compressed body of unknown kind {kind:#x}; known are LZ4 0x100, zstd 0x200, zlib 0x300"
    )


def beginning(body: bytes, sys_flag: int, count: int) -> bytes:
    """Return the first `count` bytes of the original body, without inflating more."""
    if not sys_flag & COMPRESSED:
        return body[:count]
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind in (COMPRESSION_ZLIB, COMPRESSION_UNNAMED):
            return zlib.decompressobj().decompress(body, count)
        if kind == COMPRESSION_LZ4:
            return bytes(lz4.frame.LZ4FrameDecompressor().decompress(body, max_length=count))
        if kind == COMPRESSION_ZSTD:
            with zstandard.ZstdDecompressor().stream_reader(BytesIO(body)) as reader:
                return reader.read(count)
    except (zlib.error, RuntimeError, zstandard.ZstdError):
        pass  # decompress() says what is wrong
    return body[:count]


def inflate_zlib(body: bytes, bytes_max: int = INFLATED_BODY_BYTES_MAX) -> bytes:
    """Inflate a zlib stream (RFC 1950) up to a limit."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise ProtocolError(f"zlib body of {len(body)} bytes cannot be inflated: {error}") from error
    _check_bound("zlib", body, len(plain), bytes_max)
    if not stream.eof:
        raise _cut_off("zlib", body)
    return plain


def _inflate_lz4(body: bytes, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest: bytes | None = body
    while rest:  # frames may follow each other
        frame = lz4.frame.LZ4FrameDecompressor()
        feed = rest
        while not frame.eof:
            try:
                part = frame.decompress(feed, max_length=_CHUNK)
            except RuntimeError as error:  # all that lz4 raises for bad input
                raise ProtocolError(f"LZ4 body of {len(body)} bytes cannot be inflated: {error}") from error
            parts.append(part)
            size += len(part)
            _check_bound("LZ4", body, size, bytes_max)
            if frame.needs_input and not frame.eof:
                raise _cut_off("LZ4", body)
            feed = b""
        rest = frame.unused_data
    if not parts:
        raise _cut_off("LZ4", body)
    return b"".join(parts)


def _inflate_zstd(body: bytes, bytes_max: int) -> bytes:
    _check_zstd_whole(body)
    window = max(_ZSTD_WINDOW_MIN, 1 << bytes_max.bit_length())
    parts: list[bytes] = []
    size = 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=window).stream_reader(
            BytesIO(body), read_across_frames=True
        ) as reader:
            while part := reader.read(_CHUNK):
                parts.append(part)
                size += len(part)
                _check_bound("zstd", body, size, bytes_max)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"zstd body of {len(body)} bytes cannot be inflated: {error}") from error
    return b"".join(parts)


def _check_zstd_whole(body: bytes) -> None:
    """Walk the frames' blocks: the library's reader takes a frame cut off for one that ended."""
    at = 0
    while at < len(body) or at == 0:
        try:
            parameters = zstandard.get_frame_parameters(body[at:])
            at += zstandard.frame_header_size(body[at:])
        except zstandard.ZstdError as error:
            raise ProtocolError(
                f"zstd body of {len(body)} bytes has no frame here: {error}", at=at
            ) from error
        last = False
        while not last:
            head = int.from_bytes(body[at : at + 3], "little")
            last = bool(head & 1)
            at += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)  # kind 1: one byte, repeated
            if at > len(body):
                raise _cut_off("zstd", body)
        if parameters.has_checksum:
            at += 4
        if at > len(body):
            raise _cut_off("zstd", body)


def _check_bound(kind: str, body: bytes, size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ProtocolError(
            f"{kind} body of {len(body)} bytes inflates to more than {bytes_max} bytes "
            "(INFLATED_BODY_BYTES_MAX, or what other bodies have left of INFLATED_BLOCK_BYTES_MAX)"
        )


def _cut_off(kind: str, body: bytes) -> ProtocolError:
    return ProtocolError(
        f"{kind} body of {len(body)} bytes ends before its compressed data does", at=len(body)
    )
