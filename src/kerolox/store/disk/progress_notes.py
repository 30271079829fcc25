"""Progress notes of kerolox beside RocketMQ's files: ``kerolox.marks``. RocketMQ ignores the file, and a
store works without it.

They make a start faster and more accurate: from which offset on the log must be read again, if power was lost
or only the process died, and if queues or index files have vanished since.

One line of JSON in one sector of 512 bytes, with a CRC: written whole or not at all.
"""

from __future__ import annotations

import logging
import os
import threading

import msgspec

from kerolox.store.disk.files import File, Files, PathLike
from kerolox.store.disk.json_note import decode_note, encode_note
from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)

NAME = "kerolox.marks"
SECTOR_BYTES = 512
UNKNOWN = -1


class ProgressNotes(msgspec.Struct):
    """Progress that is known to be safe, and the circumstances under which it was noted."""

    # Identity of the operating system's run; if it is another one now, power may have been lost
    boot: str = ""
    dispatched: int = UNKNOWN  # queues and index hold every record before this offset, on the medium
    flushed: int = UNKNOWN  # the log is on the medium up to here
    queues: int = UNKNOWN  # number of consume queues
    index_files: int = UNKNOWN  # number of files of the key index
    log_end: int = UNKNOWN  # after a clean stop: end of the log
    queue_files: int = UNKNOWN  # after a clean stop: number of files of all queues


class ProgressNotesFile:
    """File with the progress notes of one store."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self._files = files
        self._file: File | None = None
        self._lock = threading.Lock()

    def load(self) -> ProgressNotes:
        """Return the progress notes; all unknown if the file does not exist or cannot be read."""
        try:
            data = self._files.read_if_exists(self.path)
        except StoreError as error:
            log.warning(
                "marks_unreadable path=%s error=%r next='no action needed: more of the log is read'",
                self.path,
                str(error),
            )
            return ProgressNotes()
        if data is None:
            return ProgressNotes()
        try:
            return decode_note(data, ProgressNotes)
        except ValueError:
            log.warning(
                "marks_ignored path=%s reason='damaged' next='no action needed: more of the log is read'",
                self.path,
            )
            return ProgressNotes()

    def save(self, marks: ProgressNotes) -> None:
        """Write and flush. Waits for the disk: call it in a thread."""
        data = encode_note(marks)
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
    """Return the identity of this run of the operating system; empty if it is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
