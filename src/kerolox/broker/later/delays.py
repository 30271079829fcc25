"""Delay levels: messages are parked when they are sent, and delivered when they are due.

A parked message is in ``SCHEDULE_TOPIC_XXXX``, with one queue for each level, so each queue is ordered by due
time. The first message of every level is known, and one timer waits for the earliest. Due messages are read,
restored to their topic, and appended, at most some hundreds in one turn of the loop.

Progress: a message counts as delivered when its copy is written. ``delayOffset.json`` is saved every ten
seconds, and never ahead of the flushed log: after a loss of power no message is skipped whose copy is lost.
After a kill the notes of kerolox limit duplicates to the messages of one write for each level.
"""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.later.delay_levels import (
    AT_REAL_QUEUE_ID,
    AT_REAL_TOPIC,
    Level,
    Unrestorable,
    level_of,
    restore,
)
from kerolox.broker.later.delay_notes import DelayNote, DelayNotes
from kerolox.broker.later.delivered_copies import DeliveredCopies, is_copy
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.lost_tables import check_nothing_due
from kerolox.broker.write.delivery import Delivery, Retry
from kerolox.broker.write.due_delivery import Delivered, DueDelivery, DueMessage
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.pending_message import PendingMessage, real_queue
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.metric_text import MetricText
from kerolox.observers import Observers
from kerolox.protocol import properties as packed
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_each, decode_record
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.delay_table import parse_levels
from kerolox.store.errors import Cold, OffsetOutOfRange, StoreError
from kerolox.store.log.commit_log import TRANSACTION_BITS, TRANSACTION_COMMIT, QueueCursor
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS
from kerolox.store.queue.queues import Queue
from kerolox.store.tables.offsets import DelayOffsets

log = logging.getLogger(__name__)

SCHEDULE_GROUP = "SCHEDULE_CONSUMER"  # group of parked messages in the statistics

BATCH_MAX = 256  # messages appended in one turn of the loop, for all levels together...
BATCH_BYTES_MAX = 1 << 20  # ...and their bytes, except the first message
AGAIN_S = 0.1  # pause after a failed append
AGAIN_ELSEWHERE_S = 1.0  # pause after no other broker accepted a message
SAVE_ACTING_MS = 1000
AGAIN_LATER_S = 10.0  # pause after an unexpected error
CLOCK_CHECK_S = 0.1  # timers ignore a changed wall clock, so it is checked at this interval

_AT_TIMERS = (packed.AT_TIMER_DELIVER_MS, packed.AT_TIMER_DELAY_S, packed.AT_TIMER_DELAY_MS)

# A due parked message: its queue offset, its place in the log, its record (None: unreadable).
_Due = tuple[int, int, bytes | None]


class Delays:
    """Parking and delivery of messages with a delay level."""

    def __init__(
        self,
        store: MessageStore,
        intake: Intake,
        delivery: Delivery,
        offsets: DelayOffsets,
        options: BrokerOptions,
        clock: Clock,
        outlet: Outlet | None = None,
    ) -> None:
        """``outlet``: destination of messages while this broker may not write."""
        self._store = store
        self._intake = intake
        self._due = DueDelivery(intake, delivery, outlet)
        self._offsets = offsets
        self._options = options
        self._clock = clock
        # For a follower that may act, because its table may be a second old when its leader dies.
        self._copies = DeliveredCopies(store) if options.acting else None
        if self._copies is not None:
            store.dispatcher.listeners.append(self._watch_leader)
        self.marks = DelayNotes(store.files, store.root, store.keeper, clock)
        self.levels = [
            Level(number, delay_ms, Retry(clock, f"delayed_messages_not_delivered level={number}"))
            for number, delay_ms in enumerate(parse_levels(options.delay_levels), 1)
        ]
        self.delivered = 0  # since the start
        self.passed_over = 0  # messages that could not be read, or not be restored to their topic
        self.batches = 0
        # For statistics: queue of the level, real topic, size of the delivered records, messages.
        self.on_delivered: Observers[[int, str, int, int]] = Observers("delayed messages delivered")
        self._parked: dict[Level, int] = {}  # newest offset that is not dispatched yet
        self._delivering = False
        self._turn = asyncio.Lock()  # one batch in a turn of the loop, for all levels
        self._timers: list[TimerHandle] = []  # next delivery, and checks of the wall clock before it
        self._save_timer: TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    # --- parking -------------------------------------------------------------------------------------

    def park(self, pending: PendingMessage) -> None:
        """Park a message that asks for a delay in the queue of its level. A rewrite of the intake."""
        if self.rewrite(pending):
            cursor = self._intake.cursor(SCHEDULE_TOPIC, pending.queue_id)
            self._intake.renew_time()  # the delay counts from now
            self._note_parked(pending.queue_id, cursor.next_offset, cursor.next_offset)

    def rewrite(self, pending: PendingMessage) -> bool:
        """Park a pending message without the intake. Return whether it asks for a delay."""
        if packed.AT_DELAY[1:] not in pending.properties:
            return False
        if pending.sys_flag & TRANSACTION_BITS not in (0, TRANSACTION_COMMIT):
            return False
        wanted = level_of(pending.properties)
        if wanted <= 0:
            return False
        level = self.levels[min(wanted, len(self.levels)) - 1]
        properties = pending.properties
        if b"TIMER_" in properties:
            for mark in _AT_TIMERS:  # a level wins over any other time
                properties = packed.remove(properties, mark)
        if wanted != level.number:
            properties = packed.replace(properties, packed.DELAY, str(level.number))
        if b"REAL_" in properties:
            for mark in (AT_REAL_TOPIC, AT_REAL_QUEUE_ID):
                properties = packed.remove(properties, mark)
        pending.properties = packed.append(properties, real_queue(pending.topic, pending.queue_id))
        pending.topic = SCHEDULE_TOPIC
        pending.queue_id = level.queue_id
        return True

    def parked(self, queues: list[tuple[QueueCursor, int]]) -> None:
        """Note that messages were appended to queues of levels, each from an offset on."""
        for cursor, first in queues:
            self._note_parked(cursor.queue_id, first, cursor.next_offset - 1)

    def _note_parked(self, queue_id: int, first: int, last: int) -> None:
        level = self.levels[queue_id]
        level.note_parked(first, self._clock.monotonic_s())
        self._parked[level] = last

    # --- roles ----------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Find the progress of delivery, and continue from there. Raises TableLost if it is unknown."""
        await self._begin(acts=False)

    async def act(self) -> None:
        """Do the same for an acting follower: due messages go to another broker."""
        await self._begin(acts=True)
        self._offsets.overtake()

    async def _begin(self, *, acts: bool) -> None:
        await asyncio.get_running_loop().run_in_executor(self._store.keeper, self._load)
        self._due.acts = acts
        self._delivering = True
        self._parked.clear()
        for level in self.levels:
            level.due_ms = 0
            level.parked.clear()  # another broker may have parked at these offsets
        self._store.dispatcher.listeners.append(self.arrived)
        self._store.flusher.on_flushed.append(self.marks.flushed)
        self._schedule_save()
        self._look()

    async def follow(self) -> None:
        """Stop delivering, and save the progress."""
        if not self._delivering:
            await self.marks.close()
            return
        self._delivering = False
        for timer in (*self._timers, self._save_timer):
            if timer is not None:
                timer.cancel()
        self._store.dispatcher.listeners.remove(self.arrived)
        under_way = [level.task for level in self.levels if level.task is not None]
        if self._saving is not None:
            under_way.append(self._saving)
        if under_way:
            await asyncio.wait(under_way)
        if self._offsets.changed:
            await self._save()
        self._store.flusher.on_flushed.remove(self.marks.flushed)
        await self.marks.close()

    def _load(self) -> None:
        """Find the progress of each level: as saved, limited to its queue, or as the notes prove."""
        marks = self.marks.load()
        for level in self.levels:
            queue = self._queue(level)
            saved = self._offsets.offsets.get(level.number)
            offset = saved or 0
            if queue is not None:
                offset = min(max(offset, queue.min_offset), queue.max_offset)
                for mark in marks.get(level.number, ()):
                    if mark.next_offset > offset and self._proven(queue, mark):
                        log.info(
                            "delay_progress_proven level=%d saved=%d delivered=%d",
                            level.number, offset, mark.next_offset,
                        )  # fmt: skip
                        offset = mark.next_offset
                if self._copies is not None:
                    offset = self._copies.delivered(level.number, queue, offset)
                if self._offsets.lost and offset == queue.min_offset < queue.max_offset:
                    check_nothing_due(self._offsets, queue, self._clock.wall_ms())
                if saved is not None and saved > queue.max_offset:
                    log.warning(
                        "delay_offset_corrected level=%d offset=%d to=%d", level.number, saved, offset
                    )
                if saved is not None and saved != offset:
                    self._offsets.update(level.number, offset)
            level.next_offset = offset
        self.marks.open()
        for queue_id, queue in self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items():
            waiting = queue.max_offset - max(queue.min_offset, self._offsets.offsets.get(queue_id + 1, 0))
            if queue_id >= len(self.levels) and waiting > 0:
                log.warning(
                    "delay_level_gone level=%d waiting=%d next='set messageDelayLevel to as many levels as "
                    "before; until then these messages wait'",
                    queue_id + 1, waiting,
                )  # fmt: skip

    def _proven(self, queue: Queue, mark: DelayNote) -> bool:
        """True if the log now contains the message that was delivered before the noted offset. Everything
        before its copy in the log is there, too, so all earlier deliveries are."""
        if mark.next_offset > queue.max_offset:
            return False
        entry = queue.entry(mark.next_offset - 1)
        if entry is None or entry[0] != mark.parked_at:
            return False
        try:  # an unreadable message proves nothing: it may be delivered twice
            parked = decode_record(self._store.log.record_at(mark.parked_at))
            return is_copy(decode_record(self._store.log.record_at(mark.delivered_at)), parked)
        except (StoreError, ProtocolError, Unrestorable):
            return False

    def _watch_leader(self, entries: list[Entry]) -> None:
        if not self._delivering and self._copies is not None:
            self._copies.dispatched(entries)

    # --- schedule -------------------------------------------------------------------------------------

    def arrived(self, entries: list[Entry]) -> None:
        """Note new messages of levels that were empty. A listener of the dispatcher."""
        if not self._parked:
            return
        woken = False
        for level, offset in list(self._parked.items()):
            queue = self._queue(level)
            if queue is not None and queue.max_offset > offset:
                del self._parked[level]
                if level.due_ms is None:
                    level.due_ms = 0
                    woken = True
        if woken:
            self._look()

    def _look(self) -> None:
        """Start the levels that are due, and wait for the next one."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if not self._delivering:
            return
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        next_s: float | None = None
        for level in self.levels:
            if level.due_ms is None or level.task is not None:
                continue
            wait_s = max(level.again_s - now_s, level.wait_s(level.next_offset, level.due_ms, now_ms, now_s))
            if wait_s <= 0:
                level.task = asyncio.get_running_loop().create_task(self._deliver(level))
            elif next_s is None or wait_s < next_s:
                next_s = wait_s
        if next_s is not None:
            self._timers.append(self._clock.call_later(max(0.001, next_s), self._look))
            if next_s > CLOCK_CHECK_S:
                self._timers.append(self._clock.beat(CLOCK_CHECK_S, self._look))

    async def _deliver(self, level: Level) -> None:
        """Deliver the due messages of a level."""
        try:
            more = True
            while more and self._delivering:
                more = await self._deliver_some(level)
                await asyncio.sleep(0)  # let other tasks run
        except Exception:
            level.again_s = self._clock.monotonic_s() + AGAIN_LATER_S
            log.exception("delivery_failed level=%d offset=%d", level.number, level.next_offset)
        finally:
            level.task = None
            self._look()

    async def _deliver_some(self, level: Level) -> bool:
        """Deliver one batch. Return False if no more messages are due now, or it must be retried later."""
        queue = self._queue(level)
        if queue is None or not self._pending(level):
            level.due_ms = None
            return False
        if not queue.min_offset <= level.next_offset <= queue.max_offset:
            corrected = queue.min_offset if level.next_offset < queue.min_offset else queue.max_offset
            log.error(
                "delay_offset_corrected level=%d offset=%d to=%d next='messages of this level expired "
                "before they were due: set fileReservedTime above the longest delay'",
                level.number, level.next_offset, corrected,
            )  # fmt: skip
            level.next_offset = corrected
            return True
        try:
            try:
                due, head_ms = self._read(level, queue, False)
            except Cold:
                due, head_ms = await self._store.readers.read(lambda: self._read(level, queue, True))
            if due:
                async with self._turn:
                    if not await self._deliver_due(level, due):
                        return True
        except KeroloxError as error:
            level.again_s = self._clock.monotonic_s() + level.retry.failed(error, self._again_s)
            return False
        if head_ms is None:
            return True
        level.due_ms = head_ms
        if self._offsets.offsets.get(level.number) != level.next_offset:
            self._offsets.update(level.number, level.next_offset)
        return False

    # --- messages -------------------------------------------------------------------------------------

    def _read(self, level: Level, queue: Queue, may_wait: bool) -> tuple[list[_Due], int | None]:
        """Return due messages, and the due time of the first later one; None: there may be more."""
        offset = level.next_offset
        entries = queue.entries(offset, BATCH_MAX, may_wait=may_wait)
        if entries is None:
            raise Cold
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        log_min = self._store.log.min_offset
        places: list[tuple[int, int, int]] = []  # queue offset, and begin and end in the log
        total = 0
        head_ms: int | None = None
        for offset, (physical, size, due_ms) in enumerate(entries, offset):  # noqa: B020
            lost = due_ms == HOLE_TAGS or size == BLANK_SIZE or physical < log_min
            if not lost and level.wait_s(offset, due_ms, now_ms, now_s) > 0:
                head_ms = due_ms
                break
            if places and total + size > BATCH_BYTES_MAX:
                break
            if lost:
                places.append((offset, physical, physical))
            else:
                places.append((offset, physical, physical + size))
                total += size
        return self._records(places, may_wait), head_ms

    def _records(self, places: list[tuple[int, int, int]], may_wait: bool) -> list[_Due]:
        ranges = [(low, high) for _, low, high in places if high > low]
        parts: list[bytes | None]
        try:
            parts = list(self._store.log.read_ranges(ranges, may_wait=may_wait))
        except OffsetOutOfRange:  # some were deleted
            if not may_wait:
                raise Cold from None
            parts = [self._record(low, high) for low, high in ranges]
        found = iter(parts)
        return [(offset, low, next(found) if high > low else None) for offset, low, high in places]

    def _record(self, low: int, high: int) -> bytes | None:
        try:
            return self._store.log.read(low, high - low)
        except OffsetOutOfRange:
            return None  # deleted, or never stored

    async def _deliver_due(self, level: Level, due: list[_Due]) -> bool:
        """Store due messages under their own topics. Return False if the rest can be stored now."""
        wanted: list[DueMessage] = []
        offsets: list[int] = []
        end = level.next_offset
        messages = decode_each([record or b"" for _, _, record in due])
        held: str | None = None
        for (offset, physical, record), found in zip(due, messages, strict=True):
            message = self._message(level, offset, physical, record, found)
            if message is not None:
                restored = restore(message)
                if self._due.acts and (held := self._due.refusal(restored)) is not None:
                    break
                wanted.append(restored)
                offsets.append(offset)
            end = offset + 1

        def stored(delivered: list[Delivered]) -> None:
            count = len(delivered)
            # At once: messages written and not yet noted are delivered twice after a kill.
            for at in range(count - 1, -1, -1):
                topic, place = delivered[at]
                if place is not None and topic == wanted[at].topic:
                    note = DelayNote(offsets[at] + 1, wanted[at].parked.physical_offset, place[0])
                    self.marks.delivered(level.number, note, self._store.progress.appended)
                    break
            self._count(level, end if count == len(wanted) else offsets[count], wanted, delivered)

        is_whole = await self._due.deliver(wanted, stored)
        if held is not None and is_whole:
            raise StoreError(
                f"the message at {end} of level {level.number} cannot be delivered: {held}. It "
                "becomes a dead letter when this broker can write its log again"
            )
        return is_whole

    def _message(
        self, level: Level, offset: int, physical: int, record: bytes | None, message: StoredMessage | None
    ) -> StoredMessage | None:
        """Return the message of a record; None if there is none, and the entry is skipped."""
        try:
            if record is None:
                raise Unrestorable("its record does not exist any more")
            return message or decode_record(record)  # raises the reason why it cannot be read
        except (Unrestorable, ProtocolError) as error:
            self.passed_over += 1
            log.error(
                "delayed_message_passed_over level=%d offset=%d physical=%d error=%r",
                level.number, offset, physical, str(error),
            )  # fmt: skip
            return None

    def _count(
        self, level: Level, next_offset: int, wanted: list[DueMessage], delivered: list[Delivered]
    ) -> None:
        if next_offset > level.next_offset:
            level.retry.succeeded()
        level.next_offset = next_offset
        level.forget_parked(next_offset)
        self._offsets.update(level.number, next_offset)
        self.delivered += len(delivered)
        self.batches += 1
        sizes: dict[str, list[int]] = {}
        for message, (topic, place) in zip(wanted, delivered, strict=False):
            sizes.setdefault(topic, []).append(len(message.parked.body) if place is None else place[2])
        for topic, found in sizes.items():
            self.on_delivered(level.queue_id, topic, sum(found), len(found))

    @property
    def _again_s(self) -> float:
        return AGAIN_ELSEWHERE_S if self._due.acts else AGAIN_S

    # --- progress --------------------------------------------------------------------------------------

    def _schedule_save(self) -> None:
        def tick() -> None:
            if self._offsets.changed and self._saving is None:
                self._saving = asyncio.get_running_loop().create_task(self._save())
                self._saving.add_done_callback(lambda _: setattr(self, "_saving", None))
            self._schedule_save()

        # No copy in this log proves messages that went to another broker, so progress is saved soon.
        every_ms = self._options.save_delays_ms
        every_ms = min(every_ms, SAVE_ACTING_MS) if self._due.acts else every_ms
        self._save_timer = self._clock.beat(every_ms / 1000, tick)

    async def _save(self) -> None:
        """Save the progress: first flush the log, then save the table."""
        data = self._offsets.encode()
        try:
            await self._store.flusher.flush_all()
            await asyncio.get_running_loop().run_in_executor(self._store.keeper, self._offsets.save, data)
        except KeroloxError as error:
            self._offsets.changed = True
            log.error(
                "delay_offsets_not_saved path=%s error=%r next='retried; until it succeeds, delayed messages "
                "may come twice after a restart'",
                self._offsets.path, str(error),
            )  # fmt: skip

    # --- metrics --------------------------------------------------------------------------------------

    def metrics(self, out: MetricText) -> None:
        """Write metrics of the waiting messages by level, and of the delay of delivery."""
        now_ms = self._clock.wall_ms()
        rows = [(level, self._waiting(level)) for level in self.levels]
        out.metric(
            "kerolox_delay_pending_messages", "gauge", "Delayed messages not yet delivered",
            [({"level": level.number}, waiting) for level, waiting in rows],
        )  # fmt: skip
        out.metric(
            "kerolox_delay_lag_milliseconds", "gauge", "How long the next delayed message has been due",
            [
                ({"level": level.number}, max(0, now_ms - level.due_ms) if waiting and level.due_ms else 0)
                for level, waiting in rows
            ],
        )  # fmt: skip
        out.metric(
            "kerolox_delay_delivered_messages_total", "counter", "Delayed messages delivered since the start",
            [({}, self.delivered)],
        )  # fmt: skip
        out.metric(
            "kerolox_delay_passed_over_messages_total", "counter", "Delayed messages that could not be read",
            [({}, self.passed_over)],
        )  # fmt: skip

    def _waiting(self, level: Level) -> int:
        return max(0, self._store.queues.max_offset(SCHEDULE_TOPIC, level.queue_id) - level.next_offset)

    def _pending(self, level: Level) -> bool:
        # Also if the queue ends before it: then the offset must be corrected.
        queue = self._queue(level)
        return queue is not None and queue.max_offset != level.next_offset

    def _queue(self, level: Level) -> Queue | None:
        return self._store.queues.find(SCHEDULE_TOPIC, level.queue_id)
