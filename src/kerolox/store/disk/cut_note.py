"""Note of a cut of the log under way: the file ``kerolox.cut``, which exists only during a cut.

It is written and flushed before the first file is touched, and removed when all files fit the new end and all
listeners that note progress were notified. A start that finds it finishes the cut, so after a crash the store
is as before the cut or as after it. Without the note half a cut would look like damage. RocketMQ's broker
ignores the file. See FORMAT.md, "A cut under way".
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.json_note import JsonNote
from kerolox.store.errors import CorruptRecord

log = logging.getLogger(__name__)

NAME = "kerolox.cut"


class QueueEnd(NamedTuple):
    """Queue that the cut shortens, with its new next offset."""

    topic: str
    queue_id: int
    end: int


class Cut(msgspec.Struct, frozen=True):
    """New end of the log, and the removed data, for components that have noted it as existing."""

    end: int
    stored_ms: int = 0  # store time of the last message before the end; 0: there is none, or it is unknown
    queues: list[QueueEnd] = []
    records: int = 0  # number of removed messages
    first_ms: int = 0  # store time of the first removed message
    last_ms: int = 0  # store time of the last removed message
    delayed: dict[int, int] = {}  # by delay level: number of removed messages that the level had delivered
    timer: bool = False  # True if messages of the timer were removed, waiting or delivered
    due_ms: int | None = None  # earliest due time of the removed messages that the timer had delivered
    half_ended: int | None = None  # lowest offset of a half message whose end was noted in the removed part
    files_cut: bool = False  # True once the files are cut, and only listeners remain to be notified

    def end_of(self, topic: str, queue_id: int) -> int | None:
        """Return the next offset of a shortened queue; None for another queue."""
        return next((one.end for one in self.queues if (one.topic, one.queue_id) == (topic, queue_id)), None)


class CutNoteFile:
    """File with the note of one store. All methods wait for the disk."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self._note = JsonNote(files, directory, NAME, Cut)
        self.path = self._note.path
        self.save = self._note.write
        self.remove = self._note.remove

    def load(self) -> Cut | None:
        """Return the note; None if no cut is under way. Raise CorruptRecord if it is damaged: half a cut
        cannot be distinguished from damage."""
        try:
            return self._note.read()
        except ValueError as error:
            raise CorruptRecord(
                f"{self.path} is damaged: {error}. It names the offset to which the log was being truncated "
                "when the process died. If this broker follows another one, move the store away: it copies "
                "anew. Otherwise move this file away and restart: the log then ends where kerolox store "
                "verify reports.",
                path=self.path,
            ) from None

    def found(self, *, crashed: bool) -> tuple[Cut | None, Cut | None]:
        """Return the cut that this start must finish, and the finished cut whose listeners are not notified
        yet. After a clean stop an unfinished one is forgotten. Raise CorruptRecord."""
        cut = self.load()
        if cut is not None and cut.files_cut:
            return None, cut
        if cut is not None and not crashed:
            self.forget(cut)
            return None, None
        return cut, None

    def forget(self, cut: Cut) -> None:
        """Remove the note of a cut that another broker has made meaningless."""
        log.warning(
            "cut_forgotten offset=%d path=%s reason='another broker has used the store in the meantime'",
            cut.end, self.path,
        )  # fmt: skip
        self.remove()

    def save_untold(self, cut: Cut) -> None:
        """Note that the files are cut, and the listeners are not notified yet."""
        self.save(msgspec.structs.replace(cut, files_cut=True))
