"""When an answer may leave: the one place that knows what was promised about a message.

Under asynchronous flush a message is safe when it is written. Under synchronous flush it is safe when the
disk has it. Whoever stores messages asks here and does not look at the flush mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kerolox.errors import KeroloxError
from kerolox.store.errors import StoreError
from kerolox.store.log.flush import LogFlusher, Safe
from kerolox.store.options import FlushMode, StoreOptions
from kerolox.store.state import StoreState

# Told how it ended: safe, not in time, or not at all.
Told = Callable[[Safe], None]


class NotSafe(KeroloxError):
    """The message is stored, but it is not known to have reached the disk."""

    code = 10  # FLUSH_DISK_TIMEOUT
    retriable = True


class CutOff(StoreError):
    """The message was stored, and is not any more: the log was cut back before it."""

    retriable = True


class Acks:
    """Tells when everything before an offset of the log is as safe as the options promise."""

    def __init__(self, flusher: LogFlusher, options: StoreOptions, state: StoreState) -> None:
        self._flusher = flusher
        self._options = options
        self._state = state

    @property
    def wait(self) -> bool:
        """Whether a message that is written has to wait for anything more."""
        return self._options.flush_mode is FlushMode.SYNC

    def when_safe(self, end: int, told: Told) -> None:
        """Tell once what was written before ``end`` is safe: at once, where nothing more is promised.

        One entry of a list for each call, however many messages lie before the offset.
        """
        if self.wait:
            self._flusher.wait_safe(end, told)
        else:
            told(Safe.YES)

    async def safe(self, end: int) -> None:
        """Wait until what was written before ``end`` is safe. Raises :class:`NotSafe`, or what stands in the
        way of writing."""
        if not self.wait:
            return
        done: asyncio.Future[Safe] = asyncio.get_running_loop().create_future()
        self.when_safe(end, lambda how: None if done.done() else done.set_result(how))
        how = await done
        if how is Safe.TIMEOUT:
            raise NotSafe(f"stored, but not flushed within {self._options.flush_timeout_ms} ms")
        if how is Safe.CUT:
            raise CutOff(f"not stored: {how.value}. Send it again, to the broker that leads.", offset=end)
        if how is Safe.FAILED:
            self._state.check_writable()
            raise NotSafe("stored, but the store was closed before it was flushed")

    @property
    def stalled_ms(self) -> float:
        """For how long answers have been waiting for the disk; 0 when they do not wait for it."""
        return self._flusher.stalled_s() * 1000 if self.wait else 0.0
