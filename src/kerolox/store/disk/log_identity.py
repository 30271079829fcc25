"""The identity of a log: ``kerolox.log``, our own note beside RocketMQ's files.

It says where the log begins, and which record each of its files begins with. So a start notices a missing
first file, files that changed places, and files of another store: nothing in the files of the log tells
these apart.

Another broker that uses the store deletes and cuts files without this note. It leaves a sign: see
:meth:`kerolox.store.disk.lock.StoreLock.sign`. Then the note is not believed, and made anew.
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
    """A file of the log, and which record it begins with."""

    start: int
    body_crc: int
    store_ms: int


class LogIdentity(msgspec.Struct, frozen=True):
    """Every file from ``begin`` on belongs to the log."""

    begin: int = 0
    heads: list[FileHead] = []

    def before(self, end: int) -> LogIdentity:
        """Return what still holds when the log is cut at this offset."""
        return LogIdentity(min(self.begin, end), [head for head in self.heads if head.start < end])


class LogIdentityFile:
    """Reads and writes the identity of one log."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self.known: LogIdentity | None = None  # as it is on disk
        self._files = files

    def load(self) -> LogIdentity | None:
        """None when there is no note, or it is damaged. Raises DiskError when it cannot be read now: a new
        one would say that the log begins with the files that are there."""
        self.known = None
        data = self._files.read_if_exists(self.path)
        if data is None:
            return None
        line, _, rest = data.partition(b"\n")
        try:
            if int(rest[:10]) != crc32(line):
                raise ValueError("its CRC is another one")
            self.known = msgspec.json.decode(line, type=LogIdentity)
        except (ValueError, msgspec.DecodeError) as error:
            log.warning(
                "log_identity_ignored path=%s reason=%r next='it is made anew: missing first files are not "
                "noticed by this start'",
                self.path, str(error),
            )  # fmt: skip
        return self.known

    def save(self, identity: LogIdentity) -> None:
        """Write, flush and swap in, if it changed. For a thread. Raises StoreError."""
        if identity != self.known:
            line = msgspec.json.encode(identity)
            self._files.write_atomic(self.path, b"%b\n%010d\n" % (line, crc32(line)))
            self.known = identity

    def remove(self) -> None:
        """The log is about to be changed in place, or its files are taken as they are."""
        self.known = None
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))
