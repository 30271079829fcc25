"""Deletion of the log's expired files, with everything that queues, index and notes have of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from kerolox.clock import TimerHandle
from kerolox.store.disk.segment import Segment
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind, Operation
from kerolox.store.retention import MANUAL_ROUNDS, LogFile, RetentionVerdict, judge
from kerolox.store.state import Obstacle

if TYPE_CHECKING:
    from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

CLEAN = "clean"  # work whose failures are counted separately; see standing_failures
FIRST_S = 60.0  # delay of the first check of age and disk, so that the start can settle


class Expiry:
    """Regular checks of age and disk. Work that waits for the disk runs in the store's keeper thread."""

    def __init__(self, store: MessageStore, spawn: Callable[[Coroutine[Any, Any, object]], None]) -> None:
        self._store = store
        self._spawn = spawn
        self._timer: TimerHandle | None = None
        # One deletion at a time; acquired before the housekeeper's lock
        self._deleting = asyncio.Lock()
        self._is_paused = False
        self._cleaning = False
        self._closing = asyncio.Event()
        self._ordered_rounds = 0
        self._has_looked = False  # True once a check is scheduled at the normal interval

    def start(self) -> None:
        self._timer = self._store.clock.beat(FIRST_S, self._tick)
        self._store.state.on_change.append(self._check_sooner)

    def close(self) -> None:
        """Schedule no more checks, and let a deletion under way stop after the current file."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closing.set()

    def order(self) -> None:
        """Delete expired files in the coming rounds at any hour."""
        self._ordered_rounds = MANUAL_ROUNDS

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Prevent deletions while the block runs."""
        self._is_paused = True  # a deletion of many files stops after the current file
        try:
            async with self._deleting:
                self._is_paused = False
                yield
        finally:
            self._is_paused = False

    def _check_sooner(self) -> None:
        """Switch to the normal check interval when the disk is full just after the start."""
        if self._timer is not None and not self._has_looked and self._is_full:
            self._timer.cancel()
            self._schedule()

    @property
    def _is_full(self) -> bool:
        return Obstacle.DISK_FULL in self._store.state.obstacles

    def _schedule(self) -> None:
        self._has_looked = True
        interval_s = self._store.options.clean_interval_ms / 1000
        self._timer = self._store.clock.beat(interval_s, self._tick)

    def _tick(self) -> None:
        self._schedule()
        self._spawn(self.run())

    async def run(self) -> None:
        """Delete expired files, and report failures."""
        failing = self._store.failing
        try:
            await self.check()
        except StoreError as error:
            failing.failed(Kind.LOG, error, work=CLEAN, operation=Operation.REMOVE)
        else:
            failing.passed(Kind.LOG, CLEAN)

    async def check(self) -> RetentionVerdict:
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
                await self.delete_before(verdict.delete_before)
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

    async def delete_before(self, offset: int) -> None:
        """Delete the files that end at or before this log offset, never the last one."""
        store = self._store
        loop = asyncio.get_running_loop()
        async with self._deleting:
            for segment in store.segments.all[:-1]:
                if segment.end > offset or self._closing.is_set() or self._is_paused:
                    break
                # The note first, so that the next start knows the file was deleted on purpose.
                store.notes.identity.begin = segment.end
                flushed = store.progress.flushed
                await loop.run_in_executor(store.keeper, store.notes.save_identity, store.segments, flushed)
                # One file at a time, with a pause: the deletion of a large file keeps the disk busy.
                await loop.run_in_executor(store.keeper, store.segments.delete_before, segment.end)
                await self._pause(store.options.delete_pause_ms / 1000)
            await self.remove_queue_files()
            log_min = store.log.min_offset
            await loop.run_in_executor(store.keeper, store.index.delete_before, log_min)
            await loop.run_in_executor(store.keeper, store.notes.drop_before, log_min)
            if store.ledger is not None:
                await store.ledger.files_deleted()
            await store.housekeeper.flush(sums=True)  # progress notes and sums describe the remaining files

    async def remove_queue_files(self) -> int:
        """Remove queue files whose messages have all left the log; return their number."""
        store = self._store
        return await asyncio.get_running_loop().run_in_executor(
            store.keeper, store.consume_queues.delete_before, store.log.min_offset
        )

    async def _pause(self, seconds: float) -> None:
        """Sleep; return early when the store closes."""
        if seconds <= 0:
            return
        pause = asyncio.ensure_future(self._store.clock.sleep(seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        await asyncio.wait([pause, closing], return_when=asyncio.FIRST_COMPLETED)
        pause.cancel()
        closing.cancel()
