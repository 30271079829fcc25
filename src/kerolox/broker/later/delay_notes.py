"""Which delayed message of each level was delivered last: ``kerolox.delays``, our own note.

``delayOffset.json`` is written every ten seconds, so after a kill it would have up to ten seconds of messages
delivered twice. This file is written each time messages were delivered. What it says is believed only when
the log proves it: the delivered copy must be there.

After a kill the newest note counts, and needs no flush. After a loss of power the newest note whose copy was
flushed counts: it is written to a place of its own once the log is flushed so far, and flushed itself.
RocketMQ's broker ignores the file, and we can do without. See FORMAT.md, "Progress of delays".
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from concurrent.futures import Executor
from typing import NamedTuple

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.store.disk.files import PAGE, Files, PathLike
from kerolox.store.disk.note_file import CRC_BYTES, NoteFile, body_at

NAME = "kerolox.delays"
_BODY = struct.Struct(
    ">q"  # offset delivered next
    "q"  # where the last delivered message lies as it was parked
    "q"  # where it lies as it was delivered
)
SLOT_BYTES = 32  # no slot lies across two sectors
# Level n has the slots 2 * (n - 1) and the one behind it, written in turns: for a kill in the first half of
# the file, for a loss of power in the second.
assert _BODY.size + CRC_BYTES <= SLOT_BYTES
SYNC_PAUSE_S = 0.1
LEVELS_MAX = PAGE // SLOT_BYTES // 4
_HALF = PAGE // SLOT_BYTES // 2


class DelayNote(NamedTuple):
    """How far a level was delivered, and how to prove it."""

    next_offset: int
    parked_at: int
    delivered_at: int


class DelayNotes:
    """Reads and writes the notes of one store. ``thread`` runs what waits for the disk."""

    def __init__(
        self,
        files: Files,
        directory: PathLike,
        thread: Executor | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._notes = NoteFile(files, directory, NAME)
        self.path = self._notes.path
        self.open = self._notes.open
        self._thread = thread
        self._clock = clock
        self._next_slot: dict[int, int] = {}  # slot to write next, by the first slot of the pair
        self._unflushed: deque[tuple[int, int, DelayNote]] = deque()  # end of the log then, level, note
        self._syncing: asyncio.Future[None] | None = None
        self._sync_again = False
        self._pause: TimerHandle | None = None

    def load(self) -> dict[int, list[DelayNote]]:
        """The notes by level, the furthest first; notes that cannot be read are left out. Waits for the
        disk."""
        data = self._notes.read()
        found: dict[int, list[DelayNote]] = {}
        newest: dict[int, DelayNote] = {}
        for number in range(len(data) // SLOT_BYTES):
            body = body_at(data, number * SLOT_BYTES, _BODY.size, self.path)
            if body is None:
                continue
            mark = DelayNote(*_BODY.unpack(body))
            found.setdefault(number % _HALF // 2 + 1, []).append(mark)
            first = number - number % 2
            if first not in newest or mark > newest[first]:
                newest[first] = mark
                self._next_slot[first] = 1 - number % 2
        return {level: sorted(marks, reverse=True) for level, marks in found.items()}

    def note(self, level: int, mark: DelayNote) -> None:
        """One small write into the page cache: it survives the process."""
        self._write(2 * (level - 1), level, mark)

    def delivered(self, level: int, mark: DelayNote, log_end: int) -> None:
        """Write a note, and once more for a loss of power when the log is flushed up to this offset."""
        self.note(level, mark)
        self._unflushed.append((log_end, level, mark))

    def flushed(self, log_end: int) -> None:
        """The log is on the medium up to this offset: write the notes about what lies before it for good."""
        newest: dict[int, DelayNote] = {}
        while self._unflushed and self._unflushed[0][0] <= log_end:
            _, level, mark = self._unflushed.popleft()
            newest[level] = mark
        for level, mark in newest.items():
            self._write(_HALF + 2 * (level - 1), level, mark)
        if newest:
            self._sync()

    @property
    def is_safe(self) -> bool:
        """Whether all that :meth:`flushed` has heard of is on the medium."""
        return self._syncing is None and not self._sync_again

    async def close(self) -> None:
        self._sync_again = False
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._notes.close()

    def _write(self, first: int, level: int, mark: DelayNote) -> None:
        if level > LEVELS_MAX:
            return
        turn = self._next_slot.get(first, 0)
        self._next_slot[first] = 1 - turn
        self._notes.write(_BODY.pack(*mark), (first + turn) * SLOT_BYTES)

    def _sync(self) -> None:
        """Flush the file, one flush at a time and with pauses: the log is flushed often, and by the same
        disk. What is written meanwhile is flushed by the next one."""
        if self._syncing is not None or self._pause is not None:
            self._sync_again = True
            return
        self._sync_again = False
        self._syncing = asyncio.get_running_loop().run_in_executor(self._thread, self._notes.sync)
        self._syncing.add_done_callback(self._synced)

    def _synced(self, _: object) -> None:
        self._syncing = None
        if self._notes.is_open:
            self._pause = self._clock.call_later(SYNC_PAUSE_S, self._paused)

    def _paused(self) -> None:
        self._pause = None
        if self._sync_again:
            self._sync()
