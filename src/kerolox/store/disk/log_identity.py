"""Identity of a log: ``kerolox.log``, kerolox's own note beside RocketMQ's files.

It holds the beginning of the log, and the first record of each of its files. A start can therefore detect a
missing first file, files that were swapped, and files of another store, which the files of the log alone do
not show.

Another broker that uses the store deletes and cuts files without updating this note. It leaves a sign: see
:meth:`kerolox.store.disk.lock.StoreLock.sign`. Then the note is not trusted, and rewritten.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.json_note import JsonNote

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
        self.known: LogIdentity | None = None  # as it is on disk
        self.begin = 0  # log offset before which files were deleted, or are about to be, since the start
        self._note = JsonNote(files, directory, NAME, LogIdentity)

    def load(self, *, trusted: bool = True) -> LogIdentity | None:
        """Return the identity; None if there is no note, it is damaged, or it is not ``trusted``, because
        another broker has used the store since. Raise DiskError if it cannot be read at the moment: a new
        note would take the existing files for the beginning of the log."""
        self.known = None
        try:
            self.known = self._note.read()
        except ValueError as error:
            log.warning(
                "log_identity_ignored path=%s reason=%r next='check that the first files of the log exist: "
                "this start cannot, and writes the note anew'",
                self._note.path, str(error),
            )  # fmt: skip
        if self.known is not None and not trusted:
            log.info("log_identity_made_again reason='another broker has used the store in the meantime'")
            self.known = None
        return self.known

    def save(self, identity: LogIdentity) -> None:
        """Write, flush and swap in the identity if it changed. Runs in a thread. Raise StoreError."""
        if identity != self.known:
            self._note.write(identity)
            self.known = identity

    def cut(self, end: int) -> None:
        """Shorten the identity, because data written after a cut of the log has another one. Runs in a
        thread, before the files are changed."""
        if self.known is not None:
            self.save(self.known.before(end))

    def remove(self) -> None:
        """Remove the note: the log is about to be changed in place, or its files are accepted as they are."""
        self.known = None
        self._note.remove()
