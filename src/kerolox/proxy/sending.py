"""Sending messages, and taking delayed ones back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kerolox.front.requests import Answer
from kerolox.protocol import properties as packed
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_WRITE
from kerolox.protocol.grpc.messages import Code, MessageType, make
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.headers.send import RecallAnswer, RecallRequest, SendAnswer, SendRequestV2
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX, TEMPLATE_TOPIC
from kerolox.proxy.backend import Backend, BrokerQueues
from kerolox.proxy.checks import Rejected, check_topic, from_remoting, resource_name
from kerolox.proxy.clients import Clients, Visit
from kerolox.proxy.half_messages import HalfMessage, HalfMessages
from kerolox.proxy.messages import Outgoing, outgoing
from kerolox.proxy.queue_choice import QueueChoice
from kerolox.proxy.routes import accepted_types

# The message is stored in these cases; the client learns what is not certain.
_STATUS: Final = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


class Sending:
    """Requests of producers."""

    def __init__(
        self, backend: Backend, clients: Clients, halves: HalfMessages, wall_ms: Callable[[], int]
    ) -> None:
        self._backend = backend
        self._clients = clients
        self._halves = halves
        self._wall_ms = wall_ms
        self._choice = QueueChoice()
        self._turn = 0

    async def send(self, visit: Visit, asked: Message) -> Message:
        """Store messages (SendMessage)."""
        if not asked.messages:
            raise Rejected(Code.MESSAGE_CORRUPTED, "the request holds no message")
        topic = check_topic(resource_name(asked.messages[0].topic))
        if any(resource_name(message.topic) != topic for message in asked.messages):
            raise Rejected(Code.MESSAGE_CORRUPTED, "the messages of a request have different topics")
        await visit.check_sending(topic)
        now_ms = self._wall_ms()
        messages = [outgoing(message, topic, now_ms, visit.client.address) for message in asked.messages]
        queues = await self._backend.queues(topic)
        if queues is None:
            raise Rejected(
                Code.TOPIC_NOT_FOUND,
                f"topic {topic!r} does not exist. Create it: kerolox topic create {topic}",
            )
        _check_types(topic, queues, messages)
        broker, queue_id = self._queue(topic, queues, messages)
        if any(message.type is MessageType.TRANSACTION for message in messages):
            await self._be_producer(visit, topic)
        answer = await self._store(visit, broker, topic, queue_id, messages)
        return self._response(broker, topic, messages, answer)

    def _queue(
        self, topic: str, brokers: Sequence[BrokerQueues], messages: Sequence[Outgoing]
    ) -> tuple[str, int]:
        writable = [
            one
            for one in brokers
            if not one.broker_id and one.permission & PERM_WRITE and one.write_queues > 0
        ]
        if not writable:
            raise Rejected(Code.FORBIDDEN, f"topic {topic!r} has no writable queue")
        places = [(one.broker_name, queue_id) for one in writable for queue_id in range(one.write_queues)]
        only = messages[0] if len(messages) == 1 else None
        is_ranked = only is not None and only.type is MessageType.PRIORITY
        index = self._choice.choose(
            range(len(places)),
            only.message_group if only is not None else "",
            only.priority if only is not None and is_ranked else None,
        )
        return places[index]

    async def _be_producer(self, visit: Visit, topic: str) -> None:
        """Make sure that the brokers can ask this client how its transactions ended."""
        if topic not in visit.client.producer_groups:
            client = visit.client
            await self._clients.announce(visit, client.settings, client.producer_groups | {topic})

    async def _store(
        self, visit: Visit, broker: str, topic: str, queue_id: int, messages: Sequence[Outgoing]
    ) -> Answer:
        first = messages[0]
        is_batch = len(messages) > 1
        properties = packed.pack(first.properties).decode() if not is_batch else None
        header = SendRequestV2(
            producer_group=topic,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=first.sys_flag,
            born_timestamp=first.born_ms,
            flag=0,
            properties=properties,
            reconsume_times=0,
            batch=is_batch,
        )
        if not is_batch:
            return await visit.ask(broker, RequestCode.SEND_MESSAGE_V2, header, first.body)
        if any(one.type in (MessageType.TRANSACTION, MessageType.DELAY) or one.sys_flag for one in messages):
            raise Rejected(
                Code.MESSAGE_CORRUPTED, "messages of a batch must not be delayed, transactional or compressed"
            )
        body = encode_batch((0, one.body, packed.pack(one.properties)) for one in messages)
        return await visit.ask(broker, RequestCode.SEND_BATCH_MESSAGE, header, body)

    def _response(self, broker: str, topic: str, messages: Sequence[Outgoing], answer: Answer) -> Message:
        code = _STATUS.get(answer.code)  # type: ignore[call-overload]
        if code is None:
            raise from_remoting(answer)
        stored = answer.header
        assert isinstance(stored, SendAnswer)
        status = make("Status", code=code, message=answer.remark or code.name)
        response = make("SendMessageResponse", status=status)
        for number, message in enumerate(messages):
            entry = response.entries.add(status=status, offset=stored.queue_offset + number)
            entry.message_id = message.message_id
            if message.type is MessageType.TRANSACTION:
                entry.transaction_id = message.message_id
                offset = read_offset_id(stored.msg_id).physical_offset
                half = HalfMessage(broker, stored.queue_offset, offset)
                self._halves.add(topic, message.message_id, half)
            if stored.recall_handle:
                entry.recall_handle = stored.recall_handle
        return response

    async def recall(self, visit: Visit, asked: Message) -> Message:
        """Take back a delayed message before it is due (RecallMessage)."""
        topic = check_topic(resource_name(asked.topic))
        await visit.check_sending(topic)
        queues = await self._backend.queues(topic)
        if queues is None:
            raise Rejected(Code.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist")
        if not any(MessageType.DELAY in accepted_types(one.message_type) for one in queues):
            raise Rejected(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"topic {topic!r} holds no delayed messages"
            )
        last: Answer | None = None
        for one in queues:
            if one.broker_id:
                continue
            header = RecallRequest(topic=topic, recall_handle=asked.recall_handle, producer_group=topic)
            last = await visit.ask(one.broker_name, RequestCode.RECALL_MESSAGE, header)
            if last.code == ResponseCode.SUCCESS:
                assert isinstance(last.header, RecallAnswer)
                status = make("Status", code=Code.OK, message="OK")
                return make("RecallMessageResponse", status=status, message_id=last.header.msg_id)
        if last is None:
            raise Rejected(Code.FORBIDDEN, f"topic {topic!r} has no leader")
        raise from_remoting(last)


def _check_types(topic: str, queues: Sequence[BrokerQueues], messages: Sequence[Outgoing]) -> None:
    """Check that the topic accepts such messages."""
    if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return
    attribute = queues[0].message_type if queues else ""
    accepted = accepted_types(attribute)
    for message in messages:
        if message.type not in accepted:
            names = ", ".join(kind.name for kind in accepted)
            raise Rejected(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic!r} accepts {names}, the message is {message.type.name}. Set the topic's type: "
                f"kerolox topic set {topic} +message.type={message.type.name}",
            )
