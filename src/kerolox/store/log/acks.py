"""Acknowledgement of messages: the only module that knows what was promised about a message.

Under asynchronous flush a message is safe when it is written. Under synchronous flush it is safe when it is
flushed. A broker that leads synchronous followers (SYNC_MASTER) also promises a number of replicas; flush and
replicas are awaited at the same time. All code that stores messages asks this module, and checks neither the
flush mode nor the replicas.
"""

from __future__ import annotations

import asyncio

from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.store.errors import StoreError
from kerolox.store.log.flush import LogFlusher
from kerolox.store.log.progress import Progress
from kerolox.store.log.replica_waits import ReplicaWaits
from kerolox.store.log.replicas import Replicas
from kerolox.store.log.safe import OnSafe, Safe
from kerolox.store.options import FlushMode, StoreOptions
from kerolox.store.state import StoreState


class NotSafe(KeroloxError):
    """Message that is stored, but not known to have reached the disk."""

    code = 10  # FLUSH_DISK_TIMEOUT
    retriable = True


class NotCopied(NotSafe):
    """Message that is stored here, but not known to be on enough replicas."""

    def __init__(self, how: Safe, why: str) -> None:
        super().__init__(f"{how.words}: stored here, but {why}")
        self.code = how.code


class CutOff(StoreError):
    """Message that was stored and is removed: the log was truncated before it."""

    retriable = True


class Acks:
    """Callbacks for the time when everything before a log offset is as safe as was promised."""

    def __init__(
        self,
        flusher: LogFlusher,
        replicas: Replicas,
        options: StoreOptions,
        state: StoreState,
        *,
        clock: Clock,
    ) -> None:
        self._flusher = flusher
        self._replicas = replicas
        self._copies = ReplicaWaits(replicas, options, clock)
        self._options = options
        self._state = state
        self.wait_for_replicas = False  # set by the broker according to its role

    @property
    def wait(self) -> bool:
        """Return True if a written message may have to wait for a flush or for replicas."""
        return self.wait_for_replicas or self._wait_for_flush

    @property
    def _wait_for_flush(self) -> bool:
        return self._options.flush_mode is FlushMode.SYNC

    # --- before a write --------------------------------------------------------------------------------

    @property
    def lacks_replicas(self) -> str | None:
        """Return the reason why messages must be rejected, if too few replicas are in sync; else None."""
        low = self._options.replicas_min
        if not self.wait_for_replicas or low <= 1:
            return None
        there = self._replicas.in_sync(self._replicas.end)
        return None if there >= low else f"{there} of at least {low} (minInSyncReplicas) are in sync"

    # --- after a write ---------------------------------------------------------------------------------

    @property
    def needed(self) -> int:
        """Return the number of replicas that must have a message written now, including the leader."""
        if not self.wait_for_replicas:
            return 1
        options, replicas = self._options, self._replicas
        if options.replicas_degrade:
            return max(min(options.replicas_needed, replicas.in_sync(replicas.end)), options.replicas_min)
        return options.replicas_needed

    @property
    def promises_copies(self) -> bool:
        """Return True if an acknowledged message is on followers, too."""
        return self.wait_for_replicas and self.needed > 1

    def when_safe(self, end: int, on_safe: OnSafe) -> None:
        """Call ``on_safe`` once all data before ``end`` is safe: immediately, if nothing more is promised.

        One list entry for each call, however many messages lie before the offset.
        """
        needed = self.needed
        if needed > 1:
            if self._wait_for_flush:
                on_safe = Both(on_safe)
                self._flusher.wait_safe(end, on_safe)
            self._copies.wait(end, needed, on_safe)
        elif self._wait_for_flush:
            self._flusher.wait_safe(end, on_safe)
        else:
            on_safe(Safe.YES)

    # --- as a follower -----------------------------------------------------------------------------------

    def own_end(self, progress: Progress) -> int:
        """Return the offset up to which this store keeps its own promise: what a follower reports to its
        leader."""
        return progress.flushed if self._wait_for_flush else progress.committed

    def hasten(self, end: int) -> None:
        """Start a flush of the data before ``end`` if a flush is promised, without waiting for it."""
        if self._wait_for_flush:
            self._flusher.wait_safe(end, lambda how: None)

    # --- waiting -----------------------------------------------------------------------------------------

    async def safe(self, end: int) -> None:
        """Wait until all data before ``end`` is safe. Raise :class:`NotSafe`, or NotWritable with the
        obstacles."""
        if not self.wait:
            return
        done: asyncio.Future[Safe] = asyncio.get_running_loop().create_future()
        self.when_safe(end, lambda how: None if done.done() else done.set_result(how))
        how = await done
        if how is Safe.FLUSH_TIMEOUT:
            raise NotSafe(f"stored, but not flushed within {self._options.flush_timeout_ms} ms")
        if how in (Safe.NO_MAJORITY, Safe.NO_LEADER):
            raise NotCopied(how, "not confirmed by a majority of the group")
        if how is Safe.NO_REPLICA:
            raise NotCopied(how, f"fewer than {self.needed} replicas are in sync, including this one")
        if how is Safe.REPLICA_TIMEOUT:
            raise NotCopied(
                how, f"not on {self.needed} replicas within {self._options.replica_timeout_ms} ms"
            )
        if how is Safe.CUT:
            raise CutOff(f"not stored: {how.words}. Send it again to the leader.", offset=end)
        if how is Safe.FAILED:
            self._state.check_writable()
            raise NotSafe("stored, but the store was closed before it was flushed")

    @property
    def stalled_ms(self) -> float:
        """Return how long answers have been waiting for the disk, in ms; 0 if they do not wait for it."""
        return self._flusher.stalled_s() * 1000 if self._wait_for_flush else 0.0

    # --- ends ------------------------------------------------------------------------------------------

    def cut(self, offset: int, stored_ms: int) -> None:
        """Report to producers that wait for messages after a cut of the log at ``offset`` that these are
        gone. ``stored_ms``: store time of the last message before it."""
        self._flusher.cut(offset, stored_ms)
        self._replicas.cut(offset)
        self._copies.cut(offset)

    async def settle(self) -> None:
        """Wait, for the rest of their time limit, until messages that wait for replicas are answered. Called
        after the last write."""
        try:
            async with asyncio.timeout(self._options.replica_timeout_ms / 1000):
                await self._copies.idle()
        except TimeoutError:
            pass
        self._copies.close()

    def close(self) -> None:
        self._copies.close()


class Both:
    """Combined callback of the flush and the replicas: it passes on the worse result when both are known, and
    a failure immediately."""

    __slots__ = ("_first", "_on_safe")

    def __init__(self, on_safe: OnSafe) -> None:
        self._on_safe: OnSafe | None = on_safe
        self._first: Safe | None = None

    def __call__(self, how: Safe) -> None:
        on_safe, first = self._on_safe, self._first
        if on_safe is None:
            return
        if first is None and not how.failed:
            self._first = how
            return
        self._on_safe = None
        on_safe(how if first is None else how.and_also(first))
