"""What the timer did last: ``kerolox.timer``, our own note.

The checkpoint says only what is flushed, so after a kill it would have a second of messages delivered twice.
This file is written, without a flush, each time messages were delivered. What it says is believed only when
the log proves it: the last delivered message must be there. RocketMQ's broker ignores the file, and we can do
without. See FORMAT.md, "Timer".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.note_file import NoteFile, body_at
from kerolox.store.timer.checkpoint import ENCODED_BYTES

NAME = "kerolox.timer"
_BODY = struct.Struct(">10q")
_SLOT_BYTES = 128  # two, written in turns
_CHECKPOINT_AT = 2 * _SLOT_BYTES  # a copy of the checkpoint, which carries no CRC itself


class TimerNote(NamedTuple):
    """How far the timer has come, and the proof."""

    number: int  # of the note: the higher one counts
    read_ms: int  # messages due before this were delivered
    moment: int  # one that is delivered in part; -1: none
    left: int  # its first unit that is left
    queue_offset: int  # messages of the timer's queue before this were entered or delivered
    log_end: int  # of the timer log then
    physical: int  # the last message that was delivered: its place in the commit log,
    offset: int  # its queue offset,
    size: int  # and the size of its record
    reserved: int = 0


class TimerNoteFile:
    """Reads and writes the note."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self._notes = NoteFile(files, directory, NAME)
        self.path = self._notes.path
        self.open = self._notes.open
        self.close = self._notes.close
        self.sync = self._notes.sync
        self.number = 0

    def load(self) -> TimerNote | None:
        """The newest note that can be read. For a thread."""
        data = self._notes.read()
        bodies = (body_at(data, at, _BODY.size, self.path) for at in (0, _SLOT_BYTES))
        newest = max((TimerNote(*_BODY.unpack(body)) for body in bodies if body is not None), default=None)
        self.number = 0 if newest is None else newest.number
        return newest

    def load_checkpoint(self) -> bytes | None:
        """The checkpoint as it was saved last. For a thread."""
        return body_at(self._notes.read(), _CHECKPOINT_AT, ENCODED_BYTES, self.path)

    def note_checkpoint(self, data: bytes) -> None:
        """One small write into the page cache."""
        if self._notes.is_open:
            self._notes.write(data, _CHECKPOINT_AT)

    def forget(self) -> None:
        """Make the note void. For a thread."""
        self._notes.forget(2 * _SLOT_BYTES)

    def note(self, mark: TimerNote) -> None:
        """One small write into the page cache: it survives the process."""
        if self._notes.is_open:
            self.number += 1
            self._notes.write(_BODY.pack(*mark._replace(number=self.number)), self.number % 2 * _SLOT_BYTES)
