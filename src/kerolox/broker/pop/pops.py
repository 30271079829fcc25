"""Pops: the broker picks messages of a topic for a group, and hides them for a while.

A pop reads its queues one after the other, from memory, and goes on in a task when one of them is on disk.
The queue that it waits for is closed to other pops meanwhile. Without messages it is held.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable

from kerolox.access.needs.pop import POP as POP_RULE
from kerolox.broker import names
from kerolox.broker.base import Base
from kerolox.broker.bounds import OFFSETS_MAX, too_many
from kerolox.broker.consume.group_reads import GroupRead, GroupReads
from kerolox.broker.consume.message_waits import (
    ANY_QUEUE,
    WAIT_MS_MAX,
    MessageWaits,
    PropertyFilter,
    Wait,
    WaitPoint,
)
from kerolox.broker.consume.read_filter import ReadRefused
from kerolox.broker.members.compiled_filters import NotCompiled
from kerolox.broker.pop.checkpoint import QueueKey
from kerolox.broker.pop.copies import with_handle
from kerolox.broker.pop.keeper import Keeper
from kerolox.broker.pop.orders import Orders
from kerolox.broker.pop.outstanding import PopQueue
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest
from kerolox.front.handlers import refusal
from kerolox.front.requests import Answer, HeldRequest, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.pop import PopAnswer, PopRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.pop.answer_texts import (
    QueueOffsets,
    message_offset_text,
    order_count_text,
    start_offset_text,
)
from kerolox.protocol.pop.handle import ORDER_QUEUE, Handle
from kerolox.protocol.pop.retry_topics import NORMAL, V1, V2, form_of, retry_topic
from kerolox.protocol.record import decode_records, encode_message
from kerolox.protocol.record_scan import QUEUE_OFFSET, scan
from kerolox.store.errors import Cold
from kerolox.store.queue.reading import QueueRead, ReadStatus
from kerolox.store.tables.offsets import ConsumerOffsets

MESSAGES_MAX = 32  # of one request, as RocketMQ's
ANSWER_BYTES_MAX = 4 << 20  # of one answer, beyond its first queue
LATE_MS = 500  # a request that is older than its poll time by more is not served
EARLY_MS = 50  # a held request is answered so much before its poll time is over
INIT_MIN = 0
READS_MAX = 8  # of one queue by one request, as long as its filter matches nothing
POP = "pop"

_PASSED = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING, ReadStatus.OFFSET_FOUND_NULL)


class Reading:
    """Messages that a pop has found so far, and queues that it still reads."""

    __slots__ = (
        "bytes_left",
        "check",
        "counts",
        "found",
        "has_more",
        "left",
        "parts",
        "pop_ms",
        "rest",
        "revive_queue",
        "todo",
    )

    def __init__(self, check: GroupRead, todo: list[tuple[GroupRead, int]], count_max: int) -> None:
        self.check = check
        self.todo = todo  # topics and queues still to be read
        self.found: list[QueueOffsets] = []
        self.parts: list[bytes] = []
        self.counts: list[str] = []  # items of orderCountInfo
        self.left = count_max
        self.bytes_left = ANSWER_BYTES_MAX
        self.rest = 0
        self.has_more = False  # the filter has matched nothing yet, and not all messages were read
        self.pop_ms = 0
        self.revive_queue = 0


class Pops:
    """Handler of POP_MESSAGE."""

    def __init__(
        self,
        base: Base,
        reads: GroupReads,
        waits: MessageWaits,
        topics: Topics,
        offsets: ConsumerOffsets,
        keeper: Keeper,
        orders: Orders,
    ) -> None:
        self._store = base.store
        self._options = base.options
        self._clock = base.clock
        self._leadership = base.leadership
        self._reads = reads
        self._waits = waits
        self._topics = topics
        self._offsets = offsets
        self._keeper = keeper
        self._orders = orders
        self._cold: set[asyncio.Task[None]] = set()
        self._rights = 0  # number of changes of rights
        base.guard.book.on_change.append(self._rights_changed)

    def _rights_changed(self) -> None:
        """Answer held pops without messages: the client's next one is checked again."""
        self._rights += 1
        self._waits.wake_all()

    async def close(self) -> None:
        for task in list(self._cold):
            task.cancel()
        if self._cold:
            await asyncio.gather(*self._cold, return_exceptions=True)

    @serves(RequestCode.POP_MESSAGE, PopRequest, POP_RULE, lane="pull")
    def pop(self, request: Request[PopRequest]) -> Answer | Later | None:
        """Take messages of a topic, and hide them from other members of the group for a while."""
        try:
            return self._try(request)
        except NotCompiled as error:
            unknown = error
            return lambda: self._prepared(request, unknown)

    async def _prepared(self, request: Request[PopRequest], unknown: NotCompiled) -> Answer | None:
        await self._reads.prepare(unknown)
        return self._try(request)

    def _try(self, request: Request[PopRequest]) -> Answer | None:
        try:
            read = self.check(request)
        except (ReadRefused, InvalidRequest) as refused:
            return Answer(code=refused.code, header=PopAnswer(), remark=str(refused))
        header = request.header
        reading = Reading(read, self._targets(header, read), header.max_msg_nums)
        reading.pop_ms = self._clock.wall_ms()
        reading.revive_queue = ORDER_QUEUE if header.order else self._keeper.records.next_queue()
        try:
            self._read_all(header, reading)
        except Cold:
            task = asyncio.get_running_loop().create_task(self._read_cold(request, reading))
            self._cold.add(task)
            task.add_done_callback(self._cold.discard)
            return None
        return self._answer(request, reading)

    # --- checks, in RocketMQ's order ---------------------------------------------------------------------

    def check(self, request: Request[PopRequest]) -> GroupRead:
        """Raises ReadRefused, InvalidRequest or NotCompiled."""
        header, options, reads = request.header, self._options, self._reads
        now_ms = self._clock.wall_ms()
        born_ms = header.born_time or now_ms
        if now_ms - born_ms - header.poll_time > LATE_MS:
            raise ReadRefused(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{options.broker_name}] pop message is timeout"
            )
        check_pops(self._leadership.leads and self._keeper.leads, options.timer_wheel)
        reads.check_broker()
        if not 0 < header.max_msg_nums <= MESSAGES_MAX:
            raise InvalidRequest(
                f"the pop asks for {header.max_msg_nums} messages, expected 1 to {MESSAGES_MAX}"
            )
        if not 0 <= header.invisible_time <= options.timer_delay_s_max * 1000:
            raise InvalidRequest(
                f"invisibleTime {header.invisible_time} ms, expected 0 to {options.timer_delay_s_max * 1000} "
                "(timerMaxDelaySec)"
            )
        topic = reads.topic(header.topic)
        if header.queue_id >= topic.read_queue_nums:
            raise InvalidRequest(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{request.caller.address}]"
            )
        group = reads.group(header.consumer_group)
        filter = reads.filter_in_request(header.topic, header.exp, header.exp_type)
        if group.retry_queue_nums > 0 and self._topics.find(names.retry_topic(group.group_name)) is None:
            # Tools look for a group at the brokers of this topic.
            self._topics.for_group(names.retry_topic(group.group_name), group.retry_queue_nums)
        return GroupRead(topic, group, filter)

    # --- targets -----------------------------------------------------------------------------------------

    def _targets(self, header: PopRequest, read: GroupRead) -> list[tuple[GroupRead, int]]:
        """Return topics and queues in the order in which they are read: those of the topic from a random one
        on, and the retry topic before or after them."""
        draw = random.randrange(100)
        normal = [(read, header.queue_id)]
        if header.queue_id < 0:
            normal = _from(draw, read, read.topic.read_queue_nums)
        if header.order:
            return normal
        retry = self._retry_topic(header.topic, header.consumer_group, draw)
        if retry is None:
            return normal
        retries = _from(draw, GroupRead(retry, read.group, read.filter), retry.read_queue_nums)
        first = draw < self._options.pop_retry_percent
        return retries + normal if first else normal + retries

    def _retry_topic(self, topic: str, group: str, draw: int) -> TopicConfig | None:
        form = V1
        if self._options.retry_v2 and not (self._options.read_retry_v1 and draw % 2 == 0):
            form = V2
        return self._topics.find(retry_topic(topic, group, form))

    # --- reading -----------------------------------------------------------------------------------------

    def _read_all(self, header: PopRequest, reading: Reading) -> None:
        """Read the remaining queues. Raises Cold at one that is not in memory."""
        while reading.todo:
            read, queue_id = reading.todo[0]
            self._read_queue(header, reading, read, queue_id)
            del reading.todo[0]

    async def _read_cold(self, request: Request[PopRequest], reading: Reading) -> None:
        header = request.header
        try:
            while True:
                try:
                    self._read_all(header, reading)
                    break
                except Cold:
                    await self._read_queue_cold(header, reading)
                    del reading.todo[0]
            # Without messages, look again: some may have arrived while a thread was reading.
            answer = self._answer(request, reading) if reading.found else self._try(request)
        except Exception as error:
            answer = refusal(error, request)
        if answer is not None:
            request.answer(answer)

    def _read_queue(self, header: PopRequest, reading: Reading, read: GroupRead, queue_id: int) -> None:
        queue = self._state_to_read(header, reading, read, queue_id)
        if queue is None:
            return
        start = begin = queue.next_offset
        for _ in range(READS_MAX):
            found = self._reads.read(read, queue_id, begin, reading.left, reading.bytes_left)
            if not self._goes_on(header, queue, found):
                break
            begin = queue.next_offset
        self._take(header, reading, read, queue, start, found)

    async def _read_queue_cold(self, header: PopRequest, reading: Reading) -> None:
        """Read a queue from the disk, while it is closed to other pops."""
        read, queue_id = reading.todo[0]
        try:
            queue = self._state_to_read(header, reading, read, queue_id)
        except Cold:
            await self._begin_cold(read, queue_id)
            queue = self._state_to_read(header, reading, read, queue_id)
        if queue is None:
            return
        queue.is_read = True
        try:
            start = begin = queue.next_offset
            for _ in range(READS_MAX):
                found = await self._reads.read_in_thread(
                    read, queue_id, begin, reading.left, reading.bytes_left
                )
                if queue.next_offset != begin or not self._keeper.has(queue):
                    return  # reset meanwhile, deleted, or another broker leads
                if not self._goes_on(header, queue, found):
                    break
                begin = queue.next_offset
        finally:
            queue.is_read = False
        self._take(header, reading, read, queue, start, found)

    def _goes_on(self, header: PopRequest, queue: PopQueue, found: QueueRead) -> bool:
        """Pass messages that nobody gets. Return whether there are more to read."""
        if (
            found.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY)
            and found.max_offset
        ):
            if found.next_offset < queue.next_offset:  # the queue is a new one, or was cut
                self._keeper.outstanding.reset(queue, found.next_offset)
                self._offsets.commit(*queue.key, found.next_offset)
            else:
                self._keeper.outstanding.skip(queue, found.next_offset)
            return True
        if found.status in _PASSED:
            self._keeper.outstanding.skip(queue, found.next_offset)
            return found.next_offset < found.max_offset
        return False

    def _state_to_read(
        self, header: PopRequest, reading: Reading, read: GroupRead, queue_id: int
    ) -> PopQueue | None:
        """Return the state of a queue to be read; None if nothing is to be read there now. Raises Cold if the
        first offset of the group is not known from memory."""
        topic, group = read.topic.topic_name, read.group.group_name
        key = QueueKey(topic, group, queue_id)
        outstanding = self._keeper.outstanding
        queue = outstanding.queues.get(key)
        reset = self._reads.take_reset(topic, group, queue_id)
        if reset is not None:
            self._orders.forget(key)
            self._offsets.commit(topic, group, queue_id, reset)
            if queue is not None:
                outstanding.reset(queue, reset)
        committed = self._offsets.offset(topic, group, queue_id)
        if committed < 0:
            committed = self._first_offset(header, topic, queue_id)
            self._begin(key, committed)
        queue = outstanding.queue(key, committed, self._clock.monotonic_s())
        if header.order and not queue.steps:
            outstanding.reset(queue, committed)
        elif committed > queue.next_offset:
            outstanding.reset(queue, committed)  # a member that pulls has committed more
        rest = max(0, self._reads.bounds(topic, queue_id)[1] - queue.next_offset)
        if queue.is_read:
            reading.rest += 0 if header.order else rest
            return None
        options = self._options
        if options.pop_threshold and queue.out > options.pop_threshold_messages:
            reading.rest += rest
            return None
        if header.order and self._orders.is_blocked(key, header.attempt_id, header.invisible_time):
            return None
        if reading.left <= 0 or (reading.bytes_left <= 0 and reading.found):
            reading.rest += rest
            return None
        return queue

    def _take(
        self,
        header: PopRequest,
        reading: Reading,
        read: GroupRead,
        queue: PopQueue,
        start: int,
        found: QueueRead,
    ) -> None:
        """Take what was found out of the queue."""
        keeper, key = self._keeper, queue.key
        start = min(start, queue.next_offset)
        if found.status is ReadStatus.FOUND:
            begin = queue.next_offset
            offsets, records = _offsets_of(found, begin)
            form = form_of(key.topic)
            if header.order:
                counts = self._orders.pop(
                    key, begin, offsets, reading.pop_ms, header.invisible_time, header.attempt_id
                )
                reading.counts.append(order_count_text(form, key.queue_id, offsets, counts))
            elif (
                keeper.outstanding.pop(
                    queue, start, offsets, found.next_offset, reading.pop_ms, header.invisible_time,
                    reading.revive_queue, self._clock.monotonic_s(),
                )
                is None
            ):  # fmt: skip
                reading.rest += max(0, found.max_offset - queue.next_offset)
                return
            if form == NORMAL or self._options.actual_retry_topic:
                reading.parts += records
            else:
                reading.parts += self._with_handles(header, reading, records, form, start)
            reading.found.append(QueueOffsets(form, key.queue_id, start, offsets))
            reading.left -= found.count
            reading.bytes_left -= found.size_bytes
        elif found.status in _PASSED and found.next_offset < found.max_offset:
            reading.has_more = True
        self._reads.note(read, key.queue_id, found)
        reading.rest += max(0, found.max_offset - found.next_offset)
        keeper.changed(queue)

    def _with_handles(
        self, header: PopRequest, reading: Reading, records: list[bytes], form: str, start: int
    ) -> list[bytes]:
        """Return the records of retries under their normal topic, with their handles."""
        found = []
        for message in decode_records(b"".join(records)):
            handle = Handle(
                start, reading.pop_ms, header.invisible_time, reading.revive_queue, form,
                self._options.broker_name, message.queue_id, message.queue_offset,
            )  # fmt: skip
            found.append(_renamed(message, header.topic, str(handle)))
        return found

    # --- the first offset of a group ---------------------------------------------------------------------

    def _begin(self, key: QueueKey, offset: int) -> None:
        if not self._offsets.has_room(*key, OFFSETS_MAX):
            raise too_many("offsets of groups", "OFFSETS_MAX", OFFSETS_MAX)
        self._offsets.commit(*key, offset)

    def _first_offset(self, header: PopRequest, topic: str, queue_id: int) -> int:
        """Return where a new group begins. Raises Cold if that depends on an entry that is not in memory."""
        low, high = self._reads.bounds(topic, queue_id)
        if header.init_mode == INIT_MIN or form_of(topic) != NORMAL:
            return low
        queues = self._store.queues
        queue = queues.find(topic, queue_id)
        if low <= 0 and self._options.pop_from_memory and (queue is None or queues.is_in_memory(queue, 0)):
            return 0
        return max(0, high - 1)

    async def _begin_cold(self, read: GroupRead, queue_id: int) -> None:
        topic, group = read.topic.topic_name, read.group.group_name
        queues = self._store.queues
        queue = queues.find(topic, queue_id)
        is_hot = queue is None or await self._store.readers.read(
            lambda: queues.is_in_memory(queue, 0, may_wait=True), limited=True
        )
        if self._offsets.offset(topic, group, queue_id) < 0:  # otherwise another pop was first
            first = 0 if is_hot else max(0, queues.max_offset(topic, queue_id) - 1)
            self._begin(QueueKey(topic, group, queue_id), first)

    # --- answers -----------------------------------------------------------------------------------------

    def _answer(self, request: Request[PopRequest], reading: Reading) -> Answer | None:
        header = request.header
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not reading.found:
            held = ResponseCode.POLLING_TIMEOUT if reading.has_more else self._hold(request, reading.check)
            if held is None:
                return None
            code, remark = held, "NO_MESSAGE_IN_QUEUE"
        elif reading.rest > 0:
            self._waits.wake_next(header.topic, max(header.queue_id, ANY_QUEUE), share_of(header))
        return Answer(
            code=code,
            header=PopAnswer(
                pop_time=reading.pop_ms,
                invisible_time=header.invisible_time,
                revive_qid=reading.revive_queue,
                rest_num=reading.rest,
                start_offset_info=start_offset_text(reading.found),
                msg_offset_info=message_offset_text(reading.found),
                order_count_info=";".join(reading.counts) if header.order else None,
            ),
            body=reading.parts,
            remark=remark,
        )

    def _hold(self, request: Request[PopRequest], read: GroupRead) -> ResponseCode | None:
        """Hold a request without messages. Return the code of its answer if that is not possible."""
        header = request.header
        if request.caller.is_closed:
            return ResponseCode.POLLING_TIMEOUT
        wait_s = self.wait_s(header.born_time, header.poll_time)
        if wait_s is None or not self._keeper.leads:
            return ResponseCode.POLLING_TIMEOUT

        rights = self._rights

        def resume() -> None:
            if request.caller.is_closed:
                return
            try:
                answer = self._try(request) if rights == self._rights else _nothing("RIGHTS_CHANGED")
            except NotCompiled:
                answer = _nothing("FILTER_NOT_READY")
            except Exception as error:
                answer = refusal(error, request)
            if answer is not None:
                HeldRequest.of(request).answer(answer)

        points = self.points(header.topic, header.consumer_group, header.queue_id, order=header.order)
        wait = Wait(
            points,
            self._clock.monotonic_s() + wait_s,
            resume,
            now_and_then(read.filter.by_properties, self._options.pop_look_every),
            request.caller,
            share_of(header),
        )
        options = self._options
        count = self._waits.count(*points[0][:2], wait.share)
        is_full = self._waits.held >= options.pops_held_max or count > options.pops_held_of_queue_max
        if is_full or not self._waits.add(wait):
            return ResponseCode.POLLING_FULL
        return None

    def wait_s(self, born_ms: int, poll_ms: int) -> float | None:
        """Return how long a request may be held; None if not at all."""
        if poll_ms <= 0:
            return None
        now_ms = self._clock.wall_ms()
        left_ms = (born_ms or now_ms) + poll_ms - EARLY_MS - now_ms
        return None if left_ms <= 0 else min(left_ms, WAIT_MS_MAX) / 1000

    def points(self, topic: str, group: str, queue_id: int, *, order: bool) -> tuple[WaitPoint, ...]:
        """Return where messages for a request arrive: at its queues, and in the retry topics of its group."""
        own = WaitPoint(topic, max(queue_id, ANY_QUEUE))
        if order:
            return (own,)
        return (own, *(WaitPoint(retry_topic(topic, group, form), ANY_QUEUE) for form in (V1, V2)))


def _nothing(why: str) -> Answer:
    return Answer(code=ResponseCode.POLLING_TIMEOUT, header=PopAnswer(), remark=why)


def check_pops(leads: bool, has_timer: bool) -> None:
    """Raise ReadRefused if this broker serves no pops."""
    if not has_timer:
        raise ReadRefused(
            ResponseCode.SYSTEM_ERROR, "pop message is not supported while timerWheelEnable is false"
        )
    if not leads:
        raise ReadRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a follower: pop from the leader"
        )


def share_of(header: PopRequest) -> Hashable:
    """Return the share of a pop: pops of a group with the same queue take turns."""
    return share_at(POP, header.topic, header.consumer_group, header.queue_id)


def share_at(kind: str, topic: str, group: str, queue_id: int) -> Hashable:
    """Return the share of waits of one kind for a queue as asked."""
    return (kind, topic, group, max(queue_id, ANY_QUEUE))


def now_and_then(filter: PropertyFilter | None, every: int) -> PropertyFilter | None:
    """Return a filter that lets each message of so many pass, so that a group passes those it filters out."""
    if filter is None or every <= 0:
        return filter
    seen = 0

    def wants(properties: bytes) -> bool:
        nonlocal seen
        seen += 1
        return seen % every == 0 or filter(properties)

    return wants


def _from(draw: int, read: GroupRead, queues: int) -> list[tuple[GroupRead, int]]:
    return [(read, (draw + number) % queues) for number in range(queues)]


def _offsets_of(found: QueueRead, begin: int) -> tuple[list[int], list[bytes]]:
    """Return the queue offsets of the messages that were found, and their records."""
    if found.count == found.next_offset - begin:
        return list(range(begin, found.next_offset)), found.parts
    data = b"".join(found.parts)
    return [entry[QUEUE_OFFSET] for entry in scan(data).entries], [data]


def _renamed(message: StoredMessage, topic: str, handle: str) -> bytes:
    try:
        return with_handle(message, topic, handle)
    except InvalidRequest:  # no room for the handle: the client makes it itself
        return encode_message(message)
