"""Keeper of outstanding messages: stores old checkpoints, revives due messages, commits offsets of groups."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.checkpoint import Checkpoint, Stored
from kerolox.broker.pop.outstanding import Outstanding, PopQueue
from kerolox.broker.pop.retries import Lost, Retries, pause_s
from kerolox.broker.pop.revive_log import ReviveLog
from kerolox.broker.write.intake import Intake, Written
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError
from kerolox.protocol.message import StoredMessage
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.offsets import ConsumerOffsets

log = logging.getLogger(__name__)

STORED_AT_ONCE_MAX = 1024  # records of one turn of the loop
DUE_AT_ONCE_MAX = 256  # checkpoints taken at once
REVIVED_BYTES_MAX = 1 << 20  # of messages that are read before they are written
LOOK_S = 0.2  # interval of looking whether the log is flushed
IDLE_S = 300.0  # after which the state of a queue is forgotten
FAILED_S = 1.0  # pause after a failed write

Due = tuple[Checkpoint, int, StoredMessage]  # a message that is due: its checkpoint, its offset


class Keeper:
    """Timers and the one task that revives messages. Started and stopped with the leader's role."""

    def __init__(
        self,
        outstanding: Outstanding,
        records: ReviveLog,
        retries: Retries,
        intake: Intake,
        offsets: ConsumerOffsets,
        store: MessageStore,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self.outstanding = outstanding
        self.records = records
        self._retries = retries
        self._intake = intake
        self._offsets = offsets
        self._messages = store
        self._options = options
        self._clock = clock
        self.leads = False
        self.since_ms = 0  # when this process began to lead
        self.handed_over_ms = 0  # pop time of the newest checkpoint that was handed over
        self._acked: dict[Checkpoint, list[int]] = {}  # acknowledgements without a record yet
        self._unsafe: set[PopQueue] = set()  # queues whose offset waits for the log
        self._due: deque[Checkpoint] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._idle_s = 0.0

    # --- life --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.since_ms = self._clock.wall_ms()
        self.handed_over_ms = 0
        self.leads = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    def rest(self) -> None:
        """Hand out nothing more, because this broker stops leading."""
        self.leads = False

    async def end(self) -> None:
        """Store all checkpoints, and commit what they allow: another process continues from the log."""
        self.leads = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            self._store(list(self.outstanding.unstored()))
            self._append_acks()
            await self._intake.written()
            async with asyncio.timeout(self._options.flush_timeout_ms / 1000):
                await self._messages.flusher.flush_all()
        except (KeroloxError, TimeoutError) as error:
            log.warning(
                "checkpoints_not_stored count=%d error=%r next='nothing: their messages are popped again'",
                self.outstanding.count, str(error),
            )  # fmt: skip
        for queue in list(self.outstanding.queues.values()):
            self.commit(queue)
        self.outstanding.clear()
        self._acked.clear()
        self._append_acks()  # none is left: writes need not call it
        self._unsafe.clear()
        self._due.clear()

    def has(self, queue: PopQueue) -> bool:
        """Return False if the state of a queue was dropped, or this broker does not lead any more."""
        return self.leads and self.outstanding.queues.get(queue.key) is queue

    # --- events ------------------------------------------------------------------------------------------

    def changed(self, queue: PopQueue) -> None:
        """Messages of a queue were popped, acknowledged or changed."""
        self.commit(queue)
        self._schedule()

    def acked(self, checkpoint: Checkpoint, offset: int) -> None:
        """Note an acknowledgement, by a record if the checkpoint has one."""
        if checkpoint.stored is not Stored.NO:
            if not self._acked:
                self._intake.soon(_nothing)
            self._note_ack(checkpoint, offset)
        queue = self.outstanding.queues.get(checkpoint.key)
        if queue is not None:
            self.commit(queue)

    def written_soon(self, written: Written | None = None) -> None:
        """Write what was appended at the end of this turn of the loop."""
        self._intake.soon(written or _nothing)

    def commit(self, queue: PopQueue) -> None:
        """Commit the offset of a group as far as its checkpoints allow."""
        offset = self.outstanding.committable(queue, safe_end(self._messages))
        key = queue.key
        if offset is not None and not self._offsets.has_reset(*key):
            self._offsets.commit(*key, offset)
        if queue.steps and not queue.steps[0].open:
            self._unsafe.add(queue)
            self._schedule()
        else:
            self._unsafe.discard(queue)

    # --- records -----------------------------------------------------------------------------------------

    def _note_ack(self, checkpoint: Checkpoint, offset: int) -> None:
        """Note an acknowledgement whose record the next write appends."""
        if not self._acked:
            self._intake.before.append(self._append_acks)
        self._acked.setdefault(checkpoint, []).append(offset)

    def _append_acks(self) -> None:
        """Append the acknowledgements of this turn, one record per checkpoint."""
        acked = self._acked
        while acked:
            checkpoint = next(iter(acked))
            try:
                self.records.acks(checkpoint, acked[checkpoint])
            except KeroloxError as error:
                log.warning(
                    "acks_not_stored checkpoints=%d error=%r next='tried again'", len(acked), str(error)
                )
                return
            del acked[checkpoint]
        if self._append_acks in self._intake.before:
            self._intake.before.remove(self._append_acks)

    def _store(self, checkpoints: list[Checkpoint]) -> None:
        """Append the records of checkpoints. They count when they are written."""
        appended: list[tuple[Checkpoint, int]] = []
        for number, checkpoint in enumerate(checkpoints):
            try:
                end = self.records.checkpoint(checkpoint)
            except KeroloxError as error:
                log.warning("checkpoints_wait count=%d error=%r next='tried again'",
                            len(checkpoints) - number, str(error))  # fmt: skip
                for waiting in reversed(checkpoints[number:]):
                    self.outstanding.not_stored(waiting)
                self._schedule(FAILED_S)
                break
            self.outstanding.storing(checkpoint)
            appended.append((checkpoint, end))
        if appended:
            self._intake.soon(lambda error: self._stored(appended, error))

    def _stored(self, appended: list[tuple[Checkpoint, int]], error: KeroloxError | None) -> None:
        for checkpoint, end in appended:
            if error is None:
                self.outstanding.stored(checkpoint, end)
            else:
                self.outstanding.not_stored(checkpoint)
        for key in {checkpoint.key for checkpoint, _ in appended}:
            queue = self.outstanding.queues.get(key)
            if queue is not None:
                self.commit(queue)
        self._schedule(0.0 if error is None else FAILED_S)

    # --- time --------------------------------------------------------------------------------------------

    def _schedule(self, at_least_s: float = 0.0) -> None:
        """Set the timer to the next event."""
        if not self.leads:
            return
        now_s = self._clock.monotonic_s()
        outstanding = self.outstanding
        next_s = now_s + IDLE_S
        if (due_s := outstanding.next_due_s) is not None:
            next_s = min(next_s, due_s)
        if (young_s := outstanding.next_young_s) is not None:
            next_s = min(next_s, young_s + self._options.pop_stay_ms / 1000)
        if self._unsafe or self._acked:
            next_s = min(next_s, now_s + LOOK_S)
        next_s = max(next_s, now_s + at_least_s)
        if self._timer is not None:
            if self._timer_s <= next_s:
                return
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = self._clock.call_later(max(0.0, next_s - now_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._look()
        except Exception:
            log.exception("pops_not_kept next='report this defect; tried again'")
            self._schedule(FAILED_S)
        else:
            self._schedule(LOOK_S / 20)

    def _look(self) -> None:
        """Store old checkpoints, commit offsets, and hand due checkpoints to the task."""
        now_s = self._clock.monotonic_s()
        outstanding, options = self.outstanding, self._options
        old = outstanding.take_old(now_s - options.pop_stay_ms / 1000, STORED_AT_ONCE_MAX)
        if old:
            self._store(old)
        if self._acked:
            self._intake.soon(_nothing)
        for queue in list(self._unsafe):
            self.commit(queue)
        self.handed_over_ms = max(self.handed_over_ms, outstanding.hand_over(options.pop_checkpoints_max))
        due = outstanding.take_due(now_s, DUE_AT_ONCE_MAX)
        if due:
            self._due.extend(due)
            self._wake.set()
        if now_s - self._idle_s >= IDLE_S:
            self._idle_s = now_s
            outstanding.forget(self._retries.is_gone)
            outstanding.forget_idle(now_s - IDLE_S)

    # --- due messages ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                try:
                    await self._revive_some()
                except Exception:
                    log.exception("revive_failed next='report this defect; the messages are tried again'")
                    await self._clock.sleep(FAILED_S)

    async def _revive_some(self) -> None:
        """Revive messages of some checkpoints, as many as fit into memory. Those that remain are due again
        later."""
        work: list[Checkpoint] = []
        found: list[Due] = []
        size_bytes = 0
        try:
            while self._due and size_bytes < REVIVED_BYTES_MAX:
                checkpoint = self._due.popleft()
                work.append(checkpoint)
                if self._retries.is_gone(checkpoint.key):
                    for offset in checkpoint.offsets_out:
                        self._finish(checkpoint, offset)
                    continue
                for offset in checkpoint.offsets_out:
                    message = await self._read(checkpoint, offset)
                    if message is not None:
                        found.append((checkpoint, offset, message))
                        size_bytes += message.size
                    if size_bytes >= REVIVED_BYTES_MAX:
                        await self._write(found)
                        found, size_bytes = [], 0
            await self._write(found)
        finally:
            now_s = self._clock.monotonic_s()
            for checkpoint in work:
                if not checkpoint.is_finished and checkpoint.due_s <= now_s:
                    self.outstanding.defer(checkpoint, now_s + FAILED_S)
            self._schedule()

    async def _read(self, checkpoint: Checkpoint, offset: int) -> StoredMessage | None:
        """Return a message that is due. One that is deleted is finished; one that cannot be read is due again
        later."""
        message = await self._retries.read(checkpoint.key, offset)
        if isinstance(message, StoredMessage):
            return message
        if message is Lost.GONE:
            log.warning(
                "popped_message_gone topic=%r queue=%d offset=%d group=%r",
                checkpoint.key.topic, checkpoint.key.queue_id, offset, checkpoint.key.group,
            )  # fmt: skip
            self._finish(checkpoint, offset)
        elif checkpoint.due_s <= self._clock.monotonic_s():
            pause = pause_s(checkpoint.tries)
            checkpoint.tries += 1
            self.outstanding.defer(checkpoint, self._clock.monotonic_s() + pause)
        return None

    def _finish(self, checkpoint: Checkpoint, offset: int) -> None:
        if self.outstanding.ack(checkpoint, offset):
            self.acked(checkpoint, offset)

    async def _write(self, found: list[Due]) -> None:
        """Write the retry messages of those that are still out, with the acknowledgement of each whose
        checkpoint has a record."""
        taken: list[tuple[Checkpoint, int, int]] = []
        try:
            topics = {key: await self._retries.ready(key) for key in {due[0].key for due in found}}
            for checkpoint, offset, message in found:
                if not checkpoint.has_out(offset):
                    continue  # acknowledged or changed while it was read
                end = self._retries.append(message, topics[checkpoint.key], checkpoint.pop_ms)
                self.outstanding.take(checkpoint, offset)
                taken.append((checkpoint, offset, end))
                if checkpoint.stored is not Stored.NO:
                    self._note_ack(checkpoint, offset)
            if taken:
                await self._intake.written()
        except KeroloxError as error:
            log.warning("revive_waits messages=%d error=%r next='tried again'", len(found), str(error))
            for checkpoint, offset, _ in taken:
                self.outstanding.put_back(checkpoint, offset)
            return
        for checkpoint, offset, end in taken:
            self.outstanding.settle(checkpoint, offset, end)
        for key in {checkpoint.key for checkpoint, _, _ in taken}:
            queue = self.outstanding.queues.get(key)
            if queue is not None:
                self.commit(queue)


def safe_end(store: MessageStore) -> int:
    """Return the end of the part of the log that neither a crash nor a change of the leader takes away: it is
    flushed, and every follower has it that keeps up with this broker."""
    progress = store.progress
    end = min(progress.flushed, progress.confirmed)
    for replica in store.replicas:
        if replica.acked >= 0 and progress.appended - replica.acked < store.options.replica_gap_bytes:
            end = min(end, replica.acked)
    return end


def _nothing(error: KeroloxError | None) -> None:
    """The acknowledgements are appended with the write; if it fails, the messages may come once more."""
