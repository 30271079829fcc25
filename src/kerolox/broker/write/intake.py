"""The only path into the log, used for everything that the broker stores.

Sends, runs of sends, retries, replies, recalls, due messages and notes of transactions are all appended here.
Everything appended in one turn of the event loop is written by one system call, and is rolled back together
if that call fails. So each caller asks here for the write, and all are notified together. Written messages
are acknowledged when they are safe: see :mod:`kerolox.store.log.acks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.absent import refuse_inner_batch
from kerolox.broker.write.pending_message import PendingMessage, Rewrite
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.store.errors import StoreError
from kerolox.store.log.acks import Acks
from kerolox.store.log.commit_log import CommitLog, Place
from kerolox.store.log.safe import OnSafe

log = logging.getLogger(__name__)

# Callback after the write of what was appended, with the error if it failed.
Written = Callable[[KeroloxError | None], None]


class Intake:
    """Owner of the end of the log: no other part of the broker appends to it or writes it."""

    def __init__(
        self,
        log: CommitLog,
        acks: Acks,
        fills_light_queues: Callable[[str, bytes], bool] = lambda topic, properties: True,
        timed: Callable[[Callable[[], None]], Callable[[], None]] = lambda write: write,
    ) -> None:
        """``timed`` wraps the write that ``soon`` schedules, to measure it."""
        self._log = log
        self._acks = acks
        self.fills_light_queues = fills_light_queues  # called with topic and properties of each message
        self._asked: list[Written] = []
        self._due_soon = False
        self._due = timed(self.write)
        self.before: Observers[[]] = Observers("log is written")  # called before that; they may append more
        # Rewrites that park delayed messages, in this order. Each may reject a message by raising.
        self.rewrites: list[Rewrite] = []
        # The log's own methods, without a step in between, because every message passes here. What they
        # append counts when it is written. The cursors belong to the log, too; only runs keep them.
        self.cursor = log.cursor
        self.append_plain = log.append
        self.append_batch = log.append_batch
        self.append_sends = log.append_sends
        self.renew_time = log.renew_time

    # --- append --------------------------------------------------------------------------------------

    def append_or_park(self, pending: PendingMessage) -> Place:
        """Append a message, under the topic where it waits if its properties ask for a delay."""
        refuse_inner_batch(pending.sys_flag)
        self._log.check_writable()
        if not pending.is_parked:
            for rewrite in self.rewrites:
                rewrite(pending)
        return self.append_as_is(pending)

    def append_as_is(self, pending: PendingMessage) -> Place:
        """Append a message without rewriting it: a parked message that is due must not be parked again."""
        return self.append_plain(
            self.cursor(pending.topic, pending.queue_id),
            pending.body,
            pending.properties,
            flag=pending.flag,
            sys_flag=pending.sys_flag,
            born_timestamp=pending.born_timestamp,
            born_host=pending.born_host,
            reconsume_times=pending.reconsume_times,
            prepared_offset=pending.prepared_offset,
            light_queues=self.fills_light_queues(pending.topic, pending.properties),
            store_host=pending.store_host,
        )

    # --- write ---------------------------------------------------------------------------------------

    def soon(self, written: Written) -> None:
        """Write at the end of this turn of the loop, then call ``written``."""
        self._asked.append(written)
        if not self._due_soon:
            self._due_soon = True
            asyncio.get_running_loop().call_soon(self._due)

    def write(self) -> None:
        """Write now, and notify all callers that wait."""
        self._due_soon = False
        self.before.tell()
        asked, self._asked = self._asked, []
        failed: KeroloxError | None = None
        try:
            self._log.write()
        except KeroloxError as error:
            failed = error
        except Exception as error:  # nothing of it was stored
            log.exception("log_not_written next='report this defect'")
            failed = StoreError(f"the log was not written, a defect: {type(error).__name__}: {error}")
        for written in asked:
            try:
                written(failed)
            except Exception:  # the other callbacks are still called
                log.exception("written_not_taken")

    def when_written(self, written: Written) -> None:
        """Write soon; then call ``written``, with the error if what is appended now was not stored."""
        end = self._log.appended_end

        def decide(error: KeroloxError | None) -> None:
            # A write that fails may have stored this part before the log rolled to the next file.
            written(None if end <= self._log.progress.appended else error)

        self.soon(decide)

    async def written(self) -> None:
        """Wait until everything appended so far is written. Raises if it was not stored."""
        done: asyncio.Future[KeroloxError | None] = asyncio.get_running_loop().create_future()
        self.when_written(lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    # --- answer --------------------------------------------------------------------------------------

    def when_safe(self, on_safe: OnSafe) -> None:
        """Call ``on_safe`` when everything written so far is as safe as the options promise."""
        self._acks.when_safe(self._log.progress.appended, on_safe)

    async def safe(self, place: Place) -> None:
        """Wait until the message appended at this place is written and safe. Raises if it was not stored, and
        :class:`kerolox.store.log.acks.NotSafe` if it is stored but not known to be safe."""
        await self.written()
        await self._acks.safe(place[0] + place[2])
