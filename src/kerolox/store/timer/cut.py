"""What becomes of the timer's files when the log is cut."""

from __future__ import annotations

import os

from kerolox.protocol.reserved import TIMER_TOPIC
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.timer.checkpoint import TimerCheckpoint
from kerolox.store.timer.log import UNIT_BYTES
from kerolox.store.timer.progress_note import TimerNoteFile


def begin_anew_behind(files: Files, root: PathLike, cut: Cut, now_ms: int) -> None:
    """Let the timer's next start enter its messages again, and deliver again what was delivered behind the
    cut. For a thread, while no timer uses the files.

    Units name places in the log. Where they name one that was cut off, another message will lie, maybe of
    the same size: so they go, all of them, for moments chain them to those before. The queue still has every
    message that waits.
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
        # More than there is: so the start knows that units are missing.
        checkpoint.log_flushed = max(checkpoint.log_flushed, UNIT_BYTES)
        checkpoint.version = checkpoint.version.next(now_ms)  # newer than the copy that may survive this
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
