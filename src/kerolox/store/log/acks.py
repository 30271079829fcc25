"""When an answer may leave: the one place that knows what was promised about a message.

Under asynchronous flush a message is safe when it is written. Under synchronous flush it is safe when the
disk has it. A broker that leads followers synchronously (SYNC_MASTER) has promised that so many replicas have
it, too; both are waited for side by side. Whoever stores messages asks here, and looks neither at the flush
mode nor at the replicas.
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
from kerolox.store.log.safe import Safe, Told
from kerolox.store.options import FlushMode, StoreOptions
from kerolox.store.state import StoreState


class NotSafe(KeroloxError):
    """The message is stored, but it is not known to have reached the disk."""

    code = 10  # FLUSH_DISK_TIMEOUT
    retriable = True


class NotCopied(NotSafe):
    """The message is stored here, but not known to be on enough replicas."""

    def __init__(self, how: Safe, why: str) -> None:
        super().__init__(f"{how.words}: stored here, but {why}")
        self.code = how.code


class CutOff(StoreError):
    """The message was stored, and is not any more: the log was cut back before it."""

    retriable = True


class Acks:
    """Tells when everything before an offset of the log is as safe as was promised."""

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
        self.wait_for_replicas = False  # a broker says so by its role

    @property
    def wait(self) -> bool:
        """Whether a message that is written may have to wait for anything more."""
        return self.wait_for_replicas or self._wait_for_flush

    @property
    def _wait_for_flush(self) -> bool:
        return self._options.flush_mode is FlushMode.SYNC

    # --- may it be written ---------------------------------------------------------------------------

    @property
    def lacks_replicas(self) -> str | None:
        """Why nothing is promised any more, and so nothing should be written: too few replicas are there."""
        low = self._options.replicas_min
        if not self.wait_for_replicas or low <= 1:
            return None
        there = self._replicas.in_sync(self._replicas.end)
        return None if there >= low else f"{there} of at least {low} (minInSyncReplicas) are in sync"

    # --- is it safe ----------------------------------------------------------------------------------

    @property
    def needed(self) -> int:
        """How many replicas have to have what is written now, the leader among them."""
        if not self.wait_for_replicas:
            return 1
        options, replicas = self._options, self._replicas
        if options.replicas_degrade:
            return max(min(options.replicas_needed, replicas.in_sync(replicas.end)), options.replicas_min)
        return options.replicas_needed

    @property
    def promises_copies(self) -> bool:
        """True if an acknowledged message is on followers, too."""
        return self.wait_for_replicas and self.needed > 1

    def when_safe(self, end: int, told: Told) -> None:
        """Tell once what was written before ``end`` is safe: at once, where nothing more is promised.

        One entry of a list for each call, however many messages lie before the offset.
        """
        needed = self.needed
        if needed > 1:
            if self._wait_for_flush:
                told = Both(told)
                self._flusher.wait_safe(end, told)
            self._copies.wait(end, needed, told)
        elif self._wait_for_flush:
            self._flusher.wait_safe(end, told)
        else:
            told(Safe.YES)

    # --- what a follower reports -----------------------------------------------------------------------

    def own_end(self, progress: Progress) -> int:
        """Up to where this store alone keeps its promise: what a follower may tell its leader that it has."""
        return progress.flushed if self._wait_for_flush else progress.committed

    def hasten(self, end: int) -> None:
        """Let what lies before ``end`` be flushed now, where that is promised. Nobody waits for it here."""
        if self._wait_for_flush:
            self._flusher.wait_safe(end, lambda how: None)

    # --- waiting -----------------------------------------------------------------------------------------

    async def safe(self, end: int) -> None:
        """Wait until what was written before ``end`` is safe. Raises :class:`NotSafe`, or what stands in the
        way of writing."""
        if not self.wait:
            return
        done: asyncio.Future[Safe] = asyncio.get_running_loop().create_future()
        self.when_safe(end, lambda how: None if done.done() else done.set_result(how))
        how = await done
        if how is Safe.FLUSH_TIMEOUT:
            raise NotSafe(f"stored, but not flushed within {self._options.flush_timeout_ms} ms")
        if how in (Safe.NO_MAJORITY, Safe.NO_LEADER):
            raise NotCopied(how, "not known to be on a majority of the group")
        if how is Safe.NO_REPLICA:
            raise NotCopied(how, f"fewer than {self.needed} replicas are in sync, this one counted")
        if how is Safe.REPLICA_TIMEOUT:
            raise NotCopied(
                how, f"not on {self.needed} replicas within {self._options.replica_timeout_ms} ms"
            )
        if how is Safe.CUT:
            raise CutOff(f"not stored: {how.words}. Send it again, to the broker that leads.", offset=end)
        if how is Safe.FAILED:
            self._state.check_writable()
            raise NotSafe("stored, but the store was closed before it was flushed")

    @property
    def stalled_ms(self) -> float:
        """For how long answers have been waiting for the disk; 0 when they do not wait for it."""
        return self._flusher.stalled_s() * 1000 if self._wait_for_flush else 0.0

    # --- ends ------------------------------------------------------------------------------------------

    def cut(self, offset: int, stored_ms: int) -> None:
        """The log ends here now; the last message before was stored at this time. Who waits for what lies
        behind is told that it is gone."""
        self._flusher.cut(offset, stored_ms)
        self._replicas.cut(offset)
        self._copies.cut(offset)

    async def settle(self) -> None:
        """Nothing more is written: let those who wait for replicas have their answer, in the time that is
        left to them."""
        try:
            async with asyncio.timeout(self._options.replica_timeout_ms / 1000):
                await self._copies.idle()
        except TimeoutError:
            pass
        self._copies.close()

    def close(self) -> None:
        self._copies.close()


class Both:
    """Told by the flush and by the replicas: passes on the worse when both are known, and at once that the
    message is not stored."""

    __slots__ = ("_first", "_told")

    def __init__(self, told: Told) -> None:
        self._told: Told | None = told
        self._first: Safe | None = None

    def __call__(self, how: Safe) -> None:
        told, first = self._told, self._first
        if told is None:
            return
        if first is None and not how.failed:
            self._first = how
            return
        self._told = None
        told(how if first is None else how.and_also(first))
