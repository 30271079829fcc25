"""Check-backs: the broker asks producers for the outcome of open transactions.

At intervals a round reads the half queue from the end of the last round. Half messages whose transaction has
ended are skipped. A half message that is old enough is put back at the end of the queue with one more check
counted; then its producer, or another one of the group, is asked about the copy. A round handles a few
messages at a time, and yields the loop in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable

import msgspec

from kerolox.access.guard import Guard
from kerolox.broker.members.members import Members
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.broker.transactions import half_messages
from kerolox.broker.transactions.counts import Counts
from kerolox.broker.transactions.finished_half_messages import FinishedHalfMessages
from kerolox.broker.transactions.half_messages import QUEUE, Fate
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.protocol import reserved
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.transaction import CheckTransaction
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import offset_id
from kerolox.protocol.record import decode_records, encode_message
from kerolox.store.errors import Unreadable
from kerolox.store.log.commit_log import AppendRefused, Place
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import ReadStatus

log = logging.getLogger(__name__)

BATCH_COUNT = 32
BATCH_BYTES = 1 << 20
ROUND_S_MAX = 60.0
HOUR_MS = 3_600_000


class CheckBacks:
    """Rounds over the half queue."""

    def __init__(
        self,
        store: MessageStore,
        intake: Intake,
        finished: FinishedHalfMessages,
        counts: Counts,
        members: Members,
        topics: Topics,
        options: BrokerOptions,
        clock: Clock,
        guard: Guard,
        outlet: Outlet | None = None,
    ) -> None:
        """``outlet``: destination of half messages while this broker may not write."""
        self._outlet = outlet
        self._moves = False  # half messages are moved to the outlet instead of checked
        self._moving = asyncio.Lock()  # held during a move; the end of the rounds waits for it
        self._moved_in_vain = 0
        self._store = store
        self._intake = intake
        self._finished = finished
        self._counts = counts
        self._members = members
        self._topics = topics
        self._options = options
        self._clock = clock
        self._guard = guard
        self._task: asyncio.Task[None] | None = None
        self._unasked: Counter[str] = Counter()  # group → questions of this round that reached no producer
        self._failed_rounds = 0  # consecutive failures
        self.rounds = 0  # completed rounds
        # For statistics: group, topic, queue id, messages, bytes, bytes behind the end of the log.
        self.on_read: Observers[[str, str, int, int, int, int]] = Observers("half messages read")

    def start(self, *, moves: bool = False) -> None:
        """Start the rounds. Producers are asked; with ``moves`` half messages are moved to another broker,
        which asks."""
        self._moves = moves
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self.run_rounds())

    async def close(self) -> None:
        if self._task is not None:
            async with self._moving:
                self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            if self._moves:
                await self._finished.save(keep=True)

    async def run_rounds(self) -> None:
        while True:
            await self._clock.sleep(self._options.transaction_check_ms / 1000)
            try:
                await self.round()
                await self._finished.save(keep=self._moves)
                self._tell_unasked()
                self._failed_rounds = 0
            except Unreadable:
                pass  # counted by the reader; the next round begins at the same half message
            except KeroloxError as error:
                self._failed_rounds += 1
                if (
                    self._failed_rounds & (self._failed_rounds - 1) == 0
                ):  # the 1st, 2nd, 4th, 8th, ... in a row
                    log.error(
                        "check_round_failed times=%d error=%r next='the next round continues here'",
                        self._failed_rounds, str(error),
                    )  # fmt: skip
            self.rounds += 1

    def _tell_unasked(self) -> None:
        unasked, self._unasked = self._unasked, Counter()
        for group, count in unasked.items():
            log.warning(
                "transactions_not_checked group=%r count=%d reason='no producer of the group is connected' "
                "next='start a producer of the group; the next round asks it'", group, count,
            )  # fmt: skip

    async def round(self) -> None:
        """Process the half queue up to messages that are too young."""
        ended, store = self._finished, self._store
        round_ms = self._clock.wall_ms()
        until_s = self._clock.monotonic_s() + ROUND_S_MAX
        is_over = False
        while not is_over and self._clock.monotonic_s() < until_s:
            offset = ended.progress
            while ended.is_done(offset):
                offset += 1
            ended.advance(offset)
            read = await store.queues.read(
                reserved.HALF_TOPIC, QUEUE, offset, BATCH_COUNT, bytes_max=BATCH_BYTES
            )
            if read.status is not ReadStatus.FOUND:
                if read.next_offset <= offset:
                    return  # nothing new
                # Its file was deleted, or the entry is a hole.
                log.warning("half_messages_gone from=%d to=%d", offset, read.next_offset)
                ended.advance(read.next_offset)
                continue
            self.on_read(reserved.HALF_GROUP, reserved.HALF_TOPIC, QUEUE, read.count, read.size_bytes, 0)
            halves = decode_records(b"".join(read.parts))
            is_over = await (self._move if self._moves else self._go_through)(halves, round_ms)
            await asyncio.sleep(0)

    def _judge(self, half: StoredMessage, round_ms: int, now_ms: int) -> Fate:
        options = self._options
        return half_messages.judge(
            half,
            round_ms=round_ms,
            now_ms=now_ms,
            usual_ms=options.transaction_timeout_ms,
            checks_max=options.transaction_checks_max,
            keep_ms=options.keep_hours * HOUR_MS,
        )

    async def _move(self, halves: list[StoredMessage], round_ms: int) -> bool:
        async with self._moving:
            return await self._move_some(halves, round_ms)

    async def _move_some(self, halves: list[StoredMessage], round_ms: int) -> bool:
        """Move open half messages to another broker, which asks their producers. Return True if the round is
        over. A message that no broker accepts stays, and those behind it wait, however often it was tried."""
        assert self._outlet is not None  # otherwise nothing is moved
        ended, now_ms = self._finished, self._clock.wall_ms()
        moving: list[PendingMessage] = []
        offsets: list[int] = []
        after, is_over = ended.progress, False
        for half in halves:
            if not ended.is_done(half.queue_offset):
                if self._judge(half, round_ms, now_ms) is Fate.WAIT:
                    is_over = True
                    break
                pending = half_messages.moved(half)
                if pending is None:
                    log.error(
                        "half_message_not_moved offset=%d reason='it names no topic'", half.queue_offset
                    )
                else:
                    moving.append(pending)
                    offsets.append(half.queue_offset)
            after = half.queue_offset + 1
        if moving:
            try:
                taken = await self._outlet.put(moving)
            except KeroloxError as error:
                taken, is_over = 0, True
                self._warn(offsets[0], error)
            else:
                self._moved_in_vain = 0
            for offset in offsets[:taken]:
                ended.moved(offset)
            if taken < len(moving):
                after = offsets[taken]
        ended.advance(after)
        return is_over

    def _warn(self, offset: int, error: KeroloxError) -> None:
        times = self._moved_in_vain = self._moved_in_vain + 1
        if times & (times - 1) == 0:  # the 1st, 2nd, 4th, 8th, ... in a row
            log.warning(
                "half_messages_not_moved offset=%d times=%d error=%r next='kept; the next round tries "
                "again'", offset, times, str(error),
            )  # fmt: skip

    async def _go_through(self, halves: list[StoredMessage], round_ms: int) -> bool:
        """Decide on each half message. Return True if the round is over."""
        ended = self._finished
        now_ms = self._clock.wall_ms()
        asked: list[tuple[StoredMessage, Place]] = []
        put_back: list[int] = []
        given_up: list[str] = []
        after = ended.progress
        is_over = is_ending = False
        topic_saved: Awaitable[None] | None = None
        for half in halves:
            offset = half.queue_offset
            if ended.is_done(offset):
                after = offset + 1
                continue
            if ended.is_ending(offset):
                is_ending = True  # being written; the next batch begins here
                break
            first = half_messages.first_offset(half)
            fate = self._judge(half, round_ms, now_ms)
            if fate is Fate.WAIT:
                is_over = True
                break
            if fate is not Fate.GIVE_UP:
                pending = half_messages.checked(half) if fate is Fate.CHECK else half_messages.put_off(half)
                try:
                    place = self._intake.append_as_is(pending)
                except AppendRefused:  # its properties have no room for one more check
                    fate = Fate.GIVE_UP
            if fate is Fate.GIVE_UP:
                self._topics.for_group(reserved.CHECKED_TOO_OFTEN_TOPIC, 1)
                if reserved.CHECKED_TOO_OFTEN_TOPIC in self._topics.unsaved:
                    is_ending = True  # the topic is being saved; the next batch begins here
                    topic_saved = self._topics.unsaved.saved(reserved.CHECKED_TOO_OFTEN_TOPIC)
                    break
                ended.give_up(half, self._intake.append_as_is(half_messages.given_up(half)))
                given_up.append(half_messages.real_topic(half))
            else:
                ended.put_back(half, first, place)
                put_back.append(offset)
                if fate is Fate.CHECK:
                    half.packed_properties = pending.properties
                    asked.append((half, place))
            after = offset + 1
        if is_ending or after > ended.progress:
            try:
                await self._intake.written()
            except KeroloxError:
                for offset in reversed(put_back):
                    ended.not_put_back(offset)
                raise  # the next round tries again
        ended.advance(after)
        for topic in given_up:
            self._counts.given_up(topic)
        if given_up:
            log.warning(
                "transactions_given_up count=%d topics=%r next='inspect them in topic %s'",
                len(given_up), ",".join(sorted(set(given_up))), reserved.CHECKED_TOO_OFTEN_TOPIC,
            )  # fmt: skip
        for half, place in asked:
            self._ask(half, place)
        if topic_saved is not None:
            try:
                await topic_saved
            except KeroloxError as error:
                log.error("transactions_not_given_up error=%r next='the next round tries again'", str(error))
                return True
        return is_over

    def _ask(self, half: StoredMessage, place: Place) -> None:
        """Ask one producer of the group. The answer, if any, is END_TRANSACTION."""
        group = half_messages.producer_group(half)
        topic = half_messages.real_topic(half)
        # The question contains the message, so only clients that may publish to its topic are asked.
        producer = self._members.pick_producer(
            group, lambda client: self._guard.may_publish(client.user, client.caller, topic)
        )
        if producer is None:
            self._unasked[group] += 1
            return
        physical, queue_offset, _ = place
        question = CheckTransaction(
            topic=reserved.HALF_TOPIC,
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical,
            msg_id=half.unique_key or None,
            transaction_id=half.unique_key or None,
            offset_msg_id=offset_id(half.store_host, physical),
            broker_name=self._options.broker_name,
        )
        record = encode_message(
            msgspec.structs.replace(
                half,
                topic=topic,
                queue_id=half_messages.real_queue(half),
                queue_offset=queue_offset,
                physical_offset=physical,
            )
        )
        try:
            producer.tell(RequestCode.CHECK_TRANSACTION_STATE, question, record)
        except KeroloxError:  # the producer has just disconnected
            self._unasked[group] += 1
