"""Reader of the revive topic: gives out anew what an earlier process popped and nobody acknowledged.

Records leave the timer when their pop is over: a checkpoint a second before its acknowledgements. A
checkpoint that this process holds in memory is revived from there; the reader only passes it. Any other one
is revived two seconds after it is due, when the timer has delivered its acknowledgements.

The progress is the last offset before which every checkpoint is handled, as RocketMQ keeps it. It is
committed once the retry messages are safe. Later acknowledgements are read again after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.checkpoint import Checkpoint, QueueKey, Stored
from kerolox.broker.pop.keeper import safe_end
from kerolox.broker.pop.outstanding import Outstanding
from kerolox.broker.pop.retries import Lost, Retries, pause_s
from kerolox.broker.pop.revive_log import ReviveLog
from kerolox.broker.write.intake import Intake
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.pop.handle import Handle
from kerolox.protocol.pop.revive_records import CheckpointRecord, MergeKey, checkpoint_of, read_record
from kerolox.protocol.record import decode_records
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.tables.offsets import ConsumerOffsets

log = logging.getLogger(__name__)

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
WAIT_MS = 2000  # after which the acknowledgements of a checkpoint that is due have arrived
READ_MAX = 256  # records read at once
OPEN_MAX = 100_000  # checkpoints of one queue in memory; beyond it, reviving does not wait for reading
LOOK_S = 1.0
FAILED_S = 1.0


class Surfaced:
    """A checkpoint that has left the timer, and the messages that are not acknowledged."""

    __slots__ = ("checkpoint", "left", "record", "retry_s", "seen_ms")

    def __init__(self, record: CheckpointRecord, checkpoint: Checkpoint | None, seen_ms: int) -> None:
        self.record = record
        self.seen_ms = seen_ms  # acknowledgements may have been written until then
        self.checkpoint = checkpoint  # of this process
        self.left = dict.fromkeys(record.offsets)
        self.retry_s = 0.0  # not before this time


class ReviveQueue:
    """One queue of the revive topic."""

    def __init__(self, queue_id: int, position: int) -> None:
        self.queue_id = queue_id
        self.position = position  # of the next record
        self.surfaced: dict[MergeKey, tuple[int, Surfaced]] = {}  # with its offset, in the order of offsets
        self.noted: tuple[int, int] | None = None  # progress, and the end of the log that makes it safe
        self.committed = position - 1
        self.is_read = False  # to its end, at the last look

    @property
    def handled(self) -> int:
        """Return the offset of the last record before which every checkpoint is handled."""
        first = next(iter(self.surfaced.values()), None)
        return (self.position if first is None else first[0]) - 1


class Reviver:
    """One task for all queues, at work while this broker leads.

    ``timer_ms`` returns the time before which the timer has delivered everything.
    """

    def __init__(
        self,
        store: MessageStore,
        intake: Intake,
        outstanding: Outstanding,
        records: ReviveLog,
        retries: Retries,
        offsets: ConsumerOffsets,
        timer_ms: Callable[[], int],
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._intake = intake
        self._outstanding = outstanding
        self._records = records
        self._retries = retries
        self._offsets = offsets
        self._timer_ms = timer_ms
        self._options = options
        self._clock = clock
        self._topic = records.topic
        self._name = records.topic.encode()
        self.queues: list[ReviveQueue] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None

    def begin(self) -> None:
        self.queues = []
        for queue_id in range(self._options.revive_queues):
            last = self._offsets.offset(self._topic, REVIVE_GROUP, queue_id)
            self.queues.append(ReviveQueue(queue_id, last + 1))
        self._wake.set()
        self._store.queue_filler.watched[self._name] = self._wake.set
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        self._store.queue_filler.watched.pop(self._name, None)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.queues = []

    @property
    def waiting(self) -> int:
        """Return the number of checkpoints that have left the timer and are not handled."""
        return sum(len(queue.surfaced) for queue in self.queues)

    # --- the task ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = LOOK_S
            for queue in self.queues:
                try:
                    await self._read(queue)
                    await self._handle(queue)
                except KeroloxError as error:
                    log.warning(
                        "revive_waits queue=%d offset=%d error=%r next='tried again'",
                        queue.queue_id, queue.position, str(error),
                    )  # fmt: skip
                    pause = FAILED_S
                except Exception:
                    log.exception("revive_failed queue=%d next='report this defect'", queue.queue_id)
                    pause = FAILED_S
                self._note(queue)
            if any(queue.surfaced or queue.noted for queue in self.queues) or pause != LOOK_S:
                self._look_again(pause)

    def _look_again(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(pause_s, self._wake.set)

    async def _read(self, queue: ReviveQueue) -> None:
        """Read to the end of the queue."""
        topic, queue_id = self._topic, queue.queue_id
        queue.is_read = False
        while len(queue.surfaced) < OPEN_MAX:
            low, high = self._store.queues.bounds(topic, queue_id)
            if queue.position < low:
                log.warning("revive_records_gone queue=%d from=%d to=%d", queue_id, queue.position, low)
                queue.position = low
            if queue.position >= high:
                break
            found = await self._store.queues.read(topic, queue_id, queue.position, READ_MAX)
            if found.status is ReadStatus.FOUND:
                for message in decode_records(b"".join(found.parts)):
                    self._take(queue, message)
            elif found.next_offset <= queue.position:
                break
            queue.position = found.next_offset
        queue.is_read = True

    def _take(self, queue: ReviveQueue, message: StoredMessage) -> None:
        try:
            record = read_record(message.tag, message.plain_body())
        except ProtocolError as error:
            log.warning(
                "revive_record_unreadable queue=%d offset=%d error=%r next='skipped: it is not one of ours'",
                queue.queue_id, message.queue_offset, str(error),
            )  # fmt: skip
            return
        key = record.key(self._options.broker_name)
        if isinstance(record, CheckpointRecord):
            if key not in queue.surfaced:
                surfaced = Surfaced(record, self._of_memory(key), self._clock.wall_ms())
                queue.surfaced[key] = (message.queue_offset, surfaced)
            return
        known = queue.surfaced.get(key)
        if known is not None:
            for offset in record.offsets:
                known[1].left.pop(offset, None)

    def _of_memory(self, key: MergeKey) -> Checkpoint | None:
        topic, group, queue_id, start_offset, pop_ms, broker_name = key
        queue = self._outstanding.queues.get(QueueKey(topic, group, queue_id))
        if queue is None or broker_name != self._options.broker_name:
            return None
        checkpoint = queue.find(start_offset, pop_ms)
        return None if checkpoint is None or checkpoint.stored is Stored.NO else checkpoint

    # --- checkpoints -------------------------------------------------------------------------------------

    async def _handle(self, queue: ReviveQueue) -> None:
        """Handle the checkpoints that are over."""
        if not queue.is_read:
            return
        now_ms, timer_ms, now_s = self._clock.wall_ms(), self._timer_ms(), self._clock.monotonic_s()
        for key, (_, surfaced) in list(queue.surfaced.items()):
            checkpoint = surfaced.checkpoint
            if checkpoint is not None and not checkpoint.handed_over:
                if checkpoint.is_finished:
                    del queue.surfaced[key]
                continue
            due_ms = surfaced.record.due_ms
            if not surfaced.left:
                del queue.surfaced[key]
            elif (
                now_ms >= due_ms + WAIT_MS
                and timer_ms > max(due_ms, surfaced.seen_ms)
                and surfaced.retry_s <= now_s
            ):
                surfaced.retry_s = now_s + FAILED_S
                await self._revive(queue, surfaced)
                del queue.surfaced[key]

    async def _revive(self, queue: ReviveQueue, surfaced: Surfaced) -> None:
        """Give out the messages that are left. One that cannot be read gets a checkpoint of its own."""
        record = surfaced.record
        key = QueueKey(record.topic, record.group, record.queue_id)
        if self._retries.is_gone(key):
            return
        topic = await self._retries.ready(key)
        done: list[int] = []
        try:
            for offset in list(surfaced.left):
                message = await self._retries.read(key, offset)
                if isinstance(message, StoredMessage):
                    self._retries.append(message, topic, record.pop_time)
                elif message is Lost.UNREADABLE:
                    self._put_again(queue, record, offset)
                del surfaced.left[offset]
                done.append(offset)
            if done:
                name = record.broker_name or self._options.broker_name
                handle = Handle(
                    record.start_offset, record.pop_time, record.invisible_time, queue.queue_id, "", name,
                    record.queue_id, done[0],
                )  # fmt: skip
                self._records.ack_of(handle, record.topic, record.group, done)
                await self._intake.written()
        except KeroloxError:
            surfaced.left.update(dict.fromkeys(done))
            raise

    def _put_again(self, queue: ReviveQueue, record: CheckpointRecord, offset: int) -> None:
        tries = int(record.tries) if record.tries and record.tries.isdigit() else 0
        now_ms = self._clock.wall_ms()
        invisible_ms = now_ms - record.pop_time + int(pause_s(tries) * 1000)
        again = checkpoint_of(
            record.topic, record.group, record.queue_id, offset, [offset], record.pop_time, invisible_ms,
            record.broker_name or self._options.broker_name, tries + 1,
        )  # fmt: skip
        self._records.put(again, queue.queue_id, again.deliver_ms)

    # --- progress ----------------------------------------------------------------------------------------

    def _note(self, queue: ReviveQueue) -> None:
        """Commit the progress whose retry messages are safe, and note the present one."""
        if queue.noted is not None and queue.noted[1] <= safe_end(self._store):
            self._offsets.commit(self._topic, REVIVE_GROUP, queue.queue_id, queue.noted[0])
            queue.committed, queue.noted = queue.noted[0], None
        if queue.noted is None and queue.handled > queue.committed:
            queue.noted = (queue.handled, self._store.progress.appended)
