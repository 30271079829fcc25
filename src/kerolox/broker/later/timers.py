"""The timer: delivery of messages at any time.

A message that is parked under the timer's topic is entered: a unit in the timer log, chained to its moment's
slot in the wheel. When the clock has passed the moment its messages are stored under their own topic. One
task does both. It sleeps until a message arrives, or the next moment with messages has passed.

A message counts as delivered once its copy is in the log, and is noted in the checkpoint once the log is
flushed: a crash in between delivers it again. No message is dropped because the store accepts none at the
moment: the timer waits. (RocketMQ gives up after three attempts.)

When the wall clock is set forwards, what became due is delivered within a second. When it is set back, what
waits waits for its time; moments that come a second time are not delivered twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kerolox.broker.later.timer_arrivals import Arrival, Arrivals
from kerolox.broker.later.timer_delivery import DELIVER_MAX, RETRY_S, Stopped, TimerDelivery, pause
from kerolox.broker.later.timer_messages import delete_key, goal, parked
from kerolox.broker.options import BrokerOptions
from kerolox.broker.write.delivery import Delivery, Retry
from kerolox.broker.write.due_delivery import DueDelivery
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.outlet import Outlet
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import ProtocolError
from kerolox.observers import Observers
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.java import java_hash
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import Entry
from kerolox.store.disk.cut_note import Cut
from kerolox.store.errors import OffsetOutOfRange, StoreError, Unreadable
from kerolox.store.failures import Kind
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.timer_counts import TimerCounts
from kerolox.store.timer.checkpoint import decode_leader
from kerolox.store.timer.cut import begin_anew_behind
from kerolox.store.timer.log import TimerUnit
from kerolox.store.timer.progress_note import TimerNote, TimerNoteFile
from kerolox.store.timer.timer_store import Entering, TimerStore
from kerolox.store.timer.wheel import Change

log = logging.getLogger(__name__)

T = TypeVar("T")

ENTER_MAX = 256  # in one turn of the loop
SLEEP_S_MAX = 1.0  # while messages wait; a changed wall clock is noticed within this time
HASHES_MAX = 10_000
CLEAN_S = 30.0
ENTER, FLUSH = "enter", "flush"  # the works, of which failures stand; see standing_failures.py
STALE_MS = 60_000  # a checkpoint is not older, while messages wait
_LOOK_BACK_MAX = 20_000


class Timers:
    """The timer of one broker."""

    def __init__(
        self,
        store: MessageStore,
        intake: Intake,
        delivery: Delivery,
        counts: TimerCounts,
        options: BrokerOptions,
        clock: Clock,
        outlet: Outlet | None = None,
    ) -> None:
        """``outlet``: destination of messages while this broker may not write."""
        self.counts = counts
        self.entered: Counter[str] = Counter()  # by topic, since the start
        # topic, seconds until it is due; for meters
        self.on_entered: Observers[[str, int]] = Observers("timer message entered")
        self.enter_rate = self.deliver_rate = 0.0  # per second, recent
        self.last_stored_ms = self.last_entered_ms = 0
        self._store = store
        self._options = options
        self._clock = clock
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="kerolox-timer")
        self._precision_ms = options.timer_precision_ms
        self.files = TimerStore(
            store.files,
            store.root,
            precision_ms=options.timer_precision_ms,
            log_file_bytes=options.timer_log_file_bytes,
            roll_slots=options.timer_roll_slots,
            failures=store.reads,
        )
        self.arrivals = Arrivals(store)
        self._closing = asyncio.Event()
        self.delivery = TimerDelivery(
            store,
            self.files,
            DueDelivery(intake, delivery, outlet),
            counts,
            clock,
            self._threads,
            self._closing,
        )
        self._retry = Retry(clock, "timer_waits")
        self._read_ms = 0  # messages due before this were delivered
        self._seen: set[int] = set()  # messages that were entered but not recorded when the process crashed
        # Offset and time: messages before this offset are entered again, except those due before this time,
        # which were delivered.
        self._again = (0, 0)
        # Offset and times: messages before this offset are entered; those due between these times were
        # skipped.
        self._missed = (0, 0, 0)
        self._reports: list[tuple[DataVersion, int, int]] = []  # version, read time, offset of followers
        self._unwritten: list[Change] = []  # slots that could not be written
        self._moments = 0  # delivered since the start
        self._noted = (0, 0, 0)  # queue offset, log end and moments of the last checkpoint
        self.mark = TimerNoteFile(store.files, store.root)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_timer: TimerHandle | None = None
        self._cleaned_s = 0.0
        self._rates = (0.0, 0, 0)
        self._hashes: dict[str, int] = {}
        self._quiet_until_ms = 0
        self._opened = self._ended = False
        self.leads = False

    # --- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the files. Called before anything is appended."""
        if self._options.timer_wheel:
            await self._in_thread(self._open)
            self._opened = True
            self._store.dispatcher.listeners.append(self.dispatched)
            self._go_on(leads=False)

    def _open(self) -> None:
        files, checkpoint, store = self.files, self.files.checkpoint, self._store
        self.counts.load()
        found = files.open(self._clock.wall_ms(), self.mark.load_checkpoint(), store.log.has_record)
        self._read_ms = found.read_ms
        offset = checkpoint.queue_offset
        queue = self.arrivals.queue
        if found.last is not None:
            revised = self._queue_offset_of(found.last)
            offset = offset if revised is None else revised + 1
        offset = min(offset, checkpoint.leader_queue_offset)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        self.arrivals.offset = min(max(offset, low), high)
        if found.damage:
            log.warning(
                "timer_damaged reason=%r next='nothing: its messages are entered again'", found.damage
            )
            files.begin_anew()
            self.counts.counts.clear()
            found.seen.clear()
        self._believe(self.mark.load(), high)
        if found.damage:
            self._again = (self.arrivals.offset, self._read_ms)
            self.arrivals.offset = low
        # Places beyond the end of the log will contain other messages.
        self._seen = {at for at in found.seen if at < store.log.max_offset}
        log.info(
            "timer_open waiting=%d read=%d offset=%d of %d units_read=%d",
            files.wheel.waiting, self._read_ms, self.arrivals.offset, high, found.scanned,
        )  # fmt: skip

    def _believe(self, mark: TimerNote | None, high: int) -> None:
        """Continue where a killed process stopped, if the log proves its progress."""
        files = self.files
        self.mark.open()
        if mark is not None and self._proves(mark):
            # If a part of the timer log is missing, other units are at the noted places.
            whole = files.log.end >= mark.log_end
            if mark.read_ms >= self._read_ms:
                self._read_ms = mark.read_ms
                files.wheel.pass_to(files.moment(mark.read_ms))
                if whole and mark.moment >= 0:
                    self.delivery.left = (mark.moment, mark.left)
            if whole:
                self.arrivals.offset = max(self.arrivals.offset, min(mark.queue_offset, high))
        elif mark is not None:
            self.mark.forget()

    def _proves(self, mark: TimerNote) -> bool:
        try:
            message = decode_record(self._store.log.read(mark.physical, mark.size))
        except (OffsetOutOfRange, ProtocolError):
            return False
        return (message.physical_offset, message.queue_offset) == (mark.physical, mark.offset)

    def _note(self) -> None:
        """Write a note of deliveries and entries so far, for a kill."""
        last = self.delivery.last
        if last is not None:
            moment, left = self.delivery.left or (-1, 0)
            self.mark.note(
                TimerNote(0, self._read_ms, moment, left, self.arrivals.offset, self.files.log.end, *last)
            )

    def _queue_offset_of(self, unit: TimerUnit) -> int | None:
        """Return the offset of the queue entry of the newest unit; None if it is unknown."""
        queue = self.arrivals.queue
        try:
            message = parked(self._store.log.read(unit.physical, unit.size), unit.physical)
        except OffsetOutOfRange:
            return None
        if message is None:
            return None
        offset = message.queue_offset
        if queue is None:
            return offset
        for at in range(offset, max(-1, offset - _LOOK_BACK_MAX), -1):
            entry = queue.entry(at)
            if entry is not None and entry[:2] == (unit.physical, unit.size):
                return at
        return offset

    async def lead(self) -> None:
        """Enter new messages, and deliver."""
        await self._pause()
        self.delivery.due.acts = False
        if self._opened:
            self._take_back()
        self._go_on(leads=True)

    async def act(self) -> None:
        """Do the same for an acting follower: due messages go to another broker."""
        await self._pause()
        self.delivery.due.acts = True
        checkpoint = self.files.checkpoint
        checkpoint.version = checkpoint.version.ahead(self._clock.wall_ms())
        self._go_on(leads=True)

    async def follow(self) -> None:
        """Stop delivering, and enter the messages that the leader has entered: see :meth:`heard_leader`."""
        await self._pause()
        if self._opened:
            await self.flush()  # records the leader's progress
        self._go_on(leads=False)

    def _go_on(self, *, leads: bool) -> None:
        self.leads = leads
        if not self._opened or self._ended:
            return
        self.arrivals.forget_handed()
        self._closing.clear()
        self._quiet_until_ms = self._clock.wall_ms() + self._options.timer_quiet_ms
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._schedule_flush()

    async def truncated(self, cut: Cut) -> None:
        """Handle a truncation of the log. If timer messages are gone, waiting or delivered, enter all waiting
        ones again from the remaining files."""
        if cut.timer and self._opened:
            await self._pause()
            await self._in_thread(self._open_behind, cut)
            self._go_on(leads=self.leads)

    def _open_behind(self, cut: Cut) -> None:
        self.files.begin_anew()
        self.files.close()
        self.mark.close()
        self.delivery.left = self.delivery.partly = self.delivery.last = None
        self._unwritten, self._noted, self._again, self._missed = [], (0, 0, 0), (0, 0), (0, 0, 0)
        # Once more, because a round may have recorded the old state since the store removed it.
        begin_anew_behind(self._store.files, self._store.root, cut, self._clock.wall_ms())
        self._open()

    async def stop(self) -> None:
        """Stop entering and delivering. The batch in progress is completed."""
        self._ended = True
        await self._pause()

    async def _pause(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        for task in (self._task, self._flush_task):
            if task is not None:
                await asyncio.wait([task])

    async def close(self) -> None:
        """Stop, and flush the progress."""
        await self.stop()
        if self._opened:
            self._opened = False
            await self.flush()
            try:
                await self._in_thread(self.files.close)
                self.mark.close()
            except StoreError as error:
                log.error("timer_close_failed error=%r", str(error))
        self._threads.shutdown(wait=True)

    # --- reports of other brokers -----------------------------------------------------------------------

    def dispatched(self, entries: list[Entry]) -> None:
        if self.arrivals.hand_over(entries):
            self._wake.set()

    def waiting_at(self, time_ms: int) -> int:
        slot = self.files.wheel.get(self.files.moment(time_ms))
        return 0 if slot is None else slot.waiting

    def heard_leader(self, data: bytes) -> None:
        """Apply the leader's checkpoint: its deliveries, and the offset up to which this broker may enter."""
        read_ms, offset, version = decode_leader(data)
        self.files.checkpoint.leader_queue_offset = offset
        if version is not None:
            self.files.checkpoint.version = version
        self._read_ms = read_ms
        self.files.wheel.pass_to(self.files.moment(read_ms))
        self._wake.set()

    def take_back(self, data: bytes) -> None:
        """Keep the checkpoint of a follower that may have acted for this broker, until this one leads."""
        read_ms, offset, version = decode_leader(data)
        if version is not None:
            self._reports.append((version, read_ms, offset))

    def _take_back(self) -> None:
        """Skip messages that acting followers delivered since this broker last worked."""
        reports, self._reports = self._reports, []
        self._missed = (0, 0, 0)
        checkpoint, own_offset, own_ms = self.files.checkpoint, self.arrivals.offset, self._read_ms
        for version, read_ms, offset in reports:
            if not version.newer_than(checkpoint.version):
                continue  # no follower acted since
            checkpoint.version = version
            if read_ms <= self._read_ms:
                continue
            log.info("timer_taken_back read=%d offset=%d of %d", read_ms, offset, own_offset)
            self._read_ms = read_ms
            self.files.wheel.pass_to(self.files.moment(read_ms))
            if offset < own_offset:
                # The follower cannot have delivered messages it had not received, though their time has
                # passed.
                self._missed = (own_offset, own_ms, read_ms)
                self.arrivals.offset = offset
            else:
                self._again = (offset, read_ms)

    @property
    def read_ms(self) -> int:
        """Messages due before this were delivered."""
        if not self.leads:
            return self._read_ms
        first = self.files.wheel.first()
        now_ms = self._now_ms()
        return max(self._read_ms, now_ms if first is None else min(now_ms, first * self._precision_ms))

    def _now_ms(self) -> int:
        now_ms = self._clock.wall_ms()
        return now_ms - now_ms % self._precision_ms

    # --- the task --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            try:
                busy = await self._enter()
                busy = await self._deliver() or busy
            except Stopped:
                return
            except StoreError as error:
                reported = self._store.failing.is_failing(Kind.TIMER, ENTER)
                await pause(self._clock, self._closing, self._retry.failed(error, reported=reported))
                continue
            except Exception:
                log.exception("timer_failed next='retried'")
                await pause(self._clock, self._closing, RETRY_S)
                continue
            self._retry.succeeded()
            if not busy:
                await self._sleep()

    async def _sleep(self) -> None:
        """Sleep until a message arrives, or the next moment has passed."""
        delay_s: float | None = None
        first = self.files.wheel.first()
        if first is not None and self.leads:
            passed_ms = max((first + 1) * self._precision_ms, self._quiet_until_ms)
            # Up to the moment, not less: before it there is nothing to do.
            delay_s = max((passed_ms - self._clock.wall_ms()) / 1000, 0.001)
        elif self.arrivals.behind:
            delay_s = SLEEP_S_MAX  # stopped by an option, or waiting for the leader
        timers: list[TimerHandle] = []
        if delay_s is not None:
            timers.append(self._clock.call_later(delay_s, self._wake.set))
            if delay_s > SLEEP_S_MAX:
                timers.append(self._clock.beat(SLEEP_S_MAX, self._wake.set))
        try:
            await self._wake.wait()
        finally:
            for timer in timers:
                timer.cancel()

    # --- entering --------------------------------------------------------------------------------------

    async def _enter(self) -> bool:
        """Enter some messages of the timer's queue. Return whether there were any."""
        if self._options.timer_stop_enqueue:
            return False
        leads, checkpoint = self.leads, self.files.checkpoint
        end = (1 << 63) - 1 if leads else checkpoint.leader_queue_offset
        arrivals = await self.arrivals.read(ENTER_MAX, end)
        if not arrivals:
            return False
        now_ms = self._now_ms()
        entering: list[tuple[Entering, str]] = []
        late: list[Arrival] = []
        for arrival in arrivals:
            due_ms, topic, _ = (None, None, None) if arrival.properties is None else goal(arrival.properties)
            if arrival.properties is None or due_ms is None:
                log.warning("timer_message_skipped offset=%d reason='no time'", arrival.queue_offset)
                continue
            if arrival.queue_offset < self._again[0] and due_ms < self._again[1]:
                continue
            if arrival.queue_offset < self._missed[0]:
                # In the wheel, or delivered; or skipped when another broker's progress was taken over.
                if leads and self._missed[1] <= due_ms < self._missed[2]:
                    late.append(arrival)
                continue
            if arrival.physical in self._seen:
                self._seen.discard(arrival.physical)
                continue
            topic = topic or ""
            if leads and due_ms < now_ms:
                late.append(arrival)
            elif leads or due_ms >= self._read_ms:
                deletes = delete_key(arrival.properties) is not None
                entering.append(
                    (Entering(arrival.physical, arrival.size, due_ms, self._hash(topic), deletes), topic)
                )
        wanted = {message.physical for message, _ in entering}
        try:
            await self._enter_all(entering, now_ms)
            await self.delivery.deliver_late(late)
        except BaseException:
            # All of them are read again; those that were entered must not be entered twice.
            self._seen |= wanted - {message.physical for message, _ in entering}
            raise
        self.arrivals.offset = arrivals[-1].queue_offset + 1
        if late:
            self._note()
        self.last_stored_ms, self.last_entered_ms = arrivals[-1].stored_ms, self._clock.wall_ms()
        if self._seen and not self.arrivals.behind:
            self._seen.clear()
        return True

    def _hash(self, topic: str) -> int:
        found = self._hashes.get(topic)
        if found is None:
            if len(self._hashes) >= HASHES_MAX:
                self._hashes.clear()
            found = self._hashes[topic] = java_hash(topic)
        return found

    async def _enter_between(self) -> None:
        """Enter messages while a moment with many messages is delivered."""
        self._note()
        try:
            await self._enter()
        except Unreadable:
            pass  # counted by the reader; the next turn tries again
        except StoreError as error:
            if not self._store.failing.is_failing(Kind.TIMER, ENTER):
                log.error("timer_waits error=%r next='it is tried again'", str(error))

    async def _enter_all(self, entering: list[tuple[Entering, str]], now_ms: int) -> None:
        files = self.files
        first_ms = min((message.due_ms for message, _ in entering), default=self._read_ms)
        if first_ms < self._read_ms:
            # The clock was set back: the moments up to its earlier time come once more.
            files.wheel.clear(files.moment(first_ms), files.moment(self._read_ms))
            self._read_ms = first_ms - first_ms % self._precision_ms
        if not entering:  # what could not be entered was due meanwhile
            self._store.failing.passed(Kind.TIMER, ENTER)
        while entering:
            try:
                if not files.log.room:
                    await self._in_thread(files.log.roll)
                count = files.enter([message for message, _ in entering], now_ms)
            except StoreError as error:
                self._store.failing.failed(Kind.TIMER, error, work=ENTER)
                raise
            self._store.failing.passed(Kind.TIMER, ENTER)
            changed: Counter[str] = Counter()
            for message, topic in entering[:count]:
                self.entered[topic] += 1
                changed[topic] += -1 if message.deletes else 1
                if not message.deletes:
                    self.on_entered(topic, max(0, message.due_ms - now_ms) // 1000)
            for topic, more in changed.items():
                self.counts.add(topic, more)
            del entering[:count]

    # --- delivering ------------------------------------------------------------------------------------

    async def _deliver(self) -> bool:
        """Deliver the messages of the earliest moment, if it has passed. Return whether it had."""
        if not self.leads or self._options.timer_stop_dequeue or self._clock.wall_ms() < self._quiet_until_ms:
            return False
        wheel = self.files.wheel
        now_ms = self._now_ms()
        moment = wheel.first()
        if moment is None or moment * self._precision_ms >= now_ms:
            self._read_ms = max(self._read_ms, now_ms)
            return False
        some = self._small_moments(now_ms)
        if some:
            await self.delivery.deliver_moments(some)
        else:
            some = [(moment, -1)]
        for moment, behind in some:
            # A large moment; or messages were added to the moment being delivered, because the clock was set
            # back.
            while (slot := wheel.get(moment)) is not None and slot.last > behind:
                await self.delivery.deliver_chain(moment, slot.last, behind, self._enter_between)
                behind = slot.last
            wheel.done(moment)
            self._moments += 1
            self._read_ms = max(self._read_ms, (moment + 1) * self._precision_ms)
        self._note()
        return True

    def _small_moments(self, now_ms: int) -> list[tuple[int, int]]:
        """Return the earliest passed moments with their last units, as many as may be delivered at once.
        Empty if the first one has more messages."""
        found: list[tuple[int, int]] = []
        total = 0
        for moment, slot in self.files.wheel.slots():
            total += max(1, slot.waiting)
            if total > DELIVER_MAX or moment * self._precision_ms >= now_ms:
                break
            if self.delivery.left is not None and self.delivery.left[0] == moment:
                break
            found.append((moment, slot.last))
        return found

    # --- checkpoints -----------------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        self._flush_timer = self._clock.beat(self._options.timer_flush_ms / 1000, self._flush_tick)

    def _flush_tick(self) -> None:
        self._schedule_flush()
        self._measure()
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = asyncio.get_running_loop().create_task(self._flush_round())

    async def _flush_round(self) -> None:
        await self.flush()
        now_s = self._clock.monotonic_s()
        if now_s - self._cleaned_s >= CLEAN_S:
            self._cleaned_s = now_s
            try:
                await self._in_thread(self.files.log.delete_before, self._store.log.min_offset)
            except StoreError as error:
                log.warning("timer_log_not_deleted error=%r", str(error))

    async def flush(self) -> None:
        """Record the progress of the timer in the checkpoint, after all deliveries are on the medium."""
        async with self._flushing:
            files, checkpoint = self.files, self.files.checkpoint
            offset, partly, read_ms, end = (
                self.arrivals.offset,
                self.delivery.partly,
                self._read_ms,
                files.log.end,
            )
            if partly is not None and (slot := files.wheel.get(partly[0])) is not None:
                files.wheel.put(partly[0], partly[1], slot.last, partly[2])
            changes = [*self._unwritten, *files.wheel.take_changes()]
            noting = (offset, end, self._moments)
            # Passed time alone needs no checkpoint: a start passes over moments without messages.
            failing = self._store.failing
            is_new = changes or noting != self._noted or read_ms - checkpoint.read_ms >= STALE_MS
            if not is_new and not failing.is_failing(Kind.TIMER, FLUSH):
                return
            delivered = self._store.progress.flushed < self._store.progress.appended
            checkpoint.read_ms, checkpoint.log_flushed = read_ms, end
            if self.leads:
                checkpoint.leader_queue_offset = offset
                checkpoint.version = checkpoint.version.next(self._clock.wall_ms())
            checkpoint.queue_offset = min(offset, checkpoint.leader_queue_offset)
            data = checkpoint.encode()
            self._unwritten = changes
            try:
                if delivered:
                    await self._store.flusher.flush_all()
            except StoreError as error:  # the flusher has reported it
                log.debug("timer_not_flushed error=%r", str(error))
                return
            try:
                await self._in_thread(self._make_safe, changes, data, partly)
            except StoreError as error:
                failing.failed(Kind.TIMER, error, work=FLUSH)
            else:
                failing.passed(Kind.TIMER, FLUSH)
                self._unwritten = []
                self._noted = noting

    def _make_safe(
        self, changes: list[Change], checkpoint: bytes, partly: tuple[int, int, int] | None
    ) -> None:
        if partly is not None:
            self.files.log.cut(partly[1])
        self.files.flush(changes, checkpoint)
        self.mark.note_checkpoint(checkpoint)

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        before_s, entered, delivered = self._rates
        self._rates = (now_s, self.entered.total(), self.delivery.delivered.total())
        if now_s > before_s > 0:
            self.enter_rate = (self._rates[1] - entered) / (now_s - before_s)
            self.deliver_rate = (self._rates[2] - delivered) / (now_s - before_s)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
