"""Identity of a log: ``kerolox.log``, kerolox's own note beside RocketMQ's files.

It holds the beginning of the log, and the first record of each of its files. A start can therefore detect a
missing first file, files that were swapped, and files of another store, which the files of the log alone do
not show.

Another broker that uses the store deletes and cuts files without updating this note. It leaves a sign: see
:meth:`kerolox.store.disk.lock.StoreLock.sign`. Then the note is not trusted, and rewritten.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple
from zlib import crc32

import msgspec

from kerolox.store.disk.files import Files, PathLike

log = logging.getLogger(__name__)

NAME = "kerolox.log"


class FileHead(NamedTuple):
    """File of the log, and its first record."""

    start: int
    body_crc: int
    store_ms: int


class LogIdentity(msgspec.Struct, frozen=True):
    """Identity of a log: every file from ``begin`` on belongs to it."""

    begin: int = 0
    heads: list[FileHead] = []

    def before(self, end: int) -> LogIdentity:
        """Return the identity after a cut of the log at this offset."""
        return LogIdentity(min(self.begin, end), [head for head in self.heads if head.start < end])


class LogIdentityFile:
    """File with the identity of one log."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self.known: LogIdentity | None = None  # as it is on disk
        self._files = files

    def load(self) -> LogIdentity | None:
        """Return the identity; None if there is no note, or it is damaged. Raise DiskError if it cannot be
        read at the moment: a new note would take the existing files for the beginning of the log."""
        self.known = None
        data = self._files.read_if_exists(self.path)
        if data is None:
            return None
        line, _, rest = data.partition(b"\n")
        try:
            if int(rest[:10]) != crc32(line):
                raise ValueError("its CRC does not match")
            self.known = msgspec.json.decode(line, type=LogIdentity)
        except (ValueError, msgspec.DecodeError) as error:
            log.warning(
                "log_identity_ignored path=%s reason=%r next='check that the first files of the log exist: "
                "this start cannot, and writes the note anew'",
                self.path, str(error),
            )  # fmt: skip
        return self.known

    def save(self, identity: LogIdentity) -> None:
        """Write, flush and swap in the identity if it changed. Runs in a thread. Raise StoreError."""
        if identity != self.known:
            line = msgspec.json.encode(identity)
            self._files.write_atomic(self.path, b"%b\n%010d\n" % (line, crc32(line)))
            self.known = identity

    def remove(self) -> None:
        """Remove the note: the log is about to be changed in place, or its files are accepted as they are."""
        self.known = None
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))
