"""Our own notes beside RocketMQ's files: ``kerolox.marks``. Its broker ignores the file; we can do without.

They make a start shorter and its judgement sharper: from which offset on the log has to be read again,
whether power was lost or only the process died, whether queues or index files have vanished since.
One line of JSON in one sector of 512 bytes, with a CRC: written whole or not at all.
"""

from __future__ import annotations

import logging
import os
import threading
from zlib import crc32

import msgspec

from kerolox.store.disk.files import File, Files, PathLike
from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)

NAME = "kerolox.marks"
SECTOR_BYTES = 512
UNKNOWN = -1


class ProgressNotes(msgspec.Struct):
    """What is known to be safe, and under which circumstances it was noted."""

    boot: str = ""  # identity of the operating system's run; another one now: power may have been lost
    dispatched: int = UNKNOWN  # queues and index hold every record before this offset, on the medium
    flushed: int = UNKNOWN  # the log is on the medium up to here
    queues: int = UNKNOWN  # how many consume queues there were
    index_files: int = UNKNOWN  # how many files the key index had
    log_end: int = UNKNOWN  # after a clean stop: where the log ended
    queue_files: int = UNKNOWN  # after a clean stop: how many files all queues had


class ProgressNotesFile:
    """Reads and writes the progress notes of one store."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self._files = files
        self._file: File | None = None
        self._lock = threading.Lock()

    def load(self) -> ProgressNotes:
        """The progress notes; all unknown when there is no file or it does not read."""
        try:
            data = self._files.read_if_exists(self.path)
        except StoreError as error:
            log.warning(
                "marks_unreadable path=%s error=%r next='more of the log is read'", self.path, str(error)
            )
            return ProgressNotes()
        if data is None:
            return ProgressNotes()
        line, _, rest = data.partition(b"\n")
        try:
            if int(rest[:10]) != crc32(line):
                raise ValueError("CRC")
            return msgspec.json.decode(line, type=ProgressNotes)
        except (ValueError, msgspec.DecodeError):
            log.warning(
                "marks_ignored path=%s reason='does not read' next='more of the log is read'", self.path
            )
            return ProgressNotes()

    def save(self, marks: ProgressNotes) -> None:
        """Write and flush; waits for the disk, so call it in a thread."""
        line = msgspec.json.encode(marks)
        data = b"%b\n%010d\n" % (line, crc32(line))
        with self._lock:
            if self._file is None:
                if self._files.exists(self.path):
                    self._file = self._files.open(self.path)
                else:
                    self._file = self._files.create(self.path, SECTOR_BYTES)
                    self._files.sync_dir(os.path.dirname(self.path))
            self._file.pwrite(data.ljust(SECTOR_BYTES, b"\0"), 0)
            self._file.sync()

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


def boot_identity() -> str:
    """Names this run of the operating system; empty where that cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
