"""Small file of notes, each with its CRC and its own place: written often, without a flush.

A note survives a kill of the process, but a power loss only if :meth:`NoteFile.sync` was called since.
Readers therefore trust a note only if the log confirms it. Notes alternate between two places, so that one of
them is whole at any time. If notes cannot be written, nothing is lost: more messages are delivered twice
after a kill.
"""

from __future__ import annotations

import logging
import os
import struct
from zlib import crc32

from kerolox.store.disk.files import PAGE, File, Files, PathLike
from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)

_CRC = struct.Struct(">I")
CRC_BYTES = _CRC.size


class NoteFile:
    """File with one page of notes."""

    def __init__(self, files: Files, directory: PathLike, name: str) -> None:
        self.path = os.path.join(os.fspath(directory), name)
        self._files = files
        self._file: File | None = None
        self._failed = False
        self._is_named = True  # True if its name is on the medium, too

    def read(self) -> bytes:
        """Return the whole file; nothing if it does not exist or cannot be read. Wait for the disk."""
        try:
            return self._files.read_if_exists(self.path) or b""
        except StoreError:
            return b""  # more messages are delivered twice, nothing else

    def open(self) -> None:
        """Open or create the file. Wait for the disk."""
        try:
            if self._files.exists(self.path) and self._files.size(self.path) == PAGE:
                self._file = self._files.open(self.path)
            else:
                self._files.remove(self.path)
                self._file = self._files.create(self.path, PAGE)
                self._is_named = False
        except StoreError as error:
            self._fail(error)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def write(self, body: bytes, at: int) -> None:
        """Write a note with its CRC into the page cache."""
        if self._file is None:
            return
        try:
            self._file.pwrite(body + _CRC.pack(crc32(body)), at)
        except StoreError as error:
            self._fail(error)

    def sync(self) -> None:
        """Flush the notes, so that they survive a power loss. Wait for the disk."""
        if self._file is None or self._failed:
            return
        try:
            self._file.sync()
            if not self._is_named:
                self._files.sync_dir(os.path.dirname(self.path))
                self._is_named = True
        except StoreError as error:
            self._fail(error)

    def forget(self, size: int) -> None:
        """Erase the first ``size`` bytes of notes. Raise StoreError. Wait for the disk."""
        if self._file is not None:
            self._file.pwrite(bytes(size), 0)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _fail(self, error: StoreError) -> None:
        if not self._failed:
            self._failed = True
            log.warning(
                "notes_not_written path=%s error=%r next='follow the step in the error; until then more "
                "messages may be delivered twice after a kill'",
                self.path,
                str(error),
            )


def body_at(data: bytes, at: int, size: int, path: str) -> bytes | None:
    """Return the note at this place if it exists and is whole. ``path`` is the file of the data."""
    body, crc = data[at : at + size], data[at + size : at + size + CRC_BYTES]
    if len(crc) != CRC_BYTES or not any(body):
        return None
    if _CRC.unpack(crc)[0] != crc32(body):
        log.warning(
            "note_damaged path=%s at=%d next='no action needed: more messages may be delivered twice'",
            path,
            at,
        )
        return None
    return body
