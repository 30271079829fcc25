"""Reading and resending of dead letters. Works with Apache's servers, too.

Each resent copy is marked with the offset id of its dead letter. Before sending, the copy is searched by the
message's unique key. So a second run skips messages that an earlier run has sent, from any machine and also
after a send whose response was lost. Two concurrent runs do not detect each other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from kerolox.client.admin.calls import AdminCalls, BrokerQueue, NoSuchTopic
from kerolox.client.admin.groups import known_group
from kerolox.client.admin.lookups import FoundRecords, Lookups
from kerolox.client.errors import NotFound
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol import properties as names
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_MASK
from kerolox.protocol.headers.query import ViewMessageRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.limits import INT64_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_record
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX, TEMPLATE_TOPIC

MARK = "KEROLOX_RESENT_FROM"  # property of a copy: offset id of its dead letter
RUN_MARK = "KEROLOX_RESENT_BY"  # property of a copy sent with ``again``: id of the run
PRODUCER_GROUP = "CLI_PRODUCER"
TRIES = 3
TIMEOUT_S = 5.0
STORED = (0, 10, 11, 12)  # the last three: stored, but not flushed or replicated as required

# Properties about the transport of a message, which brokers and clients set again.
OF_THE_WAY = frozenset({
    names.DELAY, names.WAIT, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.RECONSUME_TIME,
    names.MAX_RECONSUME_TIMES, names.MSG_REGION, names.TRACE_ON, names.CLUSTER, names.CRC32, names.DUP_INFO,
    names.TIMER_DELAY_S, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.TIMER_DELETE_UNIQUE_KEY,
    names.TIMER_DELAY_LEVEL, names.START_DELIVER_TIME,
    names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.TRANSACTION_PREPARED_QUEUE_OFFSET,
    names.TRANSACTION_CHECK_TIMES, names.CHECK_IMMUNITY_S, names.TRANSACTION_ID,
    names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET,
    names.POP_CHECKPOINT, names.POP_CHECKPOINT_OFFSET, names.FIRST_POP_TIME,
    names.MIN_OFFSET, names.MAX_OFFSET, names.CONSUME_START_TIME, names.RETRY_REASON, MARK, RUN_MARK,
})  # fmt: skip


@dataclass
class DeadTopic:
    """Summary of a group's dead letters."""

    group: str
    messages: int
    oldest_ms: int | None
    newest_ms: int | None
    brokers: list[str]


@dataclass
class Span:
    """Range of dead letters in one queue, from ``start`` up to but not including ``end``."""

    queue: BrokerQueue
    start: int
    end: int


class CutShort(KeroloxError):
    """The run stopped early."""


class DeadLetters:
    """Searches and reads of dead letters."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin
        self.lookups = Lookups(admin)

    async def topics(self) -> list[DeadTopic]:
        """Return summaries of the dead-letter topics of all groups."""
        known = await self._admin.topics()
        return [await self._topic(topic) for topic in known if topic.startswith(DEAD_LETTER_PREFIX)]

    async def _topic(self, topic: str) -> DeadTopic:
        bounds = await self._admin.topic_stats(topic)
        oldest: list[int] = []
        for queue in await self._admin.queues(topic):
            found = [
                b for q, b in bounds.items() if (q.broker_name, q.queue_id) == (queue.broker, queue.queue_id)
            ]
            if found and found[0].max_offset > found[0].min_offset:
                try:
                    messages, _, _ = await self.lookups.pull(topic, queue, found[0].min_offset, count_max=1)
                except RequestFailed as error:
                    if error.response_code != ResponseCode.NO_PERMISSION:
                        raise
                    continue  # brokers before 4.6 made these topics unreadable
                oldest += [message.store_timestamp for message in messages]
        newest = [b.last_update_timestamp for b in bounds.values() if b.last_update_timestamp > 0]
        return DeadTopic(
            group=topic.removeprefix(DEAD_LETTER_PREFIX),
            messages=sum(b.max_offset - b.min_offset for b in bounds.values()),
            oldest_ms=min(oldest, default=None),
            newest_ms=max(newest, default=None),
            brokers=sorted({queue.broker_name for queue in bounds}),
        )

    async def by_key(self, group: str, key: str, begin_ms: int = 0, end_ms: int = INT64_MAX) -> FoundRecords:
        return await self.lookups.by_key(DEAD_LETTER_PREFIX + group, key, begin_ms=begin_ms, end_ms=end_ms)

    async def by_id(self, group: str, message_id: str) -> list[StoredMessage]:
        """Return the dead letters with a unique key, or the one at an offset id."""
        topic = DEAD_LETTER_PREFIX + group
        found = (await self.lookups.by_key(topic, message_id, unique=True)).messages
        if not found:
            message = await self.lookups.by_id(message_id, topic)
            if message.topic != topic:
                raise NotFound(
                    f"message {message_id} belongs to topic {message.topic}; it is not a dead letter of "
                    f"{group}"
                )
            found = [message]
        return found

    async def spans(self, group: str, begin_ms: int = 0, end_ms: int = INT64_MAX) -> list[Span]:
        """Return the ranges of dead letters stored between two times, as of now."""
        topic = DEAD_LETTER_PREFIX + group
        bounds = await self._admin.topic_stats(topic)
        found: list[Span] = []
        for queue in await self._admin.queues(topic):
            for name, reach in bounds.items():
                if (name.broker_name, name.queue_id) == (queue.broker, queue.queue_id):
                    start, end = reach.min_offset, reach.max_offset
                    if begin_ms > 0:
                        start = await self._first_since(topic, queue, begin_ms, start, end)
                    if end_ms < INT64_MAX:
                        end = await self._first_since(topic, queue, end_ms + 1, start, end)
                    found.append(Span(queue, start, end))
        return found

    async def _first_since(self, topic: str, queue: BrokerQueue, time_ms: int, low: int, high: int) -> int:
        """Return the first offset stored at or after ``time_ms``, by binary search in the messages.

        Brokers answer differently for times after the last message, so their search is not used.
        """
        while low < high:
            middle = (low + high) // 2
            messages, following, _ = await self.lookups.pull(topic, queue, middle, count_max=1)
            if not messages:
                if following <= middle:
                    return high
                low = min(following, high)  # deleted meanwhile
            elif messages[0].store_timestamp >= time_ms:
                high = middle
            else:
                low = messages[0].queue_offset + 1
        return low

    async def pages(self, group: str, spans: Sequence[Span]) -> AsyncIterator[list[StoredMessage]]:
        """Yield the dead letters of the spans, queue by queue, in store order."""
        for span in spans:
            offset = span.start
            while offset < span.end:
                messages, following, _ = await self.lookups.pull(
                    DEAD_LETTER_PREFIX + group, span.queue, offset
                )
                wanted = [message for message in messages if offset <= message.queue_offset < span.end]
                if wanted:
                    yield wanted
                if following <= offset:
                    raise CutShort(
                        f"{span.queue.broker} returned no message at offset {offset} of queue "
                        f"{span.queue.queue_id}, although the queue ends at {span.end}"
                    )
                offset = following


class Selection:
    """Dead letters of a group, by id, or by key and time, or all. ``total`` is known after the first page;
    ``cut`` is the reason why there may be more. ``wanted`` describes the conditions in an error."""

    def __init__(
        self,
        group: str,
        *,
        ids: Sequence[str] = (),
        key: str | None = None,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
        wanted: str = "",
    ) -> None:
        self.group = group.removeprefix(DEAD_LETTER_PREFIX)
        self.total = 0
        self.cut = ""
        self._ids = ids
        self._key = key
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._wanted = wanted

    async def pages(self, admin: AdminCalls) -> AsyncIterator[list[StoredMessage]]:
        """Yield the dead letters. Raises NotFound without such a group, or without a fitting dead letter."""
        try:
            async for page in self._pages(DeadLetters(admin)):
                yield page
        except NoSuchTopic:  # created with the first dead letter
            await known_group(admin, self.group)
        if self._wanted and not self.total:
            raise NotFound(f"group {self.group} has no dead letter that matches {self._wanted}")

    async def _pages(self, letters: DeadLetters) -> AsyncIterator[list[StoredMessage]]:
        if self._ids:
            by_id = [await letters.by_id(self.group, id) for id in self._ids]
            messages = list({message.offset_id: message for found in by_id for message in found}.values())
            self.total = len(messages)
            yield messages
        elif self._key is not None:
            found = await letters.by_key(self.group, self._key, self._begin_ms, self._end_ms)
            self.total, self.cut = len(found.messages), found.cut
            yield found.messages
        else:
            spans = await letters.spans(self.group, self._begin_ms, self._end_ms)
            self.total = sum(span.end - span.start for span in spans)
            async for page in letters.pages(self.group, spans):
                yield page


def origin_of(message: StoredMessage) -> str | None:
    """Return the topic from which the dead letter was consumed; None if unknown."""
    return message.properties.get(names.RETRY_TOPIC)


def reason_of(message: StoredMessage) -> str | None:
    """Return the last consumer's reason for the rejection; None if it gave none or the broker dropped it."""
    return message.properties.get(names.RETRY_REASON)


class Resend:
    """Resending of dead letters, one after the other. The counts are correct also after an error."""

    def __init__(
        self,
        admin: AdminCalls,
        group: str,
        *,
        to_retry: bool = False,
        to_topic: str | None = None,
        rate: float = 0.0,
        again: bool = False,
        dry_run: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.resent = 0  # in a dry run: the number that would be resent
        self.passed_over = 0
        self.at: StoredMessage | None = None  # the dead letter in progress
        self.progress: Callable[[], None] = lambda: None
        self._admin = admin
        self._lookups = Lookups(admin)
        self._group = group
        self._to_retry = to_retry
        self._to_topic = to_topic
        self._gap_s = 1 / rate if rate > 0 else 0.0
        self._again = again
        self._run = secrets.token_hex(8)
        self._dry_run = dry_run
        self._clock = clock
        self._next_s = clock.monotonic_s()
        self._queues: dict[str, list[BrokerQueue]] = {}
        self._turn = 0

    @property
    def done(self) -> int:
        return self.resent + self.passed_over

    async def page(self, messages: Sequence[StoredMessage]) -> None:
        """Resend these dead letters. Raises at the first failure; ``at`` is the failed dead letter."""
        marked = [False] * len(messages)
        if not self._again and messages:
            self.at = messages[0]
            marked = await asyncio.gather(*(self.is_resent(message) for message in messages))
        for message, known in zip(messages, marked, strict=True):
            self.at = message
            if known:
                self.passed_over += 1
            else:
                if not self._dry_run:
                    await self._pace()
                    await self._send(message)
                self.resent += 1
            self.progress()
        self.at = None

    def target(self, message: StoredMessage) -> str:
        """Return the topic to which a dead letter is resent."""
        if self._to_topic is not None:
            return self._to_topic
        if self._to_retry:
            return RETRY_PREFIX + self._group
        origin = origin_of(message)
        if origin is None:
            raise NotFound(
                f"the original topic of dead letter {message.offset_id} is unknown. Name a target: --to-topic"
            )
        return origin

    async def is_resent(self, message: StoredMessage) -> bool:
        """Return True if the target topic has a copy of the dead letter."""
        key = message.unique_key or message.offset_id
        try:
            found = await self._lookups.by_key(self.target(message), key, unique=True)
        except NoSuchTopic:
            return False
        return any(copy.properties.get(MARK) == message.offset_id for copy in found.messages)

    def properties(self, message: StoredMessage) -> dict[str, str]:
        """Return the properties of the copy: the message's, without transport properties, and the mark."""
        kept = {name: value for name, value in message.properties.items() if name not in OF_THE_WAY}
        if not self._to_retry:
            # A new message of the target topic. If it fails again, its dead letter refers to this copy.
            kept.pop(names.RETRY_TOPIC, None)
            kept.pop(names.ORIGIN_MESSAGE_ID, None)
        kept.setdefault(names.UNIQUE_KEY, message.offset_id)  # the copy is searched by this key
        kept |= {names.WAIT: "true", MARK: message.offset_id}
        return kept | {RUN_MARK: self._run} if self._again else kept

    async def _pace(self) -> None:
        wait_s = self._next_s - self._clock.monotonic_s()
        if wait_s > 0:
            await self._clock.sleep(wait_s)
        self._next_s = max(self._next_s, self._clock.monotonic_s() - 1.0) + self._gap_s

    async def _send(self, message: StoredMessage) -> None:
        topic = self.target(message)
        if topic not in self._queues:
            self._queues[topic] = await self._admin.queues(topic, for_sending=True)
            if not self._queues[topic]:
                raise NotFound(f"topic {topic} has no writable queue")
        queues = self._queues[topic]
        for left in reversed(range(TRIES)):
            queue = queues[self._turn % len(queues)]
            self._turn += 1
            try:
                answer = await self._send_to(topic, message, queue)
            except KeroloxError as error:
                again = error.retriable or (isinstance(error, RequestFailed) and error.can_retry)
                if not left or not again:
                    raise
                # The message may be stored although the response was lost.
                if await self.is_resent(message):
                    return
                continue
            if self._to_retry and not self.resent:
                await self._check_not_dead(queue, answer)
            return

    async def _send_to(self, topic: str, message: StoredMessage, queue: BrokerQueue) -> SendAnswer:
        header = SendRequestV2(
            producer_group=PRODUCER_GROUP,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),  # the body is sent as stored
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=pack(self.properties(message)).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker,
        )
        answer = await self._admin.ask(
            queue.address,
            RequestCode.SEND_MESSAGE_V2,
            header,
            message.body,
            ok=STORED,
            timeout_s=TIMEOUT_S,
        )
        return answer.header(SendAnswer)

    async def _check_not_dead(self, queue: BrokerQueue, answer: SendAnswer) -> None:
        """Raise CutShort if the broker made the copy a dead letter again.

        Brokers do so with messages sent to the retry topic of a group that consumes in order.
        """
        place = ViewMessageRequest(offset=read_offset_id(answer.msg_id).physical_offset)
        found = await self._admin.ask(queue.address, RequestCode.VIEW_MESSAGE_BY_ID, place)
        if decode_record(found.body).topic.startswith(DEAD_LETTER_PREFIX):
            raise CutShort(
                f"{queue.broker} made the copy a dead letter again, because group {self._group} consumes in "
                "order. Resend to the original topic, without --to-retry"
            )
