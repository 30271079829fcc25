"""Background work of a store: flush queues and index, save progress notes, delete expired files."""

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
from kerolox.store.retention import MANUAL_ROUNDS, LogFile, RetentionVerdict, judge
from kerolox.store.state import Obstacle
from kerolox.store.verdict import identity_of

if TYPE_CHECKING:
    from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

T = TypeVar("T")

# Kinds of work whose failures are counted separately; see standing_failures.
FLUSH, REMOVE, CLEAN, ROLL, APPEND = "flush", "remove", "clean", "roll", "append"
_ROUND = (Kind.QUEUE, Kind.INDEX, Kind.LEDGER_INDEX, Kind.SUMS, Kind.CHECKPOINT)
# Queue bytes held in memory until they are flushed; above this, sends are refused
UNFLUSHED_BYTES_MAX = 64 << 20
CLEAN_FIRST_S = 60.0  # delay of the first check of age and disk, so that the start can settle


class Housekeeper:
    """Background rounds of one store. Work that waits for the disk runs in the store's keeper thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._flush_timer: TimerHandle | None = None
        self._clean_timer: TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._deleting = asyncio.Lock()  # one deletion of old files at a time; acquired before ``_flushing``
        self._flushing = asyncio.Lock()  # one round at a time
        self._is_held = False
        self._cleaning = False
        self._closing = asyncio.Event()
        self._ordered_rounds = 0
        self._has_looked = False  # True once a check of age and disk is scheduled at the normal interval
        self._probing = False
        self._log_begin = 0  # log offset before which files were deleted, or are about to be
        self._summed = 0  # log offset up to which the saved sums cover queues and index

    def start(self) -> None:
        self._schedule_flush()
        self._clean_timer = self._store.clock.beat(CLEAN_FIRST_S, self._clean_tick)
        self._store.state.on_change.append(self._look_sooner)

    async def close(self) -> None:
        for timer in (self._flush_timer, self._clean_timer):
            if timer is not None:
                timer.cancel()
        self._flush_timer = self._clean_timer = None
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Prevent rounds while the block runs, because the log is to be cut."""
        self._is_held = True  # a deletion of many files stops after the current file
        try:
            async with self._deleting, self._flushing:
                self._is_held = False
                yield
        finally:
            self._is_held = False

    def order_deletion(self) -> None:
        """Delete expired files in the coming rounds at any hour."""
        self._ordered_rounds = MANUAL_ROUNDS

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
            if topic in store.queues.by_topic:
                # The next start must not take a deleted queue for a lost one, so no sum covers it any more.
                await self.make_safe(sums=True, without=topic)
            # Messages being written must not enter queues that begin anew, now or after a crash.
            await store.flusher.flush_all()
            store.log.forget_cursors(topic)
            if before is not None and store.queues.last_place(topic) > before:
                return False
            store.queue_filler.forget(topic)
            end = store.progress.appended if before is None else before
            deleted = store.queues.delete_topic(topic)
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
            self._spawn(self.flush())
        if self._store.reads.lasting and not self._probing:
            self._spawn(self._probe())

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
                full = self._store.queues.unflushed_bytes() > UNFLUSHED_BYTES_MAX
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
        written = attempt(Kind.QUEUE, store.queues.write)
        if written is None:
            written = store.queues.take_unflushed()
        index_written = attempt(Kind.INDEX, store.index.write)
        gone = store.queues.gone
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
                store.queues.remove_gone(gone)
            except StoreError as error:  # the queues are already forgotten: nothing waits for their files
                return error
            return None

        not_removed = await asyncio.get_running_loop().run_in_executor(store.keeper, in_thread)
        if not_removed is None:
            store.failing.passed(Kind.QUEUE, REMOVE)
        else:
            store.failing.failed(Kind.QUEUE, not_removed, work=REMOVE, operation=Operation.REMOVE)
        if Kind.QUEUE in failed:
            store.queues.not_flushed(written)
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
            queues=len(store.queues),
            index_files=len(store.index),
        )

    def save_sums(self, end: int, *, whole: bool = False) -> None:
        """Save sums of queues and index for messages before ``end``. Wait for the disk."""
        self._summing(end, None, whole=whole)()

    def _summing(self, end: int, without: str | None, *, whole: bool = False) -> Callable[[], None]:
        """Return a function that a thread calls to sum up queues and index as they are written now."""
        store = self._store
        ends = [(queue, queue.written_bytes) for queue in store.queues if queue.topic != without]
        headers = store.index.headers()
        self._summed = end

        def sum_up() -> None:
            queues = [queue.sum_up(end_bytes) for queue, end_bytes in ends]
            index = store.index.sum_up(headers, whole=whole)
            store.notes.sums.save(Sums(end, self._place_before(end - CHECKED_BYTES), queues, index))
            self._save_identity(min(end, store.progress.flushed))

        return sum_up

    def _save_identity(self, end: int, begin: int = 0) -> None:
        """Save the identity of the log's files. Wait for the disk."""
        identity = self._store.notes.identity
        begin = max(begin, self._log_begin)
        identity.save(identity_of(self._store.segments, identity.known, end, begin))

    def _place_before(self, physical: int) -> int:
        """Return an offset of the log, shortly before ``physical``, at which a record begins according to a
        queue."""
        store = self._store
        log_min = store.log.min_offset
        if physical <= log_min:
            return log_min
        return max(log_min, position_of(store.segments, store.queues.place_before(physical)))

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

    # --- age and disk ----------------------------------------------------------------------------

    def _look_sooner(self) -> None:
        """Switch to the normal check interval when the disk is full just after the start."""
        if self._clean_timer is not None and not self._has_looked and self._is_full:
            self._clean_timer.cancel()
            self._schedule_clean()

    @property
    def _is_full(self) -> bool:
        return Obstacle.DISK_FULL in self._store.state.obstacles

    def _schedule_clean(self) -> None:
        self._has_looked = True
        interval_s = self._store.options.clean_interval_ms / 1000
        self._clean_timer = self._store.clock.beat(interval_s, self._clean_tick)

    def _clean_tick(self) -> None:
        self._schedule_clean()
        self._spawn(self.run_clean())

    async def run_clean(self) -> None:
        """Delete expired files, and report failures."""
        failing = self._store.failing
        try:
            await self.clean()
        except StoreError as error:
            failing.failed(Kind.LOG, error, work=CLEAN, operation=Operation.REMOVE)
        else:
            failing.passed(Kind.LOG, CLEAN)

    async def clean(self) -> RetentionVerdict:
        """Check age and disk once, and delete files or set the obstacle as needed."""
        store = self._store
        verdict = await asyncio.get_running_loop().run_in_executor(store.keeper, self._judge)
        if verdict.disk_full:
            store.state.set(
                Obstacle.DISK_FULL,
                f"{verdict.reason}; free space, shorten fileReservedTime or set diskSpaceFreeEnough",
            )
        elif self._is_full:
            store.state.clear(Obstacle.DISK_FULL)
        self._ordered_rounds = max(0, self._ordered_rounds - 1)
        if verdict.delete_before is not None and not self._cleaning:
            before = store.log.min_offset
            self._cleaning = True
            try:
                await self._delete_log_before(verdict.delete_before)
            finally:
                self._cleaning = False
            log.info("log_deleted from=%d to=%d reason=%r", before, store.log.min_offset, verdict.reason)
        return verdict

    def _judge(self) -> RetentionVerdict:
        store = self._store
        files = [
            LogFile(segment.start, segment.end, int(store.files.mtime_s(segment.path) * 1000))
            for segment in self._deletable()
        ]
        enough = store.options.disk_free_enough
        ratios = {path: store.files.used_ratio(path, enough) for path in store.segments.directories}
        # New files go to directories with free space while there is one.
        full = {path for path, ratio in ratios.items() if ratio > store.options.disk_percent_force / 100}
        store.segments.full_directories.difference_update(set(ratios) - full)
        store.segments.full_directories.update(full)
        return judge(
            files,
            min(ratios.values()),
            store.clock.wall_ms(),
            store.options,
            ordered=self._ordered_rounds > 0,
            queue_disk_ratio=store.files.used_ratio(store.root, enough),
            was_full=self._is_full,
        )

    def _deletable(self) -> list[Segment]:
        """Return the files of the log; all but the last one may be deleted.

        If a plain log was continued as a DLedger log, the plain part goes first, as with Apache's members. Of
        the entries only committed ones are returned.
        """
        segments, confirmed = self._store.segments, self._store.progress.confirmed
        if self._store.ledger is None:
            return list(segments.all)
        files = [segment for segment in segments.all if segment.start <= confirmed]
        plain = sum(segment.start < segments.entries_from for segment in files)
        return files[: plain + 1] if plain else files

    async def _delete_log_before(self, offset: int) -> None:
        store = self._store
        loop = asyncio.get_running_loop()
        async with self._deleting:
            for segment in store.segments.all[:-1]:
                if segment.end > offset or self._closing.is_set() or self._is_held:
                    break
                # The note first, so that the next start knows the file was deleted on purpose.
                self._log_begin = segment.end
                flushed = store.progress.flushed
                await loop.run_in_executor(store.keeper, self._save_identity, flushed)
                # One file at a time, with a pause: the deletion of a large file keeps the disk busy.
                await loop.run_in_executor(store.keeper, store.segments.delete_before, segment.end)
                await self._pause(store.options.delete_pause_ms / 1000)
            log_min = store.log.min_offset
            await loop.run_in_executor(store.keeper, store.queues.delete_before, log_min)
            await loop.run_in_executor(store.keeper, store.index.delete_before, log_min)
            await loop.run_in_executor(store.keeper, store.notes.drop_before, log_min)
            if store.ledger is not None:
                await store.ledger.files_deleted()
            await self.flush(sums=True)  # progress notes and sums describe the remaining files

    async def _pause(self, seconds: float) -> None:
        """Sleep; return early when the store closes."""
        if seconds <= 0:
            return
        pause = asyncio.ensure_future(self._store.clock.sleep(seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        await asyncio.wait([pause, closing], return_when=asyncio.FIRST_COMPLETED)
        pause.cancel()
        closing.cancel()

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("housekeeping_failed", exc_info=task.exception())
