"""Notes about the last delivered message of each delay level: ``kerolox.delays``, a file of kerolox only.

``delayOffset.json`` is written every ten seconds, so after a kill up to ten seconds of messages would be
delivered twice. This file is written after each delivery. A note is used only if the log proves it: the
delivered copy must exist. After a kill the newest note counts, without any flush. After a loss of power the
newest note whose copy was flushed counts: it is written to a separate slot once the log is flushed that far,
and then flushed.

RocketMQ's broker ignores the file, and kerolox works without it. See FORMAT.md, "Progress of delays".
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
    ">q"  # next offset to deliver
    "q"  # place of the last delivered message in parked form
    "q"  # place of its delivered copy
)
SLOT_BYTES = 32  # no slot crosses a sector
# Level n has slot 2 * (n - 1) and the next one, written in turns: for a kill in the first half of the file,
# for a loss of power in the second half.
assert _BODY.size + CRC_BYTES <= SLOT_BYTES
SYNC_PAUSE_S = 0.1
LEVELS_MAX = PAGE // SLOT_BYTES // 4
_HALF = PAGE // SLOT_BYTES // 2


class DelayNote(NamedTuple):
    """Progress of a level, and its proof."""

    next_offset: int
    parked_at: int
    delivered_at: int


class DelayNotes:
    """Notes of one store. ``thread`` runs work that waits for the disk."""

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
        self._next_slot: dict[int, int] = {}  # next slot to write, by the first slot of the pair
        self._unflushed: deque[tuple[int, int, DelayNote]] = deque()  # end of the log, level, note
        self._syncing: asyncio.Future[None] | None = None
        self._sync_again = False
        self._pause: TimerHandle | None = None

    def load(self) -> dict[int, list[DelayNote]]:
        """Return the notes by level, the furthest first; unreadable notes are omitted. Waits for the disk."""
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
        """Write a note into the page cache, which survives the process."""
        self._write(2 * (level - 1), level, mark)

    def delivered(self, level: int, mark: DelayNote, log_end: int) -> None:
        """Write a note; write it again for a loss of power when the log is flushed up to this offset."""
        self.note(level, mark)
        self._unflushed.append((log_end, level, mark))

    def flushed(self, log_end: int) -> None:
        """Handle a flush of the log up to this offset: persist the notes about records before it."""
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
        """True if everything passed to :meth:`flushed` is on the medium."""
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
        """Flush the file, one flush at a time and with pauses, because the log is flushed often, and by the
        same disk. The next flush covers what is written meanwhile."""
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
