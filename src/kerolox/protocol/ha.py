"""Classic replication protocol between a follower and its leader, on the port for followers. No I/O.

A follower reports the end of its log in eight bytes and sends nothing else. The leader sends ranges of its
log, each after a head of twelve bytes: offset and length. An empty range is a heartbeat and contains the
offset where the leader continues. Numbers are big-endian and signed. There is no handshake, version or
checksum.
"""

from __future__ import annotations

import struct

from kerolox.errors import ProtocolError

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(
    ">q"  # offset of the range in the log
    "i"  # length of the range in bytes
)
REPORT_BYTES = _REPORT.size
HEAD_BYTES = _HEAD.size
RANGE_BYTES_MAX = (4 << 20) - HEAD_BYTES  # RocketMQ's follower cannot process a longer range
_HELLO = 1  # first number sent by a follower of a group with a controller
_FLAGS = (0, 1, 0x1_0000, 0x1_0001)  # values of its two settings
_IDS = 1 << 32  # its broker id is less than this

# (offset, bytes); no bytes: a heartbeat
Piece = tuple[int, memoryview]

pack_report = _REPORT.pack
pack_head = _HEAD.pack


class ReportReader:
    """Parser of the leader's side: bytes in, the follower's reported offset out."""

    __slots__ = ("_rest", "_seen")

    def __init__(self) -> None:
        self._rest = b""  # of an incomplete report
        self._seen = 0  # bytes of complete reports

    def feed(self, data: bytes) -> int | None:
        """Return the last complete report, which supersedes those before it; None if there is none. Raises
        ProtocolError."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        if not whole:
            return None
        (last,) = _REPORT.unpack_from(data, whole - REPORT_BYTES)
        if not self._seen and whole == 2 * REPORT_BYTES:
            (first,) = _REPORT.unpack_from(data)
            # Reports never decrease: an apparent decrease is the hello of another protocol.
            if first >> 32 == _HELLO and first & 0xFFFF_FFFF in _FLAGS and 0 <= last < _IDS:
                raise ProtocolError(
                    f"follower {last} speaks the protocol of groups with a controller "
                    "(enableControllerMode), and this leader does not. Start it without a controller",
                    at=0,
                )
        self._seen += whole
        if last < 0:
            raise ProtocolError(f"the follower reports a log end of {last}", at=self._seen - REPORT_BYTES)
        return int(last)


class RangeReader:
    """Parser of the follower's side: bytes in, pieces of ranges out as they arrive, before ranges are
    complete."""

    __slots__ = ("_head", "_left", "_offset", "_seen")

    def __init__(self) -> None:
        self._head = b""  # of an incomplete range head
        self._offset = 0  # of the next byte of the current range
        self._left = 0  # remaining bytes of the current range
        self._seen = 0  # position in the whole stream, for error texts

    def feed(self, data: bytes) -> list[Piece]:
        """Return the received pieces with their offsets in the log. Raises ProtocolError; the stream is then
        unusable."""
        pieces: list[Piece] = []
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end:
            if self._left:
                piece = view[at : at + self._left]
                pieces.append((self._offset, piece))
                at += len(piece)
                self._offset += len(piece)
                self._left -= len(piece)
                continue
            take = view[at : at + HEAD_BYTES - len(self._head)]
            self._head += take
            at += len(take)
            if len(self._head) < HEAD_BYTES:
                break
            offset, length = _HEAD.unpack(self._head)
            if offset < 0 or not 0 <= length <= RANGE_BYTES_MAX:
                raise ProtocolError(
                    f"a range of {length} bytes at {offset} of the log: expected 0 to {RANGE_BYTES_MAX} "
                    "bytes, not before the beginning. Is this the port for followers (haListenPort)?",
                    at=self._seen + at - HEAD_BYTES,
                )
            self._head = b""
            self._offset, self._left = offset, length
            if not length:
                pieces.append((offset, view[:0]))
        self._seen += end
        return pieces
