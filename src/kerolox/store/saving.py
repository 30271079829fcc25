"""Progress notes and sums of a store: how far log, queues and index are safe, for the next start."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.store.disk.progress_notes import ProgressNotes
from kerolox.store.disk.sums import CHECKED_BYTES, Sums
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.flush import LogFlusher
from kerolox.store.log.framing import position_of
from kerolox.store.notes import Notes, Times
from kerolox.store.parts import Derived


class ProgressSaver:
    """Saver of progress notes and sums. Methods that wait for the disk say so."""

    def __init__(self, log: CommitLog, flusher: LogFlusher, derived: Derived, notes: Notes) -> None:
        self._log = log
        self._flusher = flusher
        self._derived = derived
        self._notes = notes
        self.summed = 0  # log offset up to which the saved sums cover queues and index

    def doubt_sums(self) -> None:
        """Let the next round save sums, because the last ones were not saved."""
        self.summed = 0

    def note(self) -> ProgressNotes:
        """Return the progress notes that are true once queues and index are flushed as they are now."""
        return ProgressNotes(
            boot=self._notes.boot,
            dispatched=min(self._derived.dispatcher.dispatched, self._log.progress.flushed),
            flushed=self._log.progress.flushed,
            queues=len(self._derived.queues),
            index_files=len(self._derived.index),
        )

    def save_sums(self, end: int, *, whole: bool = False) -> None:
        """Save sums of queues and index for messages before ``end``. Wait for the disk."""
        self.summing(end, None, whole=whole)()

    def summing(self, end: int, without: str | None, *, whole: bool = False) -> Callable[[], None]:
        """Return a function that a thread calls to sum up queues and index as they are written now."""
        ends = [(queue, queue.written_bytes) for queue in self._derived.queues if queue.topic != without]
        headers = self._derived.index.headers()
        self.summed = end

        def sum_up() -> None:
            queues = [queue.sum_up(end_bytes) for queue, end_bytes in ends]
            index = self._derived.index.sum_up(headers, whole=whole)
            self._notes.sums.save(Sums(end, self._place_before(end - CHECKED_BYTES), queues, index))
            self._notes.save_identity(self._log.segments, min(end, self._log.progress.flushed))

        return sum_up

    def _place_before(self, physical: int) -> int:
        """Return an offset of the log, shortly before ``physical``, at which a record begins according to a
        queue."""
        log_min = self._log.min_offset
        if physical <= log_min:
            return log_min
        return max(log_min, position_of(self._log.segments, self._derived.queues.place_before(physical)))

    def queues_ms(self) -> int:
        """Return the store time before which all messages are flushed in the log and present in the queues.

        Dispatch may lag behind the log when replicas do, or when the queues found the disk full.
        """
        return min(self._derived.dispatcher.dispatched_ms, self._flusher.flushed_store_timestamp)

    def save_notes(self, progress: ProgressNotes, queues_ms: int) -> None:
        """Save the progress. Wait for the disk."""
        times = Times(self._flusher.flushed_store_timestamp, queues_ms, self._derived.index.full_files_end_ms)
        self._notes.save(progress, times, self._log.progress.confirmed)
