"""Last progress of the timer: ``kerolox.timer``, kerolox's own note.

The checkpoint only names flushed progress, so with it alone a second of messages would be delivered twice
after a kill. This file is written, without a flush, after each delivery. It is trusted only if the log
confirms it: the last delivered message must be in the log. RocketMQ's broker ignores the file, and the timer
works without it. See FORMAT.md, "Timer".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.note_file import NoteFile, body_at
from kerolox.store.timer.checkpoint import ENCODED_BYTES

NAME = "kerolox.timer"
_BODY = struct.Struct(">10q")
_SLOT_BYTES = 128  # two slots, written in turns
_CHECKPOINT_AT = 2 * _SLOT_BYTES  # copy of the checkpoint, which has no CRC itself


class TimerNote(NamedTuple):
    """Progress of the timer, and the proof of it."""

    number: int  # number of the note: the highest one applies
    read_ms: int  # all messages due before this time were delivered
    moment: int  # moment that is partly delivered; -1: none
    left: int  # its first remaining unit
    queue_offset: int  # messages of the timer's queue before this offset were entered or delivered
    log_end: int  # end of the timer log at that time
    physical: int  # commit-log offset of the last delivered message
    offset: int  # queue offset of that message
    size: int  # size of its record
    reserved: int = 0


class TimerNoteFile:
    """File with the note."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self._notes = NoteFile(files, directory, NAME)
        self.path = self._notes.path
        self.open = self._notes.open
        self.close = self._notes.close
        self.sync = self._notes.sync
        self.number = 0

    def load(self) -> TimerNote | None:
        """Return the newest readable note. Runs in a thread."""
        data = self._notes.read()
        bodies = (body_at(data, at, _BODY.size, self.path) for at in (0, _SLOT_BYTES))
        newest = max((TimerNote(*_BODY.unpack(body)) for body in bodies if body is not None), default=None)
        self.number = 0 if newest is None else newest.number
        return newest

    def load_checkpoint(self) -> bytes | None:
        """Return the copy of the last saved checkpoint. Runs in a thread."""
        return body_at(self._notes.read(), _CHECKPOINT_AT, ENCODED_BYTES, self.path)

    def note_checkpoint(self, data: bytes) -> None:
        """Write the copy of the checkpoint into the page cache."""
        if self._notes.is_open:
            self._notes.write(data, _CHECKPOINT_AT)

    def forget(self) -> None:
        """Erase the notes. Runs in a thread."""
        self._notes.forget(2 * _SLOT_BYTES)

    def note(self, mark: TimerNote) -> None:
        """Write a note into the page cache, where it survives a kill of the process."""
        if self._notes.is_open:
            self.number += 1
            self._notes.write(_BODY.pack(*mark._replace(number=self.number)), self.number % 2 * _SLOT_BYTES)
