"""Replication protocol of groups with a controller, on the port for followers. No I/O.

The log of such a group was written by one leader after another; each began an epoch. A follower sends a hello
with its id. The leader answers with the epochs and the end of its log, from which the follower finds the last
offset that both logs share. Then the follower reports the end of its log, and the leader sends ranges of its
log, each with its epoch and the confirmed offset. Every frame begins with its kind.

Numbers are big-endian and signed. This is the protocol of RocketMQ 5.1.1 and later; the classic one is in
``ha.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kerolox.errors import ProtocolError

HANDSHAKE, TRANSFER = 1, 2
PROCESS = 3  # kerolox only: sent before the hello to leaders that support it

_KIND = struct.Struct(">i")
_HELLO = struct.Struct(
    ">i"  # HANDSHAKE
    "h"  # 1: begin with the leader's last file
    "h"  # 1: a learner, which never counts as a copy
    "q"  # the follower's id
)
_PROCESS = struct.Struct(
    ">i"  # PROCESS
    "q"  # number of the follower's process
)
_REPORT = struct.Struct(
    ">i"  # TRANSFER
    "q"  # end of the follower's log
)
_WELCOME = struct.Struct(
    ">i"  # HANDSHAKE
    "i"  # length of the epochs that follow, bytes
    "q"  # end of the leader's log
    "i"  # the last epoch, -1 for none
)
_EPOCH = struct.Struct(
    ">i"  # number
    "q"  # start offset
)
_HEAD = struct.Struct(
    ">i"  # TRANSFER
    "i"  # length of the range in bytes; 0 is a heartbeat
    "q"  # offset of the range in the log; -1 while the leader's log is empty
    "i"  # epoch of the range
    "q"  # start offset of that epoch
    "q"  # confirmed offset of the leader's log
)
HELLO_BYTES = _HELLO.size
EPOCH_REPORT_BYTES = _REPORT.size
WELCOME_BYTES = _WELCOME.size
EPOCH_BYTES = _EPOCH.size
EPOCH_HEAD_BYTES = _HEAD.size
EPOCHS_MAX = 1000  # RocketMQ's leader has no room for more in one handshake
EPOCH_RANGE_BYTES_MAX = (4 << 20) - EPOCH_HEAD_BYTES  # limit of RocketMQ's follower
NO_EPOCH = -1


class Epoch(NamedTuple):
    """The epoch of one leader: its number and its start offset in the log."""

    number: int
    start: int


class Hello(NamedTuple):
    """A follower's first frame, repeated until it is answered."""

    follower_id: int
    from_last_file: bool = False
    is_learner: bool = False


class ProcessNumber(NamedTuple):
    """The number of the follower's process; a different process with the same id has a different number."""

    start: int


class Welcome(NamedTuple):
    """The leader's answer: its log end and its epochs."""

    end: int
    epochs: tuple[Epoch, ...]


class EpochPiece(NamedTuple):
    """Bytes of the log as they arrive; empty: a heartbeat."""

    offset: int
    data: memoryview
    epoch: Epoch
    confirmed: int


def pack_hello(hello: Hello, start: int | None = None) -> bytes:
    """Encode a hello. Send it in one write: RocketMQ's leader continues after 12 of the 16 bytes. ``start``:
    the number of the process, only for leaders that support it."""
    packed = _HELLO.pack(HANDSHAKE, hello.from_last_file, hello.is_learner, hello.follower_id)
    return packed if start is None else _PROCESS.pack(PROCESS, start) + packed


def pack_epoch_report(end: int) -> bytes:
    return _REPORT.pack(TRANSFER, end)


def pack_welcome(end: int, epochs: Sequence[Epoch]) -> bytes:
    if len(epochs) > EPOCHS_MAX:
        raise ProtocolError(f"{len(epochs)} epochs for one handshake: at most {EPOCHS_MAX}")
    last = epochs[-1].number if epochs else NO_EPOCH
    packed = [_EPOCH.pack(*epoch) for epoch in epochs]
    return b"".join((_WELCOME.pack(HANDSHAKE, len(epochs) * EPOCH_BYTES, end, last), *packed))


def pack_epoch_head(offset: int, length: int, epoch: Epoch, confirmed: int) -> bytes:
    return _HEAD.pack(TRANSFER, length, offset, *epoch, confirmed)


class FollowerFrames:
    """Parser of the leader's side: bytes in, the follower's frames out. A report is its log end."""

    __slots__ = ("_rest", "_seen")

    def __init__(self) -> None:
        self._rest = b""  # of an incomplete frame
        self._seen = 0  # bytes of complete frames, for error texts

    def feed(self, data: bytes) -> list[Hello | ProcessNumber | int]:
        """Return all complete frames. Raises ProtocolError; the stream is then unusable."""
        data = self._rest + data
        found: list[Hello | ProcessNumber | int] = []
        at = 0
        while len(data) - at >= _KIND.size:
            (kind,) = _KIND.unpack_from(data, at)
            if kind == HANDSHAKE:
                if len(data) - at < HELLO_BYTES:
                    break
                _, from_last_file, is_learner, follower_id = _HELLO.unpack_from(data, at)
                if from_last_file not in (0, 1) or is_learner not in (0, 1) or follower_id < 0:
                    raise ProtocolError(
                        f"the hello of a follower with id {follower_id} and settings {from_last_file}, "
                        f"{is_learner}: expected an id of 0 or more, and settings of 0 or 1",
                        at=self._seen + at,
                    )
                found.append(Hello(follower_id, bool(from_last_file), bool(is_learner)))
                at += HELLO_BYTES
            elif kind == PROCESS:
                if len(data) - at < _PROCESS.size:
                    break
                found.append(ProcessNumber(_PROCESS.unpack_from(data, at)[1]))
                at += _PROCESS.size
            elif kind == TRANSFER:
                if len(data) - at < EPOCH_REPORT_BYTES:
                    break
                _, end = _REPORT.unpack_from(data, at)
                if end < 0:
                    raise ProtocolError(f"the follower reports a log end of {end}", at=self._seen + at)
                found.append(int(end))
                at += EPOCH_REPORT_BYTES
            else:
                raise ProtocolError(
                    f"a frame of kind {kind} of a follower: expected {HANDSHAKE} (hello) or {TRANSFER} "
                    "(report). Does the follower run without a controller?",
                    at=self._seen + at,
                )
        self._rest = data[at:]
        self._seen += at
        return found


class LeaderFrames:
    """Parser of the follower's side: bytes in, the leader's answer and pieces of its log out as they
    arrive."""

    __slots__ = ("_confirmed", "_epoch", "_left", "_offset", "_rest", "_seen")

    def __init__(self) -> None:
        self._rest = b""  # of an incomplete head or welcome
        self._offset = 0  # of the next byte of the current range
        self._left = 0  # remaining bytes of the current range
        self._epoch = Epoch(NO_EPOCH, 0)  # epoch of the current range
        self._confirmed = 0  # confirmed offset in its head
        self._seen = 0  # position in the whole stream, for error texts

    def feed(self, data: bytes) -> list[Welcome | EpochPiece]:
        """Return everything received. Raises ProtocolError; the stream is then unusable."""
        found: list[Welcome | EpochPiece] = []
        carried = len(self._rest)
        view = memoryview(self._rest + data if carried else data)
        self._rest = b""
        at, end = 0, len(view)
        while at < end:
            if self._left:
                piece = view[at : at + self._left]
                found.append(EpochPiece(self._offset, piece, self._epoch, self._confirmed))
                at += len(piece)
                self._offset += len(piece)
                self._left -= len(piece)
                continue
            took = self._head(view, at, found)
            if not took:
                self._rest = bytes(view[at:])
                break
            at += took
        self._seen += at
        return found

    def _head(self, view: memoryview, at: int, found: list[Welcome | EpochPiece]) -> int:
        """Read a welcome or the head of a range. Return the number of bytes consumed; 0 if it is
        incomplete."""
        left = len(view) - at
        if left < _KIND.size:
            return 0
        (kind,) = _KIND.unpack_from(view, at)
        if kind == HANDSHAKE:
            return self._welcome(view, at, left, found)
        if kind != TRANSFER:
            raise ProtocolError(
                f"a frame of kind {kind} of a leader: expected {HANDSHAKE} (welcome) or {TRANSFER} (range). "
                "Is this the port for followers (haListenPort) of a leader with a controller?",
                at=self._seen + at,
            )
        if left < EPOCH_HEAD_BYTES:
            return 0
        _, length, offset, number, start, confirmed = _HEAD.unpack_from(view, at)
        if not 0 <= length <= EPOCH_RANGE_BYTES_MAX or offset < (0 if length else -1):
            raise ProtocolError(
                f"a range of {length} bytes at {offset} of the log: expected 0 to {EPOCH_RANGE_BYTES_MAX} "
                "bytes, not before the beginning",
                at=self._seen + at,
            )
        self._offset, self._left, self._confirmed = offset, length, confirmed
        self._epoch = Epoch(number, start)
        if not length:
            found.append(EpochPiece(offset, view[:0], self._epoch, confirmed))
        return EPOCH_HEAD_BYTES

    def _welcome(self, view: memoryview, at: int, left: int, found: list[Welcome | EpochPiece]) -> int:
        if left < WELCOME_BYTES:
            return 0
        _, length, log_end, last = _WELCOME.unpack_from(view, at)
        place = self._seen + at
        if not 0 <= length <= EPOCHS_MAX * EPOCH_BYTES or length % EPOCH_BYTES or log_end < 0:
            raise ProtocolError(
                f"the welcome of a leader with {length} bytes of epochs, whose log ends at {log_end}: "
                f"expected up to {EPOCHS_MAX} epochs of {EPOCH_BYTES} bytes, and an end of 0 or more",
                at=place,
            )
        if left < WELCOME_BYTES + length:
            return 0
        body = view[at + WELCOME_BYTES : at + WELCOME_BYTES + length]
        epochs = tuple(Epoch(*packed) for packed in _EPOCH.iter_unpack(body))
        check_order(epochs, place)
        if last != (epochs[-1].number if epochs else NO_EPOCH):
            raise ProtocolError(
                f"the leader's welcome has last epoch {last}, which is not the last of its list of "
                f"{len(epochs)}",
                at=place,
            )
        found.append(Welcome(log_end, epochs))
        return WELCOME_BYTES + int(length)


def check_order(epochs: Sequence[Epoch], at: int | None = None) -> None:
    """Check that the numbers and the starts of the epochs increase. Raises ProtocolError."""
    before: Epoch | None = None
    for epoch in epochs:
        if epoch.number < 0 or epoch.start < 0:
            raise ProtocolError(f"epoch {epoch.number} from {epoch.start}: both must be 0 or more", at=at)
        if before is not None and (epoch.number <= before.number or epoch.start <= before.start):
            raise ProtocolError(
                f"epoch {epoch.number} from {epoch.start} after epoch {before.number} from {before.start}: "
                "both numbers must increase",
                at=at,
            )
        before = epoch
