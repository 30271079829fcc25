"""Limits of one connection: all that a peer can make grow."""

from __future__ import annotations

import msgspec

FRAME_BYTES = 16_384  # smallest limit that RFC 9113 allows, and the one in force before SETTINGS
WINDOW_BYTES = 65_535  # of streams and connections before SETTINGS and WINDOW_UPDATE
WINDOW_BYTES_MAX = 2**31 - 1
HEADER_TABLE_BYTES = 4_096


class Http2Limits(msgspec.Struct, frozen=True):
    """Limits of one connection."""

    streams_max: int = 2_000  # open at once; a push consumer holds one for each of its queues
    frame_bytes_max: int = FRAME_BYTES
    stream_window_bytes: int = 4 * 1024 * 1024
    connection_window_bytes: int = 16 * 1024 * 1024
    header_bytes_max: int = 32 * 1024  # of one header list, decoded, with 32 bytes for each field
    continuations_max: int = 8  # of one header block
    send_bytes_max: int = 64 * 1024 * 1024  # data that waits for windows of the peer
    remembered_resets: int = 1_024  # streams reset here whose late frames are ignored
    # PING, SETTINGS, RST_STREAM, WINDOW_UPDATE, short DATA and frames that are refused cost credit.
    credit: float = 2_000.0  # at the start, and at most
    credit_per_s: float = 100.0
    credit_per_request: float = 4.0  # when it is answered
    credit_per_kib: float = 1.0  # of data, in either direction


DEFAULT = Http2Limits()
