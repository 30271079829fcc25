"""Acknowledgements and changed invisible times of popped messages.

A handle counts only for what this broker knows: a message that is out, of this group and queue, from the pop
that the handle names. Handles of an earlier process are known by their records in the log; they count until
their time is over, and once.
"""

from __future__ import annotations

from kerolox.access.needs.pop import ACK, BATCH_ACK, CHANGE_INVISIBLE_TIME
from kerolox.broker.base import Base
from kerolox.broker.consume.read_filter import ReadRefused
from kerolox.broker.pop.checkpoint import Checkpoint, QueueKey, Stored
from kerolox.broker.pop.keeper import Keeper
from kerolox.broker.pop.orders import Orders
from kerolox.broker.pop.pops import check_pops
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest, KeroloxError, ProtocolError, Refused
from kerolox.front.handlers import refusal
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.pop import BatchAck, BatchAckRequest
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import pop as headers
from kerolox.protocol.pop.handle import ORDER_QUEUE, Handle
from kerolox.protocol.pop.retry_topics import NORMAL, V1, V2, real_topic
from kerolox.store.tables.offsets import ConsumerOffsets

ACKS_MAX = 4096  # checkpoints of one batch request
USED_MAX = 100_000  # handles of an earlier process that were used

_Used = tuple[QueueKey, int, int, int]  # queue, start offset, pop time, offset


class Acks:
    """Handlers of ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME."""

    def __init__(
        self, base: Base, topics: Topics, offsets: ConsumerOffsets, keeper: Keeper, orders: Orders
    ) -> None:
        self._store = base.store
        self._options = base.options
        self._clock = base.clock
        self._leadership = base.leadership
        self._topics = topics
        self._offsets = offsets
        self._keeper = keeper
        self._orders = orders
        self._used: dict[_Used, int] = {}  # until when

    # --- requests ----------------------------------------------------------------------------------------

    @serves(RequestCode.ACK_MESSAGE, headers.AckRequest, ACK, lane="ack")
    def ack(self, request: Request[headers.AckRequest]) -> Answer:
        """Acknowledge a popped message."""
        asked = request.header
        self._check(asked.topic, asked.queue_id)
        low, high = self._bounds(asked.topic, asked.queue_id)
        if not low <= asked.offset <= high:
            raise _no_message(asked.topic, asked.queue_id, asked.offset, low, high)
        handle = Handle.parse(asked.extra_info)
        key = QueueKey(asked.topic, asked.consumer_group, asked.queue_id)
        if handle.revive_queue == ORDER_QUEUE:
            if not self._orders.ack(key, asked.offset, handle.pop_time):
                raise _not_of_pop(key, asked.offset)
        else:
            self._ack(key, handle, [asked.offset])
        return Answer()

    @serves(RequestCode.BATCH_ACK_MESSAGE, None, BATCH_ACK, lane="ack")
    def batch_ack(self, request: Request[None]) -> Answer:
        """Acknowledge many popped messages."""
        self._check_pops()
        try:
            batch = BatchAckRequest.decode(request.body) if request.body else BatchAckRequest()
            acks = [(ack, ack.offsets) for ack in batch.acks]
        except ProtocolError as error:
            raise InvalidRequest(f"batch of acknowledgements: {error}") from None
        if not acks:
            raise Refused(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
        if len(acks) > ACKS_MAX:
            raise InvalidRequest(f"batch of {len(acks)} acknowledgements: ACKS_MAX is {ACKS_MAX}")
        failed: Refused | None = None
        for ack, offsets in acks:
            failed = self._ack_some(ack, offsets, batch.broker_name or self._options.broker_name) or failed
        if failed is not None:
            raise failed
        return Answer()

    def _ack_some(self, ack: BatchAck, offsets: list[int], broker_name: str) -> Refused | None:
        """Acknowledge messages of one pop. Return the refusal of an ordered one."""
        group, topic, form = ack.consumer_group or "", ack.topic or "", ack.retry or NORMAL
        if form not in (NORMAL, V1, V2):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"retry form {form[:20]!r}, expected 0, 1 or 2")
        key = QueueKey(real_topic(topic, group, form), group, ack.queue_id)
        if self._topics.find(key.topic) is None or self._store.queues.find(key.topic, key.queue_id) is None:
            return None
        low, high = self._bounds(key.topic, key.queue_id)
        inside = [offset for offset in offsets if low <= offset <= high]
        if not inside:
            return None
        handle = Handle(
            ack.start_offset, ack.pop_time, ack.invisible_time, ack.revive_queue_id, form, broker_name,
            ack.queue_id, inside[0],
        )  # fmt: skip
        if handle.revive_queue != ORDER_QUEUE:
            self._ack(key, handle, inside)
            return None
        failed = None
        for offset in inside:
            if not self._orders.ack(key, offset, ack.pop_time):
                failed = _not_of_pop(key, offset)
        return failed

    @serves(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        headers.ChangeInvisibleTimeRequest,
        CHANGE_INVISIBLE_TIME,
        lane="ack",
    )
    def change(self, request: Request[headers.ChangeInvisibleTimeRequest]) -> Answer | None:
        """Hide a popped message for longer, or give it back sooner."""
        asked = request.header
        self._check(asked.topic, asked.queue_id)
        low, high = self._bounds(asked.topic, asked.queue_id)
        if not low <= asked.offset < high:
            raise _no_message(asked.topic, asked.queue_id, asked.offset, low, high)
        limit_ms = self._options.timer_delay_s_max * 1000
        if not 0 <= asked.invisible_time <= limit_ms:
            raise InvalidRequest(
                f"invisibleTime {asked.invisible_time} ms, expected 0 to {limit_ms} (timerMaxDelaySec)"
            )
        handle = Handle.parse(asked.extra_info)
        key = QueueKey(asked.topic, asked.consumer_group, asked.queue_id)
        if handle.revive_queue == ORDER_QUEUE:
            return self._change_ordered(key, handle, asked)
        checkpoint = self._find(key, handle)
        if checkpoint is None:
            return self._change_earlier(request, key, handle)
        if not checkpoint.has_out(asked.offset):
            raise _not_out(key, asked.offset)
        return self._change(request, checkpoint)

    # --- messages of this process ------------------------------------------------------------------------

    def _find(self, key: QueueKey, handle: Handle) -> Checkpoint | None:
        queue = self._keeper.outstanding.queues.get(key)
        if queue is None or handle.broker_name != self._options.broker_name:
            return None
        return queue.find(handle.start_offset, handle.pop_time)

    def _ack(self, key: QueueKey, handle: Handle, offsets: list[int]) -> None:
        """Acknowledge messages. Handles that do not count are ignored, as in RocketMQ."""
        checkpoint = self._find(key, handle)
        if checkpoint is None:
            counting = [offset for offset in offsets if self._use(key, handle, offset)]
            if counting:
                self._keeper.records.ack_of(handle, key.topic, key.group, counting)
                self._keeper.written_soon()
            return
        for offset in offsets:
            if self._keeper.outstanding.ack(checkpoint, offset):
                self._keeper.acked(checkpoint, offset)

    def _change(
        self, request: Request[headers.ChangeInvisibleTimeRequest], checkpoint: Checkpoint
    ) -> Answer | None:
        asked, keeper = request.header, self._keeper
        outstanding, offset = keeper.outstanding, asked.offset
        is_stored = checkpoint.stored is not Stored.NO
        made = outstanding.change(
            checkpoint, offset, self._clock.wall_ms(), asked.invisible_time, self._clock.monotonic_s()
        )
        queue = outstanding.queues[made.key]
        if not is_stored:
            keeper.changed(queue)
            return _changed(made)
        try:
            end = keeper.records.checkpoint(made)
            keeper.records.acks(checkpoint, [offset])
        except KeroloxError:
            outstanding.undo_change(checkpoint, offset, made)
            raise
        outstanding.storing(made)

        def written(error: KeroloxError | None) -> None:
            if error is None:
                outstanding.stored(made, end)
                outstanding.settle(checkpoint, offset, end)
                request.answer(_changed(made))
            else:
                outstanding.undo_change(checkpoint, offset, made)
                request.answer(refusal(error, request))
            keeper.changed(queue)

        keeper.written_soon(written)
        return None

    # --- messages of an earlier process ------------------------------------------------------------------

    def _use(self, key: QueueKey, handle: Handle, offset: int, *, gives_out: bool = False) -> bool:
        """Return whether the handle of an earlier process counts for a message, and use it up. It does not if
        its time is over; nor to give the message out (``gives_out``) if it is popped again anyway."""
        now_ms = self._clock.wall_ms()
        keeper = self._keeper
        due_ms = handle.pop_time + handle.invisible_time
        if handle.broker_name != self._options.broker_name or due_ms <= now_ms:
            return False
        if (
            not 0 <= handle.start_offset <= offset
            or not 0 <= handle.revive_queue < self._options.revive_queues
        ):
            return False
        if handle.pop_time > max(keeper.since_ms, keeper.handed_over_ms):
            return False  # this process would know it
        if handle.invisible_time > self._options.timer_delay_s_max * 1000:
            return False
        queue = keeper.outstanding.queues.get(key)
        passed = self._offsets.offset(*key) if queue is None else queue.first_offset
        if gives_out and handle.pop_time <= keeper.since_ms and offset >= passed:
            return False  # its checkpoint was not stored
        used = (key, handle.start_offset, handle.pop_time, offset)
        if used in self._used:
            return False
        if len(self._used) >= USED_MAX:
            self._used = {one: until for one, until in self._used.items() if until > now_ms}
            while len(self._used) >= USED_MAX:
                del self._used[next(iter(self._used))]
        self._used[used] = due_ms
        return True

    def _change_earlier(
        self, request: Request[headers.ChangeInvisibleTimeRequest], key: QueueKey, handle: Handle
    ) -> Answer | None:
        asked, keeper = request.header, self._keeper
        if not self._use(key, handle, asked.offset, gives_out=True):
            raise _not_out(key, asked.offset)
        now_s = self._clock.monotonic_s()
        queue = keeper.outstanding.queue(key, max(0, self._offsets.offset(*key)), now_s)
        made = keeper.outstanding.adopt(
            queue, asked.offset, self._clock.wall_ms(), asked.invisible_time, handle.revive_queue, now_s
        )
        try:
            end = keeper.records.checkpoint(made)
            keeper.records.ack_of(handle, key.topic, key.group, [asked.offset])
        except KeroloxError:
            keeper.outstanding.ack(made, asked.offset)
            self._used.pop((key, handle.start_offset, handle.pop_time, asked.offset), None)
            raise
        keeper.outstanding.storing(made)

        def written(error: KeroloxError | None) -> None:
            if error is None:
                keeper.outstanding.stored(made, end)
                request.answer(_changed(made))
            else:
                keeper.outstanding.ack(made, asked.offset)
                self._used.pop((key, handle.start_offset, handle.pop_time, asked.offset), None)
                request.answer(refusal(error, request))
            keeper.changed(queue)

        keeper.written_soon(written)
        return None

    # --- ordered -----------------------------------------------------------------------------------------

    def _change_ordered(
        self, key: QueueKey, handle: Handle, asked: headers.ChangeInvisibleTimeRequest
    ) -> Answer:
        visible_ms = self._clock.wall_ms() + asked.invisible_time
        if not self._orders.change(key, asked.offset, handle.pop_time, visible_ms):
            return Answer(header=headers.ChangeInvisibleTimeAnswer())
        return Answer(
            header=headers.ChangeInvisibleTimeAnswer(
                pop_time=handle.pop_time,
                invisible_time=visible_ms - handle.pop_time,
                revive_qid=ORDER_QUEUE,
            )
        )

    # --- checks ------------------------------------------------------------------------------------------

    def _check_pops(self) -> None:
        check_pops(self._leadership.leads and self._keeper.leads, self._options.timer_wheel)

    def _check(self, topic: str, queue_id: int) -> None:
        self._check_pops()
        config = self._topics.known(topic, f"topic[{topic}] not exist, apply first please!")
        if not 0 <= queue_id < config.read_queue_nums:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._store.queues.bounds(topic, queue_id)


def _changed(made: Checkpoint) -> Answer:
    return Answer(
        header=headers.ChangeInvisibleTimeAnswer(
            pop_time=made.pop_ms, invisible_time=made.invisible_ms, revive_qid=made.revive_queue
        )
    )


def _no_message(topic: str, queue_id: int, offset: int, low: int, high: int) -> ReadRefused:
    return ReadRefused(
        ResponseCode.NO_MESSAGE,
        f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
    )


def _not_out(key: QueueKey, offset: int) -> Refused:
    return Refused(
        ResponseCode.NO_MESSAGE,
        f"message {offset} of {key.topic}, queue {key.queue_id}, is not out under this handle for group "
        f"{key.group}: it was acknowledged, changed, or given out anew",
    )


def _not_of_pop(key: QueueKey, offset: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"message {offset} of {key.topic}, queue {key.queue_id}, is not of the last ordered pop of group "
        f"{key.group}",
    )
