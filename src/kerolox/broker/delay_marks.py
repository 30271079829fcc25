"""Which delayed message of each level was delivered last: ``kerolox.delays``, our own note.

``delayOffset.json`` is written every ten seconds, so after a kill it would have up to ten seconds of messages
delivered twice. This file is written, without a flush, each time messages were delivered. What it says is
believed only when the log proves it: the delivered copy must be there. RocketMQ's broker ignores the file,
and we can do without. See FORMAT.md, "Progress of delays".
"""

from __future__ import annotations

import logging
import os
import struct
from typing import NamedTuple
from zlib import crc32

from kerolox.store.errors import StoreError
from kerolox.store.files import File, Files, PathLike

log = logging.getLogger(__name__)

NAME = "kerolox.delays"
_BODY = struct.Struct(
    ">q"  # offset delivered next
    "q"  # where the last delivered message lies as it was parked
    "q"  # where it lies as it was delivered
)
_CRC = struct.Struct(">I")
SLOT_BYTES = 32  # no slot lies across two sectors
# Level n has the slots 2 * (n - 1) and the one behind it, written in turns: one is whole at any time.
assert _BODY.size + _CRC.size <= SLOT_BYTES
FILE_BYTES = 4096
LEVELS_MAX = FILE_BYTES // SLOT_BYTES // 2


class DelayMark(NamedTuple):
    """How far a level was delivered, and how to prove it."""

    next_offset: int
    parked_at: int
    delivered_at: int


class DelayMarks:
    """Reads and writes the marks of one store."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self._files = files
        self._file: File | None = None
        self._failed = False
        self._next_slot: dict[int, int] = {}

    def load(self) -> dict[int, list[DelayMark]]:
        """The marks by level, the furthest first; what does not read is left out. Waits for the disk."""
        try:
            data = self._files.read_if_exists(self.path) or b""
        except StoreError:
            return {}  # a wider window, nothing more
        found: dict[int, list[tuple[DelayMark, int]]] = {}
        for number in range(len(data) // SLOT_BYTES):
            slot = data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
            body, crc = slot[: _BODY.size], slot[_BODY.size : _BODY.size + _CRC.size]
            if any(slot) and _CRC.unpack(crc)[0] == crc32(body):
                mark = DelayMark(*_BODY.unpack(body))
                found.setdefault(number // 2 + 1, []).append((mark, number % 2))
        for level, marks in found.items():
            marks.sort(reverse=True)
            self._next_slot[level] = 1 - marks[0][1]
        return {level: [mark for mark, _ in marks] for level, marks in found.items()}

    def open(self) -> None:
        """Be ready to note. Waits for the disk."""
        try:
            if self._files.exists(self.path) and self._files.size(self.path) == FILE_BYTES:
                self._file = self._files.open(self.path)
            else:
                self._files.remove(self.path)
                self._file = self._files.create(self.path, FILE_BYTES)
        except StoreError as error:
            self._fail(error)

    def note(self, level: int, mark: DelayMark) -> None:
        """One small write into the page cache: it survives the process."""
        if self._file is None or level > LEVELS_MAX:
            return
        body = _BODY.pack(*mark)
        turn = self._next_slot.get(level, 0)
        self._next_slot[level] = 1 - turn
        try:
            self._file.pwrite(body + _CRC.pack(crc32(body)), (2 * (level - 1) + turn) * SLOT_BYTES)
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
                "delay_marks_not_written path=%s error=%r next='nothing is lost; after a kill more delayed "
                "messages may come twice'",
                self.path,
                str(error),
            )
