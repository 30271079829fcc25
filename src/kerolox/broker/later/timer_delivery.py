"""Delivery of timer messages whose moment has passed: they are read, restored, and stored under their own
topic."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar

from kerolox.broker.later.timer_arrivals import Arrival
from kerolox.broker.later.timer_messages import (
    NEVER_ENTERED_MS,
    delete_key,
    due,
    goal,
    is_parked,
    moved,
    own_key,
    parked,
    real_topic,
    rolled,
)
from kerolox.broker.later.timer_sends import is_of_topic
from kerolox.broker.write.delivery import FIRST_S, Retry
from kerolox.broker.write.due_delivery import Delivered, DueDelivery, DueMessage
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_each
from kerolox.store.errors import OffsetOutOfRange
from kerolox.store.log.commit_log import Place
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.timer_counts import TimerCounts
from kerolox.store.timer.log import ROLL, TimerUnit
from kerolox.store.timer.timer_store import TimerStore

log = logging.getLogger(__name__)

T = TypeVar("T")

DELIVER_MAX = 128  # in one turn of the loop
RETRY_S = 0.5
ELSEWHERE_S = 1.0  # pause after no other broker accepted a message

# A unit and its message, if it still exists.
_Found = tuple[TimerUnit, StoredMessage | None]


class Stopped(Exception):
    """The timer is closing: work in progress is abandoned."""


class TimerDelivery:
    """Delivery of moments. ``closing`` ends it between two batches. ``partly``: the moment being delivered,
    its first remaining unit, the number of remaining units."""

    def __init__(
        self,
        store: MessageStore,
        files: TimerStore,
        due_delivery: DueDelivery,
        counts: TimerCounts,
        clock: Clock,
        executor: Executor,
        closing: asyncio.Event,
    ) -> None:
        self.delivered: Counter[str] = Counter()  # by topic, since the start
        self.late: Counter[str] = Counter()  # delivered without being entered, by topic
        # For statistics: topic, messages, bytes, times.
        self.on_stored: Observers[[str, int, int, int]] = Observers("timer messages delivered")
        self.partly: tuple[int, int, int] | None = None
        self.left: tuple[int, int] | None = None  # a moment, and its first remaining unit
        self.last: Place | None = None  # of the last stored message
        self.due = due_delivery
        self._store = store
        self._files = files
        self._retry = Retry(clock, "timer_messages_not_delivered")
        self._counts = counts
        self._clock = clock
        self._executor = executor
        self._closing = closing
        self._precision_ms = files.precision_ms

    async def deliver_late(self, late: list[Arrival]) -> None:
        """Deliver messages that were due before they could be entered."""
        if not late:
            return
        records = await self._in_thread(
            lambda: [self._record(arrival.physical, arrival.size) for arrival in late]
        )
        now_ms = self._clock.wall_ms()
        messages_due: list[tuple[DueMessage, str]] = []
        keys = _keys(records)
        for message in records:
            if message is None or delete_key(message.packed_properties) is not None:
                continue
            if (key := own_key(message.packed_properties)) is not None and key in keys:
                continue
            topic = real_topic(message.packed_properties)
            self.late[topic] += 1
            messages_due.append((due(message, NEVER_ENTERED_MS, now_ms), topic))
        await self._deliver(messages_due)

    async def deliver_moments(self, moments: list[tuple[int, int]]) -> None:
        """Deliver several moments with few messages together; after a downtime there are many of them."""

        def read() -> list[tuple[list[_Found], list[_Found]]]:
            chains = [self._files.log.chain(last) for _, last in moments]
            return [(self._messages(chain.places), self._messages(chain.deletes)) for chain in chains]

        wall_ms = self._clock.wall_ms()
        messages_due: list[tuple[DueMessage, str]] = []
        for (moment, _), (messages, deletes) in zip(moments, await self._in_thread(read), strict=True):
            taken_back = _keys(message for _, message in deletes)
            unused = dict(taken_back)
            messages_due += self._pending_of(moment, messages, taken_back, unused, wall_ms)
            self._count_unused(unused)
        await self._deliver(messages_due, counted=True)

    async def deliver_chain(
        self, moment: int, last: int, behind: int, between: Callable[[], Awaitable[object]]
    ) -> None:
        """Deliver a moment with many messages in batches; other work runs in ``between``."""
        chain = await self._in_thread(self._files.log.chain, last, behind)
        taken_back: dict[bytes, str] = {}
        for start in range(0, len(chain.deletes), DELIVER_MAX):
            some = chain.deletes[start : start + DELIVER_MAX]
            found = await self._in_thread(self._messages, some)
            taken_back |= _keys(message for _, message in found)
        unused = dict(taken_back)
        places = chain.places
        if self.left is not None and self.left[0] == moment:
            while places and places[-1] < self.left[1]:  # delivered before an error stopped the delivery
                places.pop()
        while places:
            if self._closing.is_set():
                raise Stopped
            some = places[-DELIVER_MAX:]
            del places[-DELIVER_MAX:]
            found = await self._in_thread(self._messages, some)
            wall_ms = self._clock.wall_ms()
            await self._deliver(self._pending_of(moment, found, taken_back, unused, wall_ms), counted=True)
            if places:
                self.left = (moment, places[-1])
                # A recall marker may precede this place, so the chain must stay whole.
                self.partly = None if taken_back else (moment, places[-1], len(places))
                await between()
        self.left = self.partly = None
        self._count_unused(unused)

    def _pending_of(
        self,
        moment: int,
        found: list[_Found],
        taken_back: dict[bytes, str],
        unused: dict[bytes, str],
        wall_ms: int,
    ) -> list[tuple[DueMessage, str]]:
        """Return the messages to store, the oldest first. Recall keys that matched are removed from
        ``unused``."""
        messages_due: list[tuple[DueMessage, str]] = []
        for unit, message in reversed(found):
            if message is None:
                continue
            properties = message.packed_properties
            if taken_back and delete_key(properties) is None:
                key = own_key(properties)
                if key is not None and key in taken_back:
                    unused.pop(key, None)
                    continue
            pending = self._restored(moment, unit, message, wall_ms)
            if pending is not None:
                messages_due.append((pending, real_topic(properties) if unit.magic & ROLL else pending.topic))
        return messages_due

    def _count_unused(self, unused: dict[bytes, str]) -> None:
        for topic in unused.values():
            self._counts.add(topic, 1)  # the recall marker matched no message

    def _restored(
        self, moment: int, unit: TimerUnit, message: StoredMessage, wall_ms: int
    ) -> DueMessage | None:
        if unit.magic & ROLL:
            if self.due.acts:
                return moved(message, self._precision_ms)
            return rolled(message, unit.entered_ms, wall_ms)
        due_ms = goal(message.packed_properties).out_ms
        if due_ms is None or due_ms // self._precision_ms != moment:
            log.warning("timer_message_skipped at=%d reason='another message lies there'", unit.physical)
            return None
        if delete_key(message.packed_properties) is not None:
            return None
        return due(message, unit.entered_ms, wall_ms)

    def _messages(self, places: array[int]) -> list[_Found]:
        """Return units and their messages. Waits for the disk. Raises Unreadable if one cannot be read now;
        then none of them counts as delivered."""
        units = self._files.log.units(places)
        try:
            # Sorted by place in the log, so that few reads are needed.
            records = self._store.log.read_ranges(
                [(unit.physical, unit.physical + unit.size) for unit in reversed(units)], may_wait=True
            )
        except OffsetOutOfRange:  # some were deleted
            return [(unit, self._record(unit.physical, unit.size)) for unit in units]
        messages = decode_each(records)
        messages.reverse()
        return [
            (
                unit,
                message
                if message is not None and is_parked(message, unit.physical)
                else _skipped(unit.physical),
            )
            for unit, message in zip(units, messages, strict=True)
        ]

    def _record(self, physical: int, size: int) -> StoredMessage | None:
        """Return the message at this place; None if it was deleted. Raises Unreadable if that is unknown
        now."""
        try:
            record = self._store.log.read(physical, size)
        except OffsetOutOfRange as error:
            log.warning("timer_message_gone at=%d error=%r", physical, str(error))
            return None
        return parked(record, physical) or _skipped(physical)

    async def _deliver(self, messages: list[tuple[DueMessage, str]], *, counted: bool = False) -> None:
        """Store the messages; retry until they are accepted. Raises Stopped if the timer closes first."""

        def stored(delivered: list[Delivered]) -> None:
            self._note_stored([topic for _, topic in messages[: len(delivered)]], delivered, counted)
            del messages[: len(delivered)]

        while messages:
            try:
                await self.due.deliver([message for message, _ in messages], stored)
            except KeroloxError as error:
                again_s = ELSEWHERE_S if self.due.acts else FIRST_S
                await pause(self._clock, self._closing, self._retry.failed(error, again_s))
                if self._closing.is_set():
                    raise Stopped from None
            else:
                self._retry.succeeded()
                if messages and self._closing.is_set():
                    raise Stopped

    def _note_stored(self, topics: list[str], delivered: list[Delivered], counted: bool) -> None:
        for topic, count in Counter(topics).items():
            self.delivered[topic] += count
            if counted:
                self._counts.add(topic, -count)
        sizes: dict[str, list[int]] = {}
        for topic, place in delivered:
            if place is not None:
                self.last = place
                sizes.setdefault(topic, []).append(place[2])
        for topic, found in sizes.items():
            self.on_stored(topic, len(found), sum(found), len(found))

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)


def _skipped(physical: int) -> StoredMessage | None:
    log.warning("timer_message_skipped at=%d reason='no timer message lies there'", physical)
    return None


async def pause(clock: Clock, closing: asyncio.Event, delay_s: float) -> None:
    """Wait for this time, or until the timer closes."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(delay_s, lambda: None if done.done() else done.set_result(None))
    ends = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait((ends, done), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        ends.cancel()


def _keys(deletes: Iterable[StoredMessage | None]) -> dict[bytes, str]:
    """Return the recall keys, and the topics of their messages."""
    keys = {}
    for message in deletes:
        key = None if message is None else delete_key(message.packed_properties)
        if message is None or key is None:
            continue
        topic = real_topic(message.packed_properties)
        if is_of_topic(key, topic):
            keys[key] = topic
        else:
            log.warning(
                "deletion_ignored at=%d topic=%r key=%r reason='it names a message of another topic'",
                message.physical_offset, topic, key[:200],
            )  # fmt: skip
    return keys
