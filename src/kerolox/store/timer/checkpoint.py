"""Progress of the timer: the file ``config/timercheck``. See FORMAT.md."""

from __future__ import annotations

import logging
import os
import struct

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.store.disk.files import PAGE, File, Files, PathLike

log = logging.getLogger(__name__)

_FIELDS = struct.Struct(
    ">q"  # all messages due before this time were delivered
    "q"  # flushed offset of the timer log
    "q"  # messages of the timer's queue before this offset are in the timer log, or delivered
    "q"  # that queue offset of the leader
    "q"  # version: epoch
    "q"  # version: time
    "q"  # version: number of changes
)
ENCODED_BYTES = _FIELDS.size
_FUTURE_MS = 24 * 3600 * 1000
_OLD_BYTES = 32  # size before the version was added


class TimerCheckpoint:
    """Numbers of the timer's checkpoint, set by the timer, and written by :meth:`save`."""

    def __init__(self, files: Files, path: PathLike) -> None:
        self.path = os.fspath(path)
        self.read_ms = 0
        self.log_flushed = 0
        self.queue_offset = 0
        self.leader_queue_offset = 0
        self.version = DataVersion()
        self._files = files
        self._file: File | None = None

    def load(self, noted: bytes | None = None, now_ms: int | None = None) -> bool:
        """Read the file; return False if it does not exist. Missing numbers are 0. Runs in a thread.

        ``noted`` is the saved copy of the last checkpoint: it applies if the file differs and has the same
        version or an older one. A time more than a day after ``now_ms`` is invalid, and counts as unknown.
        """
        data = self._files.read_if_exists(self.path)
        if data is None and noted is None:
            return False
        data = (data or b"")[:ENCODED_BYTES].ljust(ENCODED_BYTES, b"\0")
        if noted is not None and data != noted and _FIELDS.unpack(data)[6] <= _FIELDS.unpack(noted)[6]:
            log.warning(
                "timer_checkpoint_damaged path=%s next='no action needed: its saved copy is used'", self.path
            )
            data = noted
        self._take(data)
        if now_ms is not None and self.read_ms > now_ms + _FUTURE_MS:
            log.warning(
                "timer_checkpoint_damaged path=%s read_ms=%d next='no action needed: recently due messages "
                "may be delivered twice'",
                self.path,
                self.read_ms,
            )
            self.read_ms = 0
        return True

    def encode(self) -> bytes:
        """Return the checkpoint as it is written, and as followers get it."""
        version = self.version
        return _FIELDS.pack(
            self.read_ms,
            self.log_flushed,
            self.queue_offset,
            self.leader_queue_offset,
            version.state_version,
            version.timestamp,
            version.counter,
        )

    def _take(self, data: bytes) -> None:
        numbers = _FIELDS.unpack(data)
        self.read_ms, self.log_flushed, self.queue_offset, self.leader_queue_offset = (
            max(0, number) for number in numbers[:4]
        )
        self.version = DataVersion(state_version=numbers[4], timestamp=numbers[5], counter=numbers[6])

    def save(self, data: bytes) -> None:
        """Write the encoded checkpoint, and flush. Runs in a thread."""
        if self._file is None:
            self._file = self._open()
        self._file.pwrite(data, 0)
        self._file.sync()

    def _open(self) -> File:
        if self._files.exists(self.path):
            file = self._files.open(self.path)
            if file.size < PAGE:
                file.allocate(PAGE)
            return file
        directory = os.path.dirname(self.path)
        for made in self._files.make_dirs(directory):
            self._files.sync_dir(os.path.dirname(made))
        file = self._files.create(self.path, PAGE)
        self._files.sync_dir(directory)
        return file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def decode_leader(data: bytes) -> tuple[int, int, DataVersion | None]:
    """Return the read time, the queue offset, and the version, if it has one, from a leader's answer to
    GET_TIMER_CHECK_POINT."""
    if len(data) < _OLD_BYTES:
        raise ProtocolError(f"timer checkpoint has {len(data)} bytes, expected {ENCODED_BYTES}", at=len(data))
    read_ms, _, _, leader_queue_offset = struct.unpack_from(">4q", data)
    if read_ms < 0 or leader_queue_offset < 0:
        raise ProtocolError(f"timer checkpoint has read time {read_ms} and offset {leader_queue_offset}")
    if len(data) < ENCODED_BYTES:
        return read_ms, leader_queue_offset, None
    epoch, timestamp, counter = struct.unpack_from(">3q", data, _OLD_BYTES)
    return (
        read_ms,
        leader_queue_offset,
        DataVersion(state_version=epoch, timestamp=timestamp, counter=counter),
    )
