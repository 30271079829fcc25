"""Which delayed message of each level was delivered last: ``kerolox.delays``, our own note.

``delayOffset.json`` is written every ten seconds, so after a kill it would have up to ten seconds of messages
delivered twice. This file is written, without a flush, each time messages were delivered. What it says is
believed only when the log proves it: the delivered copy must be there. RocketMQ's broker ignores the file,
and we can do without. See FORMAT.md, "Progress of delays".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kerolox.store.files import PAGE, Files, PathLike
from kerolox.store.note_file import CRC_BYTES, NoteFile, body_at

NAME = "kerolox.delays"
_BODY = struct.Struct(
    ">q"  # offset delivered next
    "q"  # where the last delivered message lies as it was parked
    "q"  # where it lies as it was delivered
)
SLOT_BYTES = 32  # no slot lies across two sectors
# Level n has the slots 2 * (n - 1) and the one behind it, written in turns.
assert _BODY.size + CRC_BYTES <= SLOT_BYTES
LEVELS_MAX = PAGE // SLOT_BYTES // 2


class DelayMark(NamedTuple):
    """How far a level was delivered, and how to prove it."""

    next_offset: int
    parked_at: int
    delivered_at: int


class DelayMarks:
    """Reads and writes the marks of one store."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self._notes = NoteFile(files, directory, NAME)
        self.path = self._notes.path
        self.open = self._notes.open
        self.close = self._notes.close
        self._next_slot: dict[int, int] = {}

    def load(self) -> dict[int, list[DelayMark]]:
        """The marks by level, the furthest first; what does not read is left out. Waits for the disk."""
        data = self._notes.read()
        found: dict[int, list[tuple[DelayMark, int]]] = {}
        for number in range(len(data) // SLOT_BYTES):
            body = body_at(data, number * SLOT_BYTES, _BODY.size)
            if body is not None:
                mark = DelayMark(*_BODY.unpack(body))
                found.setdefault(number // 2 + 1, []).append((mark, number % 2))
        for level, marks in found.items():
            marks.sort(reverse=True)
            self._next_slot[level] = 1 - marks[0][1]
        return {level: [mark for mark, _ in marks] for level, marks in found.items()}

    def note(self, level: int, mark: DelayMark) -> None:
        """One small write into the page cache: it survives the process."""
        if level > LEVELS_MAX:
            return
        turn = self._next_slot.get(level, 0)
        self._next_slot[level] = 1 - turn
        self._notes.write(_BODY.pack(*mark), (2 * (level - 1) + turn) * SLOT_BYTES)
