"""What the timer did last: ``kerolox.timer``, our own note.

The checkpoint says only what is flushed, so after a kill it would have a second of messages delivered twice.
This file is written, without a flush, each time messages were delivered. What it says is believed only when
the log proves it: the last delivered message must be there. RocketMQ's broker ignores the file, and we can do
without. See FORMAT.md, "Timer".
"""

from __future__ import annotations

import logging
import os
import struct
from typing import NamedTuple
from zlib import crc32

from kerolox.store.errors import StoreError
from kerolox.store.files import PAGE, File, Files, PathLike

log = logging.getLogger(__name__)

NAME = "kerolox.timer"
_BODY = struct.Struct(">10q")
_CRC = struct.Struct(">I")
_SLOT_BYTES = 128  # two, written in turns: one is whole at any time


class TimerMark(NamedTuple):
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


class TimerMarkFile:
    """Reads and writes the mark."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self.number = 0
        self._files = files
        self._file: File | None = None
        self._failed = False

    def load(self) -> TimerMark | None:
        """The newest mark that reads. For a thread."""
        try:
            data = self._files.read_if_exists(self.path) or b""
        except StoreError:
            return None  # a wider window, nothing more
        found: list[TimerMark] = []
        for at in (0, _SLOT_BYTES):
            body, crc = data[at : at + _BODY.size], data[at + _BODY.size : at + _BODY.size + _CRC.size]
            if len(crc) == _CRC.size and any(body) and _CRC.unpack(crc)[0] == crc32(body):
                found.append(TimerMark(*_BODY.unpack(body)))
        newest = max(found, default=None)
        self.number = 0 if newest is None else newest.number
        return newest

    def open(self) -> None:
        """Be ready to note. For a thread."""
        try:
            if self._files.exists(self.path) and self._files.size(self.path) == PAGE:
                self._file = self._files.open(self.path)
            else:
                self._files.remove(self.path)
                self._file = self._files.create(self.path, PAGE)
        except StoreError as error:
            self._fail(error)

    def forget(self) -> None:
        """What it says is not so. For a thread."""
        if self._file is not None:
            self._file.pwrite(bytes(2 * _SLOT_BYTES), 0)

    def note(self, mark: TimerMark) -> None:
        """One small write into the page cache: it survives the process."""
        if self._file is None:
            return
        self.number += 1
        body = _BODY.pack(*mark._replace(number=self.number))
        try:
            self._file.pwrite(body + _CRC.pack(crc32(body)), self.number % 2 * _SLOT_BYTES)
        except StoreError as error:
            self._fail(error)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _fail(self, error: StoreError) -> None:
        if not self._failed:
            self._failed = True
            log.warning(
                "timer_mark_not_written path=%s error=%r next='nothing is lost; after a kill more messages "
                "may come twice'",
                self.path,
                str(error),
            )
