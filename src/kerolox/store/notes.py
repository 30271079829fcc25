"""Notes of a store: small files that say how far log, queues and index are safe, and what was cut or deleted.

RocketMQ's ``abort``, ``checkpoint`` and ``epochFileCheckpoint``, and kerolox's own ``kerolox.*`` files beside
them. Each file has a module with its format. This module changes them together: when the store begins and
ends, when its log is cut, and when progress is saved. See FORMAT.md.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from kerolox.protocol.epoch_file import EPOCH_FILE
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.cut_note import Cut, CutNoteFile
from kerolox.store.disk.epoch_file import EpochFile
from kerolox.store.disk.files import Files
from kerolox.store.disk.log_identity import LogIdentityFile
from kerolox.store.disk.progress_notes import ProgressNotes, ProgressNotesFile
from kerolox.store.disk.segments import Segments
from kerolox.store.disk.sums import SumsFile
from kerolox.store.errors import CorruptRecord
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.verdict import identity_of

log = logging.getLogger(__name__)

ABORT = "abort"


class Times(NamedTuple):
    """Store times, in ms, before which all messages are safe."""

    flushed_ms: int  # in the log
    queues_ms: int  # also in the queues
    index_ms: int  # in full files of the index


class Notes:
    """Notes of one store. Methods that wait for the disk say so."""

    def __init__(
        self, files: Files, root: str, *, boot: str, controlled: bool = False, epoch_path: str = ""
    ) -> None:
        self.boot = boot  # identity of the current run of the operating system
        self.checkpoint = Checkpoint(files, os.path.join(root, "checkpoint"))
        self.progress = ProgressNotesFile(files, root)
        self.sums = SumsFile(files, root)
        self.identity = LogIdentityFile(files, root)
        self.deleted = DeletedTopics(files, root)
        self.cut = CutNoteFile(files, root)
        self.epochs = EpochFile(files, epoch_path or os.path.join(root, EPOCH_FILE))
        self._files = files
        self._root = root
        self.controlled = controlled
        self._abort = os.path.join(root, ABORT)

    # --- start and stop, in threads ------------------------------------------------------------------

    def load(self, now_ms: int) -> tuple[ProgressNotes, bool]:
        """Return the saved progress, and True if the last run did not end cleanly. Read the checkpoint, and
        under a controller the epochs."""
        progress = self.progress.load()
        crashed = self._files.exists(self._abort)
        self.checkpoint.load(now_ms)
        if self.controlled:
            self.epochs.load()
        return progress, crashed

    def note_running(self) -> None:
        """Note that the store is in use: a start that finds this note recovers as after a crash."""
        self._files.write_atomic(self._abort, str(os.getpid()).encode())

    def note_stopped(self) -> None:
        """Note a clean stop."""
        self._files.remove(self._abort)
        self._files.sync_dir(self._root)

    def note_unfinished(self, dispatched: int) -> None:
        """Note that queues and index are being rebuilt from this log offset on: after a kill the next start
        must not take the result for complete."""
        self.note_running()
        self.progress.save(ProgressNotes(boot=self.boot, dispatched=dispatched))

    def fit(self, end: int) -> None:
        """Adjust all notes to the recovered end of the log."""
        self.deleted.fit(end)
        if self.controlled:
            self.epochs.fit(end)

    def close(self) -> None:
        try:
            self.checkpoint.close()
        finally:
            self.progress.close()

    # --- progress, in a thread -------------------------------------------------------------------------

    def save(self, progress: ProgressNotes, times: Times, confirmed: int) -> None:
        """Save the progress in RocketMQ's checkpoint and in kerolox's note."""
        checkpoint = self.checkpoint
        checkpoint.commit_log_ms = max(checkpoint.commit_log_ms, times.flushed_ms)
        checkpoint.queues_ms = max(checkpoint.queues_ms, times.queues_ms)
        # This time may decrease: a full file that was cut is no longer full.
        checkpoint.index_ms = times.index_ms
        if self.controlled:
            checkpoint.confirmed_offset = confirmed
        checkpoint.save()
        self.progress.save(progress)

    def save_identity(self, segments: Segments, end: int) -> None:
        """Save the identity of the log's files up to ``end``."""
        identity = self.identity
        identity.save(identity_of(segments, identity.known, end, identity.begin))

    def drop_before(self, log_min: int) -> None:
        """Remove what belongs to deleted files of the log."""
        if self.controlled:
            self.epochs.drop_before(log_min)

    # --- a cut of the log ------------------------------------------------------------------------------

    def lower_to(self, cut: Cut) -> None:
        """Lower the numbers in memory to a cut of the log. Does not wait."""
        self.checkpoint.cut(cut.end, cut.stored_ms)

    def clear_behind(self, cut: Cut) -> None:
        """Cut all notes, before the files they describe are cut. Waits for the disk.

        After a crash in between, the note of the cut makes the next start do it again.
        """
        self.sums.remove()
        self.identity.cut(cut.end)
        self.deleted.fit(cut.end)
        try:
            self.epochs.load()  # also without a controller at the moment
        except CorruptRecord as error:
            if self.controlled:
                raise
            log.warning("epochs_not_cut offset=%d error=%r", cut.end, str(error))
        else:
            self.epochs.cut(cut.end)
