"""What a follower and its leader say on the port for followers, RocketMQ's classic way. No I/O.

A follower says how far its log goes, eight bytes each time and nothing else, ever. The leader sends ranges
of its log, each behind a head of twelve bytes: where it lies, how long it is. A range of no bytes is a
heartbeat, and says where the leader will go on. Numbers are big-endian and signed. There is no hello, no
version and no checksum.
"""

from __future__ import annotations

import struct

from kerolox.errors import ProtocolError

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(
    ">q"  # where the range lies in the log
    "i"  # how many bytes follow
)
REPORT_BYTES = _REPORT.size
HEAD_BYTES = _HEAD.size
RANGE_BYTES_MAX = (4 << 20) - HEAD_BYTES  # RocketMQ's follower never gets past a longer one
_HELLO = 1  # what a follower of a group with a controller says first
_FLAGS = (0, 1, 0x1_0000, 0x1_0001)  # its two settings
_IDS = 1 << 32  # its broker id is less

# (offset, bytes); no bytes: a heartbeat
Piece = tuple[int, memoryview]

pack_report = _REPORT.pack
pack_head = _HEAD.pack


class ReportReader:
    """The leader's side: feed it bytes, take how far the follower is."""

    __slots__ = ("_rest", "_seen")

    def __init__(self) -> None:
        self._rest = b""  # of a report that is not all there
        self._seen = 0  # bytes of whole reports

    def feed(self, data: bytes) -> int | None:
        """The last whole report, which makes those before it old; None when there is none. Raises
        ProtocolError."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        if not whole:
            return None
        (last,) = _REPORT.unpack_from(data, whole - REPORT_BYTES)
        if not self._seen and whole == 2 * REPORT_BYTES:
            (first,) = _REPORT.unpack_from(data)
            # Reports never fall: what looks like one that does is the hello of another protocol.
            if first >> 32 == _HELLO and first & 0xFFFF_FFFF in _FLAGS and 0 <= last < _IDS:
                raise ProtocolError(
                    f"follower {last} speaks the protocol of groups with a controller "
                    "(enableControllerMode), and this leader does not. Start it without a controller",
                    at=0,
                )
        self._seen += whole
        if last < 0:
            raise ProtocolError(
                f"a follower that reports its log to end at {last}", at=self._seen - REPORT_BYTES
            )
        return int(last)


class RangeReader:
    """The follower's side: feed it bytes, take pieces of ranges as they come, not only whole ones."""

    __slots__ = ("_head", "_left", "_offset", "_seen")

    def __init__(self) -> None:
        self._head = b""  # of a range, not all there
        self._offset = 0  # of the next byte of the range that is under way
        self._left = 0  # bytes of it to come
        self._seen = 0  # position in the whole stream, for error texts

    def feed(self, data: bytes) -> list[Piece]:
        """All that came, with its place in the log. Raises ProtocolError: what follows cannot be trusted."""
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
