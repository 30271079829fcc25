"""Delivery of messages that were accepted earlier: delayed, timed, committed, and sent back.

These messages were acknowledged, so the rules of admission no longer apply. All of them follow one policy:

* A temporary failure (a full disk, a store that is being truncated) is retried with back-off: see
  :class:`Retry`.
* A permanent failure makes the message a dead letter, with its origin and the reason. It is stored under the
  dead-letter topic of its group, or of :data:`kerolox.protocol.reserved.UNDELIVERED_GROUP` if it belongs to
  no group. ``kerolox dlq`` lists it and sends it again. Later messages do not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from kerolox.broker import names
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock
from kerolox.errors import KeroloxError, Refused
from kerolox.metric_text import MetricText
from kerolox.protocol import properties as packed
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.message_id import offset_id
from kerolox.protocol.record import CRC_PROPERTY_BYTES
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX, UNDELIVERED_GROUP
from kerolox.store.errors import Unreadable
from kerolox.store.log.commit_log import Place
from kerolox.store.log.cursors import AppendRefused
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)

DEAD_LETTER_QUEUES = 1
FIRST_S = 0.1  # before the first retry; each further delay is twice as long...
LONGEST_S = 1.0  # ...up to this one
LINE_S = 60.0  # between two log lines about one failure

_ROOM_BYTES = CRC_PROPERTY_BYTES  # for the CRC that the log adds
_AT_RETRY_TOPIC = packed.marker(packed.RETRY_TOPIC)
_AT_ORIGIN_MESSAGE_ID = packed.marker(packed.ORIGIN_MESSAGE_ID)
# Properties of delayed messages, before and after their delivery; they are removed from a dead letter.
_AT_WAITING = (
    packed.AT_DELAY, packed.AT_TIMER_DELAY_S, packed.AT_TIMER_DELAY_MS, packed.AT_TIMER_DELIVER_MS,
    packed.marker(packed.TIMER_OUT_MS), packed.marker(packed.TIMER_DELETE_UNIQUE_KEY),
    packed.marker(packed.REAL_TOPIC), packed.marker(packed.REAL_QUEUE_ID), packed.AT_CRC32,
    packed.AT_TRANSACTION_PREPARED,
)  # fmt: skip
# Properties kept when a dead letter has no room for its own marks.
_ESSENTIAL = (packed.UNIQUE_KEY, packed.TAGS, packed.KEYS)


class StillSaving(KeroloxError):
    """The dead-letter topic is being saved. The same call succeeds after :meth:`wait`."""

    retriable = True

    def __init__(self, topics: Topics, topic: str) -> None:
        self._topics, self._topic = topics, topic
        super().__init__(f"topic {topic} is being written to disk")

    def wait(self) -> Awaitable[None]:
        """Wait for the save. Must be called before any other await. Raises NotSaved."""
        return self._topics.unsaved.saved(self._topic)

    async def over(self) -> KeroloxError | None:
        """Wait for the save. Return the error if the topic could not be saved, else None."""
        try:
            await self.wait()
        except NotSaved as error:
            return error
        return None


class Delivery:
    """Storage of messages that were accepted earlier."""

    def __init__(self, intake: Intake, topics: Topics, deleted: DeletedTopics, clock: Clock) -> None:
        self.set_aside = 0  # dead letters made since the start
        self._intake = intake
        self._topics = topics
        self._deleted = deleted
        self._clock = clock
        self._reported = 0  # dead letters at the last log line
        self._reported_s = -LINE_S

    def append_or_park(self, pending: PendingMessage) -> Place:
        """Append a message whose delays and times apply from now: a committed one, or one sent back."""
        if (why := self.refusal(pending.topic, pending.parked_at)) is not None:
            self.refuse(pending, why)
            return self.append_as_is(pending)
        topic, queue_id, properties = pending.topic, pending.queue_id, pending.properties
        try:
            return self._intake.append_or_park(pending)
        except (AppendRefused, Refused) as error:
            pending.topic, pending.queue_id, pending.properties = topic, queue_id, properties
            self.refuse(pending, str(error))
        return self.append_as_is(pending)

    def append_as_is(self, pending: PendingMessage) -> Place:
        """Append a message that is due, or its dead letter, with the reason in ``pending.refused``.

        Raises for temporary failures; :class:`StillSaving` is one of them.
        """
        if pending.refused is None and (why := self.refusal(pending.topic, pending.parked_at)) is not None:
            self.refuse(pending, why)
        if pending.refused is None:
            try:
                return self._intake.append_as_is(pending)
            except AppendRefused as error:
                self.refuse(pending, str(error))
        return self._store_dead_letter(pending)

    def refusal(self, topic: str, parked_at: int) -> str | None:
        """Return why a message parked at this place of the log can never be delivered to its topic; None if
        it can. An unknown topic alone is no reason: the table of a promoted follower may lack it."""
        if self._deleted.before.get(topic, 0) > parked_at >= 0 and self._topics.find(topic) is None:
            return f"topic {topic} was deleted while the message waited"
        return None

    def refuse(self, pending: PendingMessage, reason: str) -> None:
        """Turn a message into a dead letter. It counts when it is stored."""
        origin = pending.topic
        properties = names.believed_origin(origin, pending.properties)
        for mark in _AT_WAITING:
            properties = packed.remove(properties, mark)
        if packed.find(properties, _AT_RETRY_TOPIC) is None and origin:
            properties = _if_room(packed.replace(properties, packed.RETRY_TOPIC, origin), properties)
        if pending.parked_at >= 0 and packed.find(properties, _AT_ORIGIN_MESSAGE_ID) is None:
            at = offset_id(pending.store_host or pending.born_host, pending.parked_at)
            properties = _if_room(packed.replace(properties, packed.ORIGIN_MESSAGE_ID, at), properties)
        with_reason = packed.replace(properties, packed.RETRY_REASON, packed.plain_reason(reason))
        properties = _if_room(with_reason, properties)
        for mark in (packed.AT_WAIT, _AT_ORIGIN_MESSAGE_ID, _AT_RETRY_TOPIC):
            if _has_room(properties):
                break
            properties = packed.remove(properties, mark)  # left by an earlier copy; no room for it
        pending.properties = properties
        pending.topic = dead_letter_topic_of(origin)
        pending.queue_id = 0
        pending.refused = reason
        pending.prepared_offset = 0

    def metrics(self, out: MetricText) -> None:
        out.metric(
            "kerolox_undeliverable_messages_total", "counter",
            "Accepted messages that became dead letters instead of being delivered",
            [({}, self.set_aside)],
        )  # fmt: skip

    def _store_dead_letter(self, pending: PendingMessage) -> Place:
        self._topics.for_group(pending.topic, DEAD_LETTER_QUEUES)
        if pending.topic in self._topics.unsaved:
            raise StillSaving(self._topics, pending.topic)
        try:
            place = self._intake.append_as_is(pending)
        except AppendRefused as error:
            # Neither message nor dead letter fits: store only the properties that identify the message.
            log.error(
                "dead_letter_cut topic=%r parked_at=%d body_bytes=%d error=%r next='the whole message is in "
                "the log at this offset: kerolox store inspect'",
                pending.topic, pending.parked_at, len(pending.body), str(error),
            )  # fmt: skip
            pending.body, pending.properties = b"", _essential(pending.properties)
            place = self._intake.append_as_is(pending)
        self.set_aside += 1
        self._report(pending)
        return place

    def _report(self, pending: PendingMessage) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._reported_s < LINE_S:
            return  # counted in the next line
        count = self.set_aside - self._reported
        self._reported, self._reported_s = self.set_aside, now_s
        origin = packed.find(pending.properties, _AT_RETRY_TOPIC) or b""
        log.warning(
            "messages_undeliverable count=%d origin=%r dead_letters=%r parked_at=%d reason=%r next='inspect: "
            "kerolox dlq show %s; send again: kerolox dlq resend'",
            count, origin.decode("utf-8", "replace"), pending.topic, pending.parked_at, pending.refused,
            pending.topic.removeprefix(DEAD_LETTER_PREFIX),
        )  # fmt: skip


def dead_letter_topic_of(topic: str) -> str:
    """Return the dead-letter topic for messages of this topic: that of its group, or the one for topics
    without a group."""
    if topic.startswith(DEAD_LETTER_PREFIX):
        return topic
    if topic.startswith(RETRY_PREFIX):
        return names.dead_letter_topic(names.group_of_retry_topic(topic))
    return names.dead_letter_topic(UNDELIVERED_GROUP)


def _if_room(longer: bytes, shorter: bytes) -> bytes:
    return longer if _has_room(longer) else shorter


def _has_room(properties: bytes) -> bool:
    return len(properties) + _ROOM_BYTES <= PROPERTIES_BYTES_MAX


def _essential(properties: bytes) -> bytes:
    kept = b""
    for name in (*_ESSENTIAL, packed.RETRY_TOPIC, packed.ORIGIN_MESSAGE_ID, packed.RETRY_REASON):
        value = packed.find(properties, packed.marker(name))
        if value is not None:
            more = packed.append(kept, packed.pack({name: value.decode("utf-8", "replace")}))
            kept = more if len(more) <= PROPERTIES_BYTES_MAX // 2 else kept
    return kept


class Retry:
    """Consecutive failures of one delivery: the next delay, and one log line a minute."""

    __slots__ = ("_clock", "_event", "_line_s", "_since_s", "times")

    def __init__(self, clock: Clock, event: str) -> None:
        """``event``: the event word of the log lines, with the fields that name the delivery."""
        self.times = 0
        self._clock = clock
        self._event = event
        self._since_s = 0.0
        self._line_s: float | None = None  # time of the last log line; None: no line yet

    def failed(self, error: KeroloxError, at_least_s: float = FIRST_S, *, reported: bool = False) -> float:
        """Count a failure; how many seconds to wait before the next try. ``reported``: it has a log line."""
        now_s = self._clock.monotonic_s()
        self.times += 1
        if self.times == 1:
            self._since_s = now_s
        # Failed reads are counted and reported where they were read.
        reported |= isinstance(error, Unreadable)
        if not reported and (self._line_s is None or now_s - self._line_s >= LINE_S):
            self._line_s = now_s
            log.warning(
                "%s times=%d error=%r next='retried until it succeeds, at least every %g s'",
                self._event, self.times, str(error), max(at_least_s, LONGEST_S),
            )  # fmt: skip
        return max(at_least_s, min(FIRST_S * (1 << min(self.times - 1, 10)), LONGEST_S))

    def succeeded(self) -> None:
        times, self.times = self.times, 0
        if self._line_s is not None:
            self._line_s = None
            log.info(
                "%s resumed=true times=%d seconds=%.1f",
                self._event, times, self._clock.monotonic_s() - self._since_s,
            )  # fmt: skip
