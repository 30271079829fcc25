"""Change of the timer's files when the log is cut."""

from __future__ import annotations

import os

from kerolox.protocol.reserved import TIMER_TOPIC
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.timer.checkpoint import TimerCheckpoint
from kerolox.store.timer.log import UNIT_BYTES
from kerolox.store.timer.progress_note import TimerNoteFile


def begin_anew_behind(files: Files, root: PathLike, cut: Cut, now_ms: int) -> None:
    """Make the timer's next start enter its messages again, and deliver again those delivered after the cut.
    Runs in a thread, while no timer uses the files.

    Units name offsets of the log. At an offset that was cut off, another message will be stored, maybe of the
    same size. So all units are removed, because moments chain them to earlier ones. The queue still has every
    waiting message.
    """
    root = os.fspath(root)
    notes = TimerNoteFile(files, root)
    checkpoint = TimerCheckpoint(files, os.path.join(root, "config", "timercheck"))
    if checkpoint.load(notes.load_checkpoint()):
        if cut.due_ms is not None:
            checkpoint.read_ms = min(checkpoint.read_ms, cut.due_ms)
        if (queue_end := cut.end_of(TIMER_TOPIC, 0)) is not None:
            checkpoint.queue_offset = min(checkpoint.queue_offset, queue_end)
            checkpoint.leader_queue_offset = min(checkpoint.leader_queue_offset, queue_end)
        # More than the file has, so that the start notices the missing units.
        checkpoint.log_flushed = max(checkpoint.log_flushed, UNIT_BYTES)
        checkpoint.version = checkpoint.version.next(now_ms)  # newer than the copy, which may survive this
        data = checkpoint.encode()
        checkpoint.save(data)
        checkpoint.close()
        notes.open()
        notes.forget()
        notes.note_checkpoint(data)
        notes.sync()
        notes.close()
    files.remove(os.path.join(root, "timerwheel"))
    directory = os.path.join(root, "timerlog")
    for name in files.list_dir(directory):
        files.remove(os.path.join(directory, name))
    if files.is_dir(directory):
        files.sync_dir(directory)
    files.sync_dir(root)
