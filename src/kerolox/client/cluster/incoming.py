"""Requests of brokers to a client, dispatched to the member concerned."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from kerolox.client.messages import Queue, Received, decode_received
from kerolox.errors import KeroloxError
from kerolox.front.handlers import Handlers
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.protocol import properties as names
from kerolox.protocol.bodies.offsets import ConsumerStatus, ResetOffsets
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.compression import decompress
from kerolox.protocol.headers.heartbeat import (
    ConsumeDirectlyRequest,
    ConsumerIdsChanged,
    ConsumerRunningInfoRequest,
)
from kerolox.protocol.headers.offset import ConsumerStatusRequest, ResetOffsetRequest
from kerolox.protocol.headers.reply import PushReply
from kerolox.protocol.headers.transaction import CheckTransaction
from kerolox.protocol.hosts import host_bytes

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client
    from kerolox.client.cluster.members import ConsumingMember

log = logging.getLogger(__name__)

AGE_S_MAX = 30.0


class Incoming:
    """Request handlers of one client's connections."""

    def __init__(self, client: Client, handlers: Handlers) -> None:
        self._client = client
        self.lane = Lane("client", age_s_max=AGE_S_MAX)
        for code, handler, header in (
            (RequestCode.CHECK_TRANSACTION_STATE, self.check_transaction, CheckTransaction),
            (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.members_changed, ConsumerIdsChanged),
            (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self.reset_offsets, ResetOffsetRequest),
            (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.offsets, ConsumerStatusRequest),
            (RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, ConsumerRunningInfoRequest),
            (RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly, ConsumeDirectlyRequest),
            (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.reply, PushReply),
        ):
            handlers.add(code, handler, header, self.lane)

    async def close(self) -> None:
        await self.lane.close()

    # --- one-way requests ---------------------------------------------------------------------

    def check_transaction(self, asked: Request[CheckTransaction]) -> None:
        try:
            (message,) = decode_received(asked.body)
        except (KeroloxError, ValueError) as error:
            log.warning("transaction_check_unreadable broker=%s error=%r", asked.caller.address, str(error))
            return
        group = message.get(names.PRODUCER_GROUP)
        producer = self._client.producers.get(group)
        if producer is None:
            log.info("transaction_check_ignored group=%s next='no producer of this group is here'", group)
            return
        message.broker_name = asked.header.broker_name or ""
        message.topic = self._client.user_name(message.topic)
        producer.check_transaction(asked, message)

    def members_changed(self, asked: Request[ConsumerIdsChanged]) -> None:
        consumer = self._client.consumers.get(asked.header.consumer_group)
        if consumer is not None:
            consumer.members_changed()

    def reset_offsets(self, asked: Request[ResetOffsetRequest]) -> None:
        consumer = self._client.consumers.get(asked.header.group)
        if consumer is None:
            return
        table = ResetOffsets.decode(asked.body).offset_table if asked.body else {}
        consumer.reset_offsets(
            asked.header.topic, {Queue.of(queue): offset for queue, offset in table.items()}
        )

    # --- requests with a response -------------------------------------------------------------

    def offsets(self, asked: Request[ConsumerStatusRequest]) -> Answer:
        consumer = self._client.consumers.get(asked.header.group)
        found = {} if consumer is None else consumer.offsets(asked.header.topic)
        table = {queue.wire(): offset for queue, offset in found.items()}
        return Answer(body=ConsumerStatus(message_queue_table=table).encode())

    def running_info(self, asked: Request[ConsumerRunningInfoRequest]) -> Answer:
        header = asked.header
        consumer = self._client.consumers.get(header.consumer_group)
        info = None if consumer is None else consumer.running_info()
        if info is None:
            return not_here(header.consumer_group)
        if header.jstack_enable:
            info = msgspec.structs.replace(info, jstack=stacks())
        return Answer(body=info.encode())

    async def consume_directly(self, asked: Request[ConsumeDirectlyRequest]) -> Answer:
        header = asked.header
        consumer: ConsumingMember | None = self._client.consumers.get(header.consumer_group)
        if consumer is None:
            return not_here(header.consumer_group)
        (message,) = decode_received(asked.body, header.broker_name or "")
        result = await consumer.consume_directly(message)
        return not_here(header.consumer_group) if result is None else Answer(body=result.encode())

    def reply(self, asked: Request[PushReply]) -> Answer:
        """Receive the reply to a request. A late reply is acknowledged and dropped."""
        header = asked.header
        message = Received(
            topic=self._client.user_name(header.topic),
            body=decompress(asked.body, header.sys_flag),
            queue_id=header.queue_id,
            queue_offset=0,
            physical_offset=0,
            packed_properties=(header.properties or "").encode(),
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_host(header.store_host),
            reconsume_times=header.reconsume_times or 0,
        )
        message.properties[names.ARRIVE_TIME] = str(self._client.clock.wall_ms())
        correlation_id = message.get(names.CORRELATION_ID)
        waiting = self._client.replies.pop(correlation_id, None)
        if waiting is None or waiting.done():
            log.info("reply_unexpected correlation_id=%s from=%s", correlation_id, header.born_host)
        else:
            waiting.set_result(message)
        return Answer()


def not_here(group: str) -> Answer:
    return Answer(
        code=ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer"
    )


def stacks() -> str:
    """Return the stack traces of all threads (answer to GET_CONSUMER_RUNNING_INFO)."""
    threads: dict[int | None, Any] = {thread.ident: thread for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        name = threads[ident].name if ident in threads else str(ident)
        parts.append(f"{name}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


def _host(text: str) -> bytes:
    try:
        return host_bytes(text.lstrip("/"))
    except KeroloxError:
        return bytes(8)
