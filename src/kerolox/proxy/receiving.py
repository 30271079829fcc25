"""Receiving messages, and what clients do with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from kerolox.errors import KeroloxError
from kerolox.front.requests import Answer
from kerolox.net.grpc_peer import Call
from kerolox.protocol import properties as packed
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.grpc.messages import Code, make
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.headers.pop import PopAnswer, PopRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.pop.answer_texts import read_order_counts, read_start_offsets
from kerolox.protocol.pop.handle import Handle
from kerolox.protocol.pop.retry_topics import NORMAL
from kerolox.protocol.record import decode_records
from kerolox.protocol.subscription import matches_tag
from kerolox.proxy.backend import Backend
from kerolox.proxy.checks import Rejected, check_group, check_topic, from_remoting, read_filter, resource_name
from kerolox.proxy.clients import Client, Visit
from kerolox.proxy.messages import received
from kerolox.proxy.pops import Pops
from kerolox.proxy.receipts import Receipt
from kerolox.proxy.renewals import CLEARED_MS, Renewals
from kerolox.proxy.settings import max_attempts

log = logging.getLogger(__name__)

BATCH_MAX: Final = 32
INVISIBLE_MS: Final = 60_000  # with renewal
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 43_200_000
POLLING_S_MIN: Final = 5.0
POLLING_S_MAX: Final = 20.0
RESERVE_S: Final = 0.1  # an answer leaves this long before the deadline at least
REQUEST_S: Final = 3.0
ASK_S: Final = 5.0  # beyond the polling time
FROM_END: Final = 1  # where a group without progress begins


class Receiving:
    """Requests of consumers."""

    def __init__(self, backend: Backend, pops: Pops, renewals: Renewals, wall_ms: Callable[[], int]) -> None:
        self._backend = backend
        self._pops = pops
        self._renewals = renewals
        self._wall_ms = wall_ms
        self._late: set[asyncio.Task[None]] = set()

    # --- ReceiveMessage ---------------------------------------------------------------------------

    async def receive(self, visit: Visit, call: Call, asked: Message, now_s: float) -> None:
        """Send the messages that a pop finds: status, messages, time of delivery."""
        group, topic = await _named(visit, asked.group, asked.message_queue.topic)
        config = await self._backend.group(group) or GroupConfig(group_name=group)
        wanted = read_filter(topic, asked.filter_expression)
        header = PopRequest(
            consumer_group=group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=max(1, min(asked.batch_size or BATCH_MAX, BATCH_MAX)),
            invisible_time=_invisible_ms(asked),
            poll_time=int(_polling_s(asked, call, visit.client, now_s) * 1000),
            born_time=self._wall_ms(),
            init_mode=FROM_END,
            exp_type=wanted.expression_type,
            exp=wanted.sub_string,
            order=config.consume_message_orderly,
            attempt_id=asked.attempt_id or None,
        )
        broker = await self._broker(topic, asked.message_queue.broker.name)
        timeout_s = header.poll_time / 1000 + ASK_S
        popping = asyncio.ensure_future(
            visit.ask(broker, RequestCode.POP_MESSAGE, header, timeout_s=timeout_s)
        )
        try:
            answer = await asyncio.shield(popping)
        except asyncio.CancelledError:
            # The broker may hand out messages that nobody takes: they are given back when they come.
            self._run(self._give_back_late(visit, group, topic, broker, popping))
            raise
        if answer.code == ResponseCode.POLLING_FULL:
            raise Rejected(Code.TOO_MANY_REQUESTS, "too many requests wait for messages of this topic")
        if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            raise Rejected(Code.MESSAGE_NOT_FOUND, "no message arrived in time")
        if answer.code != ResponseCode.SUCCESS:
            raise from_remoting(answer)
        await self._deliver(visit, call, asked, config, wanted, self._found(answer, broker))

    async def _broker(self, topic: str, name: str) -> str:
        """Return the name of the broker to receive from: the one that the client names, or else any."""
        leaders = [one.broker_name for one in await self._backend.queues(topic) or () if not one.broker_id]
        if not leaders:
            raise Rejected(Code.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist, or has no leader")
        return name if name in leaders else leaders[0]

    async def _deliver(
        self, visit: Visit, call: Call, asked: Message, config: GroupConfig, wanted: SubscriptionData,
        found: list[tuple[StoredMessage, Receipt, int]],
    ) -> None:  # fmt: skip
        group, topic = config.group_name, wanted.topic
        frames = []
        for stored, receipt, attempt in found:
            if not matches_tag(wanted, stored.tag):  # another tag with the same hash
                await self._tried(self._pops.ack(visit, group, topic, receipt))
            elif attempt > max_attempts(config):
                await self._tried(self._pops.give_up(visit, group, topic, receipt))
            else:
                message = received(stored, asked.message_queue.topic, str(receipt), attempt)
                frames.append((message, receipt, attempt))
        if not frames:
            raise Rejected(Code.MESSAGE_NOT_FOUND, "no message matches")
        if not call.is_open:
            for _, receipt, _ in frames:
                self._run(self._give_back(visit, group, topic, receipt))
            return
        call.send(_content(status=make("Status", code=Code.OK, message="OK")))
        for message, receipt, attempt in frames:
            call.send(_content(message=message))
            if asked.auto_renew:
                self._renewals.add(visit, config, topic, receipt, attempt)
        self.end(call)

    def end(self, call: Call) -> None:
        """Send the time of delivery, which Python's client needs, and end the answer."""
        last = make("ReceiveMessageResponse")
        last.delivery_timestamp.FromMilliseconds(self._wall_ms())
        call.send(last.SerializeToString())
        call.finish()

    def refuse(self, call: Call, refused: Rejected) -> None:
        """Answer without messages."""
        call.send(_content(status=make("Status", code=refused.status, message=str(refused))))
        self.end(call)

    def _found(self, answer: Answer, broker: str) -> list[tuple[StoredMessage, Receipt, int]]:
        """Return the messages of a pop with their receipts and attempts."""
        header = answer.header
        assert isinstance(header, PopAnswer)
        starts = read_start_offsets(header.start_offset_info)
        counts = read_order_counts(header.order_count_info)
        found = []
        for stored in decode_records(answer.whole_body):
            queue = str(stored.queue_id)
            own = stored.properties.get(packed.POP_CHECKPOINT)
            if own:
                handle = Handle.parse(own)
            else:
                start = starts.get((NORMAL, queue), stored.queue_offset)
                handle = Handle(
                    start, header.pop_time, header.invisible_time, header.revive_qid,
                    NORMAL, broker, stored.queue_id, stored.queue_offset,
                )  # fmt: skip
            times = counts.get((handle.retry, f"qo{queue}%{stored.queue_offset}"), stored.reconsume_times)
            found.append((stored, Receipt(handle, stored.physical_offset), times + 1))
        return found

    async def _give_back_late(
        self, visit: Visit, group: str, topic: str, broker: str, popping: asyncio.Future[Answer]
    ) -> None:
        try:
            answer = await popping
        except KeroloxError:
            return
        if answer.code == ResponseCode.SUCCESS:
            for _, receipt, _ in self._found(answer, broker):
                await self._give_back(visit, group, topic, receipt)

    async def _give_back(self, visit: Visit, group: str, topic: str, receipt: Receipt) -> None:
        await self._tried(self._pops.change(visit, group, topic, receipt, CLEARED_MS))

    async def _tried(self, work: Awaitable[object]) -> None:
        """Await what may fail: the message is then delivered again when its invisible time is over."""
        try:
            await work
        except KeroloxError as error:
            log.info("message_comes_again error=%r", str(error))

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def close(self) -> None:
        if self._late:
            await asyncio.wait(self._late, timeout=2.0)

    # --- what clients do with messages --------------------------------------------------------------

    async def ack(self, visit: Visit, asked: Message) -> Message:
        """Acknowledge messages (AckMessage)."""
        group, topic = await _named(visit, asked.group, asked.topic)
        if not asked.entries:
            raise Rejected(Code.INTERNAL_SERVER_ERROR, "the request names no message")
        response = make("AckMessageResponse")
        codes = set()
        for entry in asked.entries:
            status = make("Status", code=Code.OK, message="OK")
            try:
                receipt = self._renewals.take(visit.client, group, Receipt.parse(entry.receipt_handle))
                self._pops.check_time(receipt)
                await self._pops.ack(visit, group, topic, receipt)
            except Rejected as refused:
                status = make("Status", code=refused.status, message=str(refused))
            codes.add(status.code)
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
        if len(codes) == 1:
            response.status.CopyFrom(response.entries[0].status)
        else:
            response.status.code, response.status.message = Code.MULTIPLE_RESULTS, "see the entries"
        return response

    async def change(self, visit: Visit, asked: Message) -> Message:
        """Hide a message for another time (ChangeInvisibleDuration)."""
        group, topic = await _named(visit, asked.group, asked.topic)
        invisible_ms = asked.invisible_duration.ToMilliseconds()
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Rejected(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible for {invisible_ms} ms: 0 to {INVISIBLE_MS_MAX} are allowed",
            )
        receipt = self._renewals.take(visit.client, group, Receipt.parse(asked.receipt_handle))
        self._pops.check_time(receipt)
        changed = await self._pops.change(visit, group, topic, receipt, invisible_ms)
        status = make("Status", code=Code.OK, message="OK")
        return make("ChangeInvisibleDurationResponse", status=status, receipt_handle=str(changed))

    async def give_up(self, visit: Visit, asked: Message) -> Message:
        """Store a message as a dead letter (ForwardMessageToDeadLetterQueue)."""
        group, topic = await _named(visit, asked.group, asked.topic)
        receipt = self._renewals.take(visit.client, group, Receipt.parse(asked.receipt_handle))
        await self._pops.give_up(visit, group, topic, receipt)
        status = make("Status", code=Code.OK, message="OK")
        return make("ForwardMessageToDeadLetterQueueResponse", status=status)


async def _named(visit: Visit, group: Message, topic: Message) -> tuple[str, str]:
    """Return the names of a group and a topic. Raises Rejected unless the user may consume them."""
    names = check_group(resource_name(group)), check_topic(resource_name(topic))
    await visit.check_consuming(*names)
    return names


def _content(**content: Message) -> bytes:
    data: bytes = make("ReceiveMessageResponse", **content).SerializeToString()
    return data


def _invisible_ms(asked: Message) -> int:
    if asked.auto_renew:
        return INVISIBLE_MS
    invisible_ms: int = asked.invisible_duration.ToMilliseconds()
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise Rejected(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"invisible for {invisible_ms} ms: {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} are allowed",
        )
    return invisible_ms


def _polling_s(asked: Message, call: Call, client: Client, now_s: float) -> float:
    """Return how long the request may wait at the broker, so that the answer leaves before the deadline."""
    left_s = None if call.deadline_s is None else call.deadline_s - now_s
    polling_s: float
    if asked.HasField("long_polling_timeout"):
        polling_s = asked.long_polling_timeout.ToMilliseconds() / 1000
    elif left_s is not None:
        polling_s = left_s - REQUEST_S / 2
    else:
        polling_s = POLLING_S_MAX
    polling_s = min(max(polling_s, POLLING_S_MIN), POLLING_S_MAX)
    if left_s is None:
        return polling_s
    if left_s < POLLING_S_MIN and polling_s > left_s:
        code = Code.BAD_REQUEST if client.sdk_version < "5.0.3" else Code.ILLEGAL_POLLING_TIME
        raise Rejected(
            code, f"the deadline leaves {left_s:.1f} s, polling takes {POLLING_S_MIN:g} s at least"
        )
    return max(0.0, min(polling_s, left_s - RESERVE_S))
