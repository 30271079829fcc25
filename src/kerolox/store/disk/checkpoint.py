"""The file ``checkpoint``: times and offsets up to which the store is known to be safe.

Five numbers at the start of 4096 bytes. Crash recovery starts from the newest commit-log file that begins
before :attr:`Checkpoint.min_timestamp_ms`, so a value too small costs time, and a value too large costs
messages. Therefore every doubtful value is read as 0.
"""

from __future__ import annotations

import logging
import os
import struct
import threading

from kerolox.store.disk.files import PAGE, File, Files, PathLike
from kerolox.store.errors import DiskError

logger = logging.getLogger(__name__)

# See FORMAT.md, "checkpoint".
_FIELDS = struct.Struct(
    ">q"  # store time of the last message known to be flushed in the commit log
    "q"  # store time of the last message dispatched to a consume queue
    "q"  # end time of the last full and flushed index file
    "q"  # flushed offset of the master (5.0 on)
    "q"  # confirmed offset of the log (5.1 on)
)
SIZE = PAGE
_SLACK_MS = 3000  # allowed difference between store times of log and queues for the same moment
_FUTURE_MS = 24 * 3600 * 1000


class Checkpoint:
    """Numbers of the checkpoint, set as data becomes safe, and written by :meth:`save`."""

    def __init__(self, files: Files, path: PathLike) -> None:
        self._files = files
        self.path = os.fspath(path)
        self._file: File | None = None
        self._lock = threading.Lock()  # saves come from more than one thread
        self.commit_log_ms = 0
        self.queues_ms = 0
        self.index_ms = 0
        self.master_flushed_offset = 0
        self.confirmed_offset = 0

    @property
    def min_timestamp_ms(self) -> int:
        """Return the time before which all stored messages are in the log and in the queues."""
        return max(0, min(self.commit_log_ms, self.queues_ms) - _SLACK_MS)

    @property
    def min_timestamp_with_index_ms(self) -> int:
        """Return the time before which all stored messages are also in the key index."""
        return min(self.min_timestamp_ms, self.index_ms)

    def load(self, now_ms: int | None = None) -> bool:
        """Read the file; return False if it does not exist. A missing, short or invalid field becomes 0.

        With ``now_ms``, a time more than a day ahead counts as invalid.
        """
        try:
            data = self._files.read_if_exists(self.path)
        except DiskError as error:
            logger.warning(
                "checkpoint_unreadable path=%s error=%r next='no action needed: all files are scanned'",
                self.path,
                error,
            )
            data = b""
        if data is None:
            return False
        times = _FIELDS.unpack(data[: _FIELDS.size].ljust(_FIELDS.size, b"\0"))
        latest_ms = (1 << 63) - 1 if now_ms is None else now_ms + _FUTURE_MS
        for name, value in zip(("commit_log_ms", "queues_ms", "index_ms"), times[:3], strict=True):
            if not 0 <= value <= latest_ms:
                logger.warning("checkpoint_time_ignored path=%s field=%r value=%d", self.path, name, value)
                value = 0
            setattr(self, name, value)
        # RocketMQ stores -1 for "not known".
        self.master_flushed_offset = times[3] if times[3] >= -1 else 0
        self.confirmed_offset = times[4] if times[4] >= -1 else 0
        return True

    def cut(self, offset: int, stored_ms: int) -> None:
        """Lower the numbers after a cut of the log at ``offset``; ``stored_ms`` is the store time of the last
        message."""
        self.commit_log_ms = min(self.commit_log_ms, stored_ms)
        self.queues_ms = min(self.queues_ms, stored_ms)
        self.master_flushed_offset = min(self.master_flushed_offset, offset)
        self.confirmed_offset = min(self.confirmed_offset, offset)

    def save(self) -> None:
        """Write and flush. Waits for the disk: call it in a thread."""
        data = _FIELDS.pack(
            self.commit_log_ms,
            self.queues_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
        )
        with self._lock:
            if self._file is None:
                self._file = self._open()
            # Forty bytes at the start of a file are in one sector: written whole or not at all.
            self._file.pwrite(data, 0)
            self._file.sync()

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> File:
        if not self._files.exists(self.path):
            file = self._files.create(self.path, SIZE)
            self._files.sync_dir(os.path.dirname(self.path))
            return file
        file = self._files.open(self.path)
        if file.size < SIZE:
            file.allocate(SIZE)
        return file
