"""Background work of a store: flush queues and index, save progress notes, delete topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from kerolox.clock import TimerHandle
from kerolox.store.disk.readers import Readers
from kerolox.store.disk.segment import Segment
from kerolox.store.disk.sums import STEP_BYTES
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind, Operation
from kerolox.store.ledger import StoredLedger
from kerolox.store.notes import Notes
from kerolox.store.parts import Derived, StoreDirectory, Writes
from kerolox.store.queue.consume_queues import flush
from kerolox.store.saving import ProgressSaver

log = logging.getLogger(__name__)

T = TypeVar("T")

# Kinds of work whose failures are counted separately; see standing_failures.
FLUSH, REMOVE, ROLL, APPEND = "flush", "remove", "roll", "append"
_ROUND = (Kind.QUEUE, Kind.INDEX, Kind.LEDGER_INDEX, Kind.SUMS, Kind.CHECKPOINT)
# Queue bytes held in memory until they are flushed; above this, sends are refused
UNFLUSHED_BYTES_MAX = 64 << 20


class Housekeeper:
    """Background rounds of one store. Work that waits for the disk runs in the store's keeper thread."""

    def __init__(
        self,
        directory: StoreDirectory,
        writes: Writes,
        derived: Derived,
        notes: Notes,
        saver: ProgressSaver,
        ledger: StoredLedger | None,
        *,
        readers: Readers,
        keeper: Executor,
    ) -> None:
        self._options, self._clock, self._reads = directory.options, directory.clock, directory.reads
        self._log, self._flusher, self._failing = writes.log, writes.flusher, writes.failing
        self._derived = derived
        self._notes = notes
        self._saver = saver
        self._ledger = ledger
        self._readers = readers
        self._keeper = keeper
        self._flush_timer: TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._flushing = asyncio.Lock()  # one round at a time
        self._probing = False

    def start(self) -> None:
        self._schedule_flush()

    async def close(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._tasks:
            await asyncio.wait(self._tasks)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Prevent rounds while the block runs, because the log is to be cut."""
        async with self._flushing:
            yield

    async def in_keeper(self, work: Callable[[], T]) -> T:
        """Run work that waits for the disk in the keeper thread."""
        return await asyncio.get_running_loop().run_in_executor(self._keeper, work)

    async def delete_topic(self, topic: str, *, before: int | None = None) -> bool:
        """Remove a topic's queues; return False if it had none. Raise StoreError if the deletion was not
        noted.

        ``before``: the end of the log when the topic was deleted. Later messages belong to a new topic of
        that name: if there are any, nothing is removed, because its queues begin anew with them.
        """
        # The progress notes count queues. They are not saved in between, so after a kill the next start finds
        # queues missing and reads the whole log.
        async with self._flushing:
            # Also for a topic without queues: delayed messages of it may be in the log.
            noted = await self._note_deleted(topic, before)
            if topic in self._derived.queues.by_topic:
                # The next start must not take a deleted queue for a lost one, so no sum covers it any more.
                await self.make_safe(sums=True, without=topic)
            # Messages being written must not enter queues that begin anew, now or after a crash.
            await self._flusher.flush_all()
            self._log.forget_cursors(topic)
            if before is not None and self._derived.queues.last_place(topic) > before:
                return False
            self._derived.queue_filler.forget(topic)
            end = self._log.progress.appended if before is None else before
            deleted = self._derived.queues.delete_topic(topic)
            if deleted and noted < end:  # messages were sent to the topic in the meantime
                await self._note_deleted(topic)
            await self._flush_round()
        return deleted

    async def _note_deleted(self, topic: str, before: int | None = None) -> int:
        """Note that messages of the topic up to the end of the log, or ``before``, are deleted; return that
        offset."""
        end = self._log.progress.appended if before is None else before
        await self._flusher.flush_all()  # the log must never end before a noted offset
        note = partial(self._notes.deleted.note, topic, end, self._log.min_offset)
        await self.in_keeper(note)
        return end

    # --- queues and index ------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        interval_s = self._options.queue_flush_interval_ms / 1000
        self._flush_timer = self._clock.beat(interval_s, self._flush_tick)

    def _flush_tick(self) -> None:
        self._schedule_flush()
        self._retry_log()
        if not self._flushing.locked():
            self.spawn(self.flush())
        if self._reads.lasting and not self._probing:
            self.spawn(self._probe())

    async def _probe(self) -> None:
        """Read unreadable files again: the consumers that met the failure may be gone."""
        self._probing = True
        try:
            await self._readers.read(self._reads.probe)
        finally:
            self._probing = False

    def _retry_log(self) -> None:
        """Allow writes to the log again where only an attempt can show whether the failure has passed."""
        failing = self._failing
        failing.lift(Kind.LOG, APPEND)
        failing.lift(Kind.LEDGER_INDEX, APPEND)
        if not failing.is_failing(Kind.LOG, ROLL):
            return
        future = self._log.retry_next()
        if future is not None:
            loop = asyncio.get_running_loop()
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._log_retried, future))

    def _log_retried(self, future: Future[Segment]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreError):
            self._failing.failed(Kind.LOG, error, work=ROLL, operation=Operation.CREATE)
        elif error is None:
            self._failing.passed(Kind.LOG, ROLL)

    async def flush(self, *, sums: bool = False, without: str | None = None) -> None:
        """Write queue and index tails, flush them in a thread, and note how far they are safe.

        ``sums``: save the sums too. ``without``: a topic that is about to be deleted; the sums leave out its
        queues.
        """
        async with self._flushing:
            await self._flush_round(sums, without)

    async def _flush_round(self, sums: bool = False, without: str | None = None) -> None:
        failing = self._failing
        failed = await self._round(sums=sums, without=without)
        for kind in _ROUND:
            error = failed.get(kind)
            if error is None:
                failing.passed(kind, FLUSH)
            else:
                full = self._derived.queues.unflushed_bytes() > UNFLUSHED_BYTES_MAX
                failing.failed(kind, error, work=FLUSH, full=full)

    async def make_safe(self, *, sums: bool = False, without: str | None = None) -> None:
        """Run one round inside :meth:`alone`. Raise StoreError if it fails."""
        failed = await self._round(sums=sums, without=without)
        for error in failed.values():
            raise error

    async def _round(self, *, sums: bool, without: str | None) -> dict[Kind, StoreError]:
        """Write and flush queues and index, each as far as possible, and save the notes if all succeeded.
        Return the first error of each kind of file."""
        failed: dict[Kind, StoreError] = {}

        def attempt(kind: Kind, work: Callable[[], T]) -> T | None:
            try:
                return work()
            except StoreError as error:
                failed.setdefault(kind, error)
                return None

        self._derived.dispatcher.run()  # messages that waited for space
        attempt(Kind.INDEX, self._derived.key_filler.put_pending)
        # Taken before the flush, and never past the flushed end of the log.
        noted = self._saver.note()
        queues_ms = self._saver.queues_ms()
        written = attempt(Kind.QUEUE, self._derived.queues.write)
        if written is None:
            written = self._derived.queues.take_unflushed()
        index_written = attempt(Kind.INDEX, self._derived.index.write)
        gone = self._derived.queues.gone
        grown = noted.dispatched - self._saver.summed >= STEP_BYTES
        summing = None
        if (grown or sums) and not failed:
            summing = self._saver.summing(noted.dispatched, without)

        def in_thread() -> StoreError | None:
            attempt(Kind.QUEUE, partial(flush, written))
            if index_written is not None:
                attempt(Kind.INDEX, partial(self._derived.index.sync, index_written))
            if self._ledger is not None:
                attempt(Kind.LEDGER_INDEX, self._ledger.flush)
                if not failed:
                    attempt(Kind.CHECKPOINT, self._ledger.save)
            if not failed:  # the notes must not claim data that is not on the disk
                if summing is not None:
                    attempt(Kind.SUMS, summing)
                attempt(Kind.CHECKPOINT, partial(self._saver.save_notes, noted, queues_ms))
            try:
                self._derived.queues.remove_gone(gone)
            except StoreError as error:  # the queues are already forgotten: nothing waits for their files
                return error
            return None

        not_removed = await self.in_keeper(in_thread)
        if not_removed is None:
            self._failing.passed(Kind.QUEUE, REMOVE)
        else:
            self._failing.failed(Kind.QUEUE, not_removed, work=REMOVE, operation=Operation.REMOVE)
        if Kind.QUEUE in failed:
            self._derived.queues.not_flushed(written)
        if Kind.SUMS in failed:
            self._saver.doubt_sums()
        return failed

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run background work; its errors are logged. :meth:`close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("housekeeping_failed", exc_info=task.exception())
