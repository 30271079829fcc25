"""A small file of notes, each with its CRC in a place of its own: written often, without a flush.

A note survives the process, and lost power only if :meth:`NoteFile.sync` was called since: so whoever reads
one believes it only when the log proves it. A place is written anew in turns with another one, so that one of
them is whole at any time. Notes that cannot
be written are not missed: what they shorten is what comes twice after a kill.
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
    """One page of notes."""

    def __init__(self, files: Files, directory: PathLike, name: str) -> None:
        self.path = os.path.join(os.fspath(directory), name)
        self._files = files
        self._file: File | None = None
        self._failed = False
        self._is_named = True  # on the medium, too

    def read(self) -> bytes:
        """All of it; nothing when it is not there or does not read. Waits for the disk."""
        try:
            return self._files.read_if_exists(self.path) or b""
        except StoreError:
            return b""  # a wider window, nothing more

    def open(self) -> None:
        """Be ready to note. Waits for the disk."""
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
        """One small write into the page cache."""
        if self._file is None:
            return
        try:
            self._file.pwrite(body + _CRC.pack(crc32(body)), at)
        except StoreError as error:
            self._fail(error)

    def sync(self) -> None:
        """What was written so far survives a loss of power. Waits for the disk."""
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
        """What the first bytes say is not so. Raises StoreError. Waits for the disk."""
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
                "notes_not_written path=%s error=%r next='nothing is lost; after a kill more messages may "
                "come twice'",
                self.path,
                str(error),
            )


def body_at(data: bytes, at: int, size: int, path: str) -> bytes | None:
    """The note in this place, if one is there and whole. ``path`` is where the data is from."""
    body, crc = data[at : at + size], data[at + size : at + size + CRC_BYTES]
    if len(crc) != CRC_BYTES or not any(body):
        return None
    if _CRC.unpack(crc)[0] != crc32(body):
        log.warning(
            "note_damaged path=%s at=%d next='nothing is lost; more messages may come twice'", path, at
        )
        return None
    return body
