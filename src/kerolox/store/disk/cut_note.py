"""A cut of the log that is under way: ``kerolox.cut``, our own note, there only as long as the cut takes.

Written and flushed before the first file is touched, removed when all of them fit the new end and all who
noted progress were told: so a start that finds it finishes the cut, and a crash leaves the store as it was
before, or as it is after. Without the note half a cut would look like damage. RocketMQ's broker ignores it.
See FORMAT.md, "A cut under way".
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple
from zlib import crc32

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import CorruptRecord

log = logging.getLogger(__name__)

NAME = "kerolox.cut"
_CRC_DIGITS = 10


class QueueEnd(NamedTuple):
    """A queue that the cut makes shorter, and its next offset then."""

    topic: str
    queue_id: int
    end: int


class Cut(msgspec.Struct, frozen=True):
    """Where the log ends now, and what was taken with the rest: for those who noted that it was there."""

    end: int
    stored_ms: int = 0  # when the last message before was stored; 0: there is none, or nobody knows
    queues: list[QueueEnd] = []
    records: int = 0  # how many messages were taken,
    first_ms: int = 0  # and when the first
    last_ms: int = 0  # and the last of them was stored
    delayed: dict[int, int] = {}  # by delay level: how many messages had been delivered behind the end
    timer: bool = False  # whether messages of the timer lay there, waiting or delivered
    due_ms: int | None = None  # when the earliest of the delivered ones was due
    half_ended: int | None = None  # the lowest offset of a half message whose end was noted there
    files_cut: bool = False  # the files are as they should be: only those who noted progress are to be told

    def end_of(self, topic: str, queue_id: int) -> int | None:
        """The next offset of a queue that became shorter; None for another."""
        return next((one.end for one in self.queues if (one.topic, one.queue_id) == (topic, queue_id)), None)


class CutNoteFile:
    """Reads and writes the note of one store. All of it waits for the disk."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self._files = files

    def load(self) -> Cut | None:
        """None when no cut is under way. Raises CorruptRecord: what half a cut left cannot be told from
        damage."""
        data = self._files.read_if_exists(self.path)
        if data is None:
            return None
        line, _, rest = data.partition(b"\n")
        try:
            if int(rest[:_CRC_DIGITS]) != crc32(line):
                raise ValueError("its CRC is another one")
            return msgspec.json.decode(line, type=Cut)
        except (ValueError, msgspec.DecodeError) as error:
            raise CorruptRecord(
                f"{self.path} does not read: {error}. It says where the log was being cut when the process "
                "died. If this broker follows another one, move the store away and let it copy anew; else "
                "move this file away, and start again: the log then ends as kerolox store verify says.",
                path=self.path,
            ) from None

    def save(self, cut: Cut) -> None:
        line = msgspec.json.encode(cut)
        self._files.write_atomic(self.path, b"%b\n%0*d\n" % (line, _CRC_DIGITS, crc32(line)))

    def save_untold(self, cut: Cut) -> None:
        """Note that the files are cut, and nobody was told yet."""
        self.save(msgspec.structs.replace(cut, files_cut=True))

    def remove(self) -> None:
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))
