"""Flushing of the commit log.

The log is flushed by ``fdatasync`` in a thread, never on the event loop: a disk that stalls must not stop the
broker from answering. One flush serves all waiting writes (group commit). A failed flush fences the store:
nothing more is acknowledged, because a repeated flush could report a false success (see FsyncFailed).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from kerolox.clock import Clock, TimerHandle
from kerolox.observers import Observers
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.safe import OnSafe, Safe
from kerolox.store.log.waits import Waits
from kerolox.store.options import FlushMode, StoreOptions
from kerolox.store.standing_failures import StandingFailures
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)

PAGE_BYTES = 4096
RETRY_S = 1.0  # delay after a flush that could not start


FlushWork = Callable[[], bool]


class FlushThread:
    """Thread that runs one function whenever it is requested.

    It does less than an executor, at a third of the cost of each flush: no queue, no futures.
    """

    def __init__(self, work: FlushWork) -> None:
        self._work = work  # returns True to run once more without a request
        self._asked = threading.Lock()
        self._asked.acquire()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Run the function. Must not be called again until the function has returned False."""
        if self._thread is None:
            # A daemon thread: a process that ends without closing its store must not hang on it.
            self._thread = threading.Thread(target=self._run, name="kerolox-flush", daemon=True)
            self._thread.start()
        self._asked.release()

    def shutdown(self) -> None:
        """Wait for the run under way, and end the thread."""
        self._stopping = True
        if self._thread is not None:
            if self._asked.locked():
                self._asked.release()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            if self._stopping:
                return
            while self._work() and not self._stopping:
                pass


class LogFlusher:
    """Flusher of the commit log: on request (synchronous flush), and by interval."""

    def __init__(
        self, commit_log: CommitLog, options: StoreOptions, failing: StandingFailures, *, clock: Clock
    ) -> None:
        self._log = commit_log
        self._options = options
        self._failing = failing
        self._state = state = failing.state
        self._clock = clock
        self._thread = FlushThread(self._flush_once)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits = Waits(clock, lambda: options.flush_timeout_ms / 1000, Safe.FLUSH_TIMEOUT)
        self._wanted = 0  # the highest offset that a write waits for
        self._running = False
        # While set, no flush begins, and no flush is reported after this offset
        self._paused_at: int | None = None
        self._rounds: list[asyncio.Future[None]] = []  # futures that wait for the end of any flush
        self._closed = False
        self._timer: TimerHandle | None = None
        self._commit_timer: TimerHandle | None = None
        self._retry_timer: TimerHandle | None = None
        self._failure: StoreError | None = None  # error of the last flush, if another one may succeed
        self._thorough_s = 0.0
        state.on_change.append(self._on_state)
        self.flushed_store_timestamp = 0  # all messages with an earlier store time are on the medium
        self.flushes = 0
        # called with the flushed offset
        self.on_flushed: Observers[[int]] = Observers("log flushed")
        self._running_since_s = 0.0

    def stalled_s(self) -> float:
        """Return how long the flush under way has taken so far, in seconds; 0 without one."""
        return self._clock.monotonic_s() - self._running_since_s if self._running else 0.0

    def recovered(self, flushed_ms: int) -> None:
        """Note that all messages before this store time are on the medium."""
        self.flushed_store_timestamp = flushed_ms

    def start(self) -> None:
        self._thorough_s = self._clock.monotonic_s()
        self._schedule()
        if self._options.transient:
            self._schedule_commit()

    def wait_safe(self, end_offset: int, on_safe: OnSafe) -> None:
        """Call ``on_safe`` once everything before this offset is on the medium, or when the time limit is
        over."""
        if self._state.fenced or self._closed:
            on_safe(Safe.FAILED)
            return
        if self._log.progress.flushed >= end_offset:
            on_safe(Safe.YES)
            return
        self._waits.add(end_offset, on_safe)
        self._wanted = end_offset
        self.flush_soon()

    def flush_soon(self) -> None:
        """Start a flush unless one is running; if that one leaves unflushed data, another follows."""
        if not self._running and not self._state.fenced and not self._closed and self._paused_at is None:
            self._loop = asyncio.get_running_loop()
            self._running_since_s = self._clock.monotonic_s()
            self._running = True
            self._thread.ask()

    async def flush_all(self) -> None:
        """Flush everything appended so far, and wait until that is reported. Raise if the store is fenced, or
        the flush failed."""
        progress = self._log.progress
        end = progress.appended
        while progress.flushed < min(end, progress.appended):  # the log may be cut meanwhile
            self._state_must_not_be_fenced()
            self.flush_soon()
            await self._round()
            if self._failure is not None:
                raise self._failure
        if self._running:
            await self._round()  # the thread may have flushed it, and not reported it yet
        self._state_must_not_be_fenced()

    async def hold(self, offset: int) -> None:
        """Wait for the flush under way, and start none before :meth:`release`: the log is to be cut at
        ``offset``."""
        self._paused_at = offset
        while self._running:
            await self._round()

    def cut(self, offset: int, stored_ms: int) -> None:
        """Drop the waits for messages after a cut of the log at ``offset``, and report them as gone.
        ``stored_ms``: store time of the last message before it."""
        self._wanted = min(self._wanted, offset)
        self.flushed_store_timestamp = min(self.flushed_store_timestamp, stored_ms)
        self._waits.cut(offset)

    def release(self) -> None:
        """Allow flushes again."""
        self._paused_at = None
        self._tell()
        self._end_rounds()
        if self._waits:
            self.flush_soon()

    async def close(self) -> None:
        for timer in (self._timer, self._commit_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._commit_timer = self._retry_timer = None
        self._closed = True
        while self._running:
            await self._round()
        self._waits.close(Safe.FAILED)
        self._thread.shutdown()

    async def _round(self) -> None:
        """Wait until the flush under way has ended, or flushes are allowed again."""
        if self._running or self._paused_at is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._rounds.append(done)
            await done

    # --- by interval -----------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._timer = self._clock.beat(self._options.flush_interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._schedule()
        progress = self._log.progress
        unflushed_pages = progress.committed // PAGE_BYTES - progress.flushed // PAGE_BYTES
        now_s = self._clock.monotonic_s()
        thorough = now_s - self._thorough_s >= self._options.flush_thorough_interval_ms / 1000
        if progress.flushed < progress.committed and (
            thorough or unflushed_pages >= self._options.flush_pages_min
        ):
            self.flush_soon()
        if thorough:
            self._thorough_s = now_s

    def _schedule_commit(self) -> None:
        self._commit_timer = self._clock.beat(self._options.commit_interval_ms / 1000, self._commit_tick)

    def _commit_tick(self) -> None:
        self._schedule_commit()
        progress = self._log.progress
        if progress.committed < progress.appended and self._paused_at is None:
            # Committing is one pwrite into the page cache; the flush that follows is the slow part.
            try:
                self._log.segments.commit()
            except StoreError as error:
                self._failing.failed(Kind.LOG, error, work="commit")  # retried by the next tick
                return
            self._failing.passed(Kind.LOG, "commit")
            progress.advance()
            if self._options.flush_mode is FlushMode.SYNC:
                self.flush_soon()

    # --- in the thread, and back on the loop -------------------------------------------------------

    def _flush_once(self) -> bool:
        """Run one flush in the thread. Return True if another follows immediately: a write already waits for
        it, and need not wait until the loop has processed this one."""
        timestamp = self._log.last_store_timestamp
        flushed = 0
        failed: BaseException | None = None
        try:
            if self._options.transient:
                self._log.segments.commit()
            flushed = self._log.segments.flush()
        except BaseException as error:
            failed = error
        left = flushed < self._wanted and flushed < self._log.segments.wrote
        more = left and failed is None and not self._closed and self._paused_at is None
        if more:
            self._running_since_s = self._clock.monotonic_s()
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._flushed, flushed, timestamp, failed, more)
        except RuntimeError:
            return False  # the loop was closed: no caller is left
        return more

    def _flushed(self, flushed: int, timestamp: int, failed: BaseException | None, more: bool) -> None:
        self._running = more
        self._failure = None
        if failed is not None:
            self._failed(failed)
            self._end_rounds()
            return
        self._end_rounds()
        self._failing.passed(Kind.LOG, "flush")
        self.flushes += 1
        self.flushed_store_timestamp = max(self.flushed_store_timestamp, timestamp)
        self._tell()
        self._log.progress.advance()
        self.on_flushed.tell(flushed)
        if self._waits:
            self.flush_soon()

    def _end_rounds(self) -> None:
        rounds, self._rounds = self._rounds, []
        for done in rounds:
            if not done.done():
                done.set_result(None)

    def _tell(self) -> None:
        flushed = self._log.progress.flushed
        self._waits.reach(flushed if self._paused_at is None else min(flushed, self._paused_at))

    def _failed(self, error: BaseException) -> None:
        """Fence the store, or retry: a flush that could not open a file has lost nothing."""
        if not isinstance(error, StoreError):
            self._state.set(Obstacle.FENCED, f"a flush failed: {error}")
            return
        if self._failing.failed(Kind.LOG, error, work="flush").may_pass:
            self._failure = error
            if self._retry_timer is None and not self._closed:
                self._retry_timer = self._clock.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.flush_soon()

    def _on_state(self) -> None:
        # A fenced store flushes nothing any more, whatever fenced it.
        if self._state.fenced:
            self._wanted = 0
            self._waits.end(Safe.FAILED)

    def _state_must_not_be_fenced(self) -> None:
        if self._state.fenced:
            self._state.check_writable()
