"""Background work of a store: flush queues and index, save progress notes, delete topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kerolox.clock import TimerHandle
from kerolox.store.disk.progress_notes import ProgressNotes
from kerolox.store.disk.segment import Segment
from kerolox.store.disk.sums import CHECKED_BYTES, STEP_BYTES, Sums
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind, Operation
from kerolox.store.log.framing import position_of
from kerolox.store.notes import Times
from kerolox.store.queue.consume_queues import flush

if TYPE_CHECKING:
    from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

T = TypeVar("T")

# Kinds of work whose failures are counted separately; see standing_failures.
FLUSH, REMOVE, ROLL, APPEND = "flush", "remove", "roll", "append"
_ROUND = (Kind.QUEUE, Kind.INDEX, Kind.LEDGER_INDEX, Kind.SUMS, Kind.CHECKPOINT)
# Queue bytes held in memory until they are flushed; above this, sends are refused
UNFLUSHED_BYTES_MAX = 64 << 20


class Housekeeper:
    """Background rounds of one store. Work that waits for the disk runs in the store's keeper thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._flush_timer: TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._flushing = asyncio.Lock()  # one round at a time
        self._probing = False
        self._summed = 0  # log offset up to which the saved sums cover queues and index

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
        """Prevent rounds and deletions while the block runs, because the log is to be cut."""
        async with self._store.expiry.paused(), self._flushing:
            yield

    async def delete_topic(self, topic: str, *, before: int | None = None) -> bool:
        """Remove a topic's queues; return False if it had none. Raise StoreError if the deletion was not
        noted.

        ``before``: the end of the log when the topic was deleted. Later messages belong to a new topic of
        that name: if there are any, nothing is removed, because its queues begin anew with them.
        """
        store = self._store
        # The progress notes count queues. They are not saved in between, so after a kill the next start finds
        # queues missing and reads the whole log.
        async with self._flushing:
            # Also for a topic without queues: delayed messages of it may be in the log.
            noted = await self._note_deleted(topic, before)
            if topic in store.consume_queues.by_topic:
                # The next start must not take a deleted queue for a lost one, so no sum covers it any more.
                await self.make_safe(sums=True, without=topic)
            # Messages being written must not enter queues that begin anew, now or after a crash.
            await store.flusher.flush_all()
            store.log.forget_cursors(topic)
            if before is not None and store.consume_queues.last_place(topic) > before:
                return False
            store.queue_filler.forget(topic)
            end = store.progress.appended if before is None else before
            deleted = store.consume_queues.delete_topic(topic)
            if deleted and noted < end:  # messages were sent to the topic in the meantime
                await self._note_deleted(topic)
            await self._flush_round()
        return deleted

    async def _note_deleted(self, topic: str, before: int | None = None) -> int:
        """Note that messages of the topic up to the end of the log, or ``before``, are deleted; return that
        offset."""
        store = self._store
        end = store.progress.appended if before is None else before
        await store.flusher.flush_all()  # the log must never end before a noted offset
        note = partial(store.notes.deleted.note, topic, end, store.log.min_offset)
        await asyncio.get_running_loop().run_in_executor(store.keeper, note)
        return end

    # --- queues and index ------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        interval_s = self._store.options.queue_flush_interval_ms / 1000
        self._flush_timer = self._store.clock.beat(interval_s, self._flush_tick)

    def _flush_tick(self) -> None:
        self._schedule_flush()
        self._retry_log()
        if not self._flushing.locked():
            self.spawn(self.flush())
        if self._store.reads.lasting and not self._probing:
            self.spawn(self._probe())

    async def _probe(self) -> None:
        """Read unreadable files again: the consumers that met the failure may be gone."""
        self._probing = True
        try:
            await self._store.readers.read(self._store.reads.probe)
        finally:
            self._probing = False

    def _retry_log(self) -> None:
        """Allow writes to the log again where only an attempt can show whether the failure has passed."""
        failing, segments = self._store.failing, self._store.segments
        failing.lift(Kind.LOG, APPEND)
        failing.lift(Kind.LEDGER_INDEX, APPEND)
        if not failing.is_failing(Kind.LOG, ROLL):
            return
        future = segments.retry_next(self._store.ahead)
        if future is not None:
            loop = asyncio.get_running_loop()
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._log_retried, future))

    def _log_retried(self, future: Future[Segment]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreError):
            self._store.failing.failed(Kind.LOG, error, work=ROLL, operation=Operation.CREATE)
        elif error is None:
            self._store.failing.passed(Kind.LOG, ROLL)

    async def flush(self, *, sums: bool = False, without: str | None = None) -> None:
        """Write queue and index tails, flush them in a thread, and note how far they are safe.

        ``sums``: save the sums too. ``without``: a topic that is about to be deleted; the sums leave out its
        queues.
        """
        async with self._flushing:
            await self._flush_round(sums, without)

    async def _flush_round(self, sums: bool = False, without: str | None = None) -> None:
        failing = self._store.failing
        failed = await self._round(sums=sums, without=without)
        for kind in _ROUND:
            error = failed.get(kind)
            if error is None:
                failing.passed(kind, FLUSH)
            else:
                full = self._store.consume_queues.unflushed_bytes() > UNFLUSHED_BYTES_MAX
                failing.failed(kind, error, work=FLUSH, full=full)

    async def make_safe(self, *, sums: bool = False, without: str | None = None) -> None:
        """Run one round inside :meth:`alone`. Raise StoreError if it fails."""
        failed = await self._round(sums=sums, without=without)
        for error in failed.values():
            raise error

    async def _round(self, *, sums: bool, without: str | None) -> dict[Kind, StoreError]:
        """Write and flush queues and index, each as far as possible, and save the notes if all succeeded.
        Return the first error of each kind of file."""
        store = self._store
        failed: dict[Kind, StoreError] = {}

        def attempt(kind: Kind, work: Callable[[], T]) -> T | None:
            try:
                return work()
            except StoreError as error:
                failed.setdefault(kind, error)
                return None

        store.dispatcher.run()  # messages that waited for space
        attempt(Kind.INDEX, store.key_filler.put_pending)
        # Taken before the flush, and never past the flushed end of the log.
        noted = self.note()
        queues_ms = self.queues_ms()
        written = attempt(Kind.QUEUE, store.consume_queues.write)
        if written is None:
            written = store.consume_queues.take_unflushed()
        index_written = attempt(Kind.INDEX, store.index.write)
        gone = store.consume_queues.gone
        grown = noted.dispatched - self._summed >= STEP_BYTES
        summing = None
        if (grown or sums) and not failed:
            summing = self._summing(noted.dispatched, without)

        def in_thread() -> StoreError | None:
            attempt(Kind.QUEUE, partial(flush, written))
            if index_written is not None:
                attempt(Kind.INDEX, partial(store.index.sync, index_written))
            if store.ledger is not None:
                attempt(Kind.LEDGER_INDEX, store.ledger.flush)
                if not failed:
                    attempt(Kind.CHECKPOINT, store.ledger.save)
            if not failed:  # the notes must not claim data that is not on the disk
                if summing is not None:
                    attempt(Kind.SUMS, summing)
                attempt(Kind.CHECKPOINT, partial(self.save_notes, noted, queues_ms))
            try:
                store.consume_queues.remove_gone(gone)
            except StoreError as error:  # the queues are already forgotten: nothing waits for their files
                return error
            return None

        not_removed = await asyncio.get_running_loop().run_in_executor(store.keeper, in_thread)
        if not_removed is None:
            store.failing.passed(Kind.QUEUE, REMOVE)
        else:
            store.failing.failed(Kind.QUEUE, not_removed, work=REMOVE, operation=Operation.REMOVE)
        if Kind.QUEUE in failed:
            store.consume_queues.not_flushed(written)
        if Kind.SUMS in failed:
            self._summed = 0  # sum up again in the next round
        return failed

    def note(self) -> ProgressNotes:
        """Return the progress notes that are true once queues and index are flushed as they are now."""
        store = self._store
        return ProgressNotes(
            boot=store.notes.boot,
            dispatched=min(store.dispatcher.dispatched, store.progress.flushed),
            flushed=store.progress.flushed,
            queues=len(store.consume_queues),
            index_files=len(store.index),
        )

    def save_sums(self, end: int, *, whole: bool = False) -> None:
        """Save sums of queues and index for messages before ``end``. Wait for the disk."""
        self._summing(end, None, whole=whole)()

    def _summing(self, end: int, without: str | None, *, whole: bool = False) -> Callable[[], None]:
        """Return a function that a thread calls to sum up queues and index as they are written now."""
        store = self._store
        ends = [(queue, queue.written_bytes) for queue in store.consume_queues if queue.topic != without]
        headers = store.index.headers()
        self._summed = end

        def sum_up() -> None:
            queues = [queue.sum_up(end_bytes) for queue, end_bytes in ends]
            index = store.index.sum_up(headers, whole=whole)
            store.notes.sums.save(Sums(end, self._place_before(end - CHECKED_BYTES), queues, index))
            store.notes.save_identity(store.segments, min(end, store.progress.flushed))

        return sum_up

    def _place_before(self, physical: int) -> int:
        """Return an offset of the log, shortly before ``physical``, at which a record begins according to a
        queue."""
        store = self._store
        log_min = store.log.min_offset
        if physical <= log_min:
            return log_min
        return max(log_min, position_of(store.segments, store.consume_queues.place_before(physical)))

    def queues_ms(self) -> int:
        """Return the store time before which all messages are flushed in the log and present in the queues.

        Dispatch may lag behind the log when replicas do, or when the queues found the disk full.
        """
        store = self._store
        return min(store.dispatcher.dispatched_ms, store.flusher.flushed_store_timestamp)

    def save_notes(self, progress: ProgressNotes, queues_ms: int) -> None:
        """Save the progress. Wait for the disk."""
        store = self._store
        times = Times(store.flusher.flushed_store_timestamp, queues_ms, store.index.full_files_end_ms)
        store.notes.save(progress, times, store.progress.confirmed)

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run background work; its errors are logged. :meth:`close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("housekeeping_failed", exc_info=task.exception())
