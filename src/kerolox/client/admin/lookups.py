"""Search of messages by id, key or time. Results are complete, or marked as truncated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kerolox.client.admin.calls import AdminCalls, BrokerQueue, NoSuchTopic
from kerolox.client.calls.pull_answers import PULL_CODES, read_pull
from kerolox.client.calls.pulls import pull_request
from kerolox.client.errors import NotFound
from kerolox.errors import ConnectFailed, InvalidRequest, KeroloxError, RequestFailed
from kerolox.protocol.batch import unwrap
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.query import QueryMessageRequest, ViewMessageRequest
from kerolox.protocol.hosts import PORT_MAX, host_text
from kerolox.protocol.limits import INT64_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import OffsetId, read_offset_id
from kerolox.protocol.record import decode_record, decode_records
from kerolox.protocol.reserved import TOOLS_GROUP

COUNT_MAX = 64  # messages of one query by key, the limit of brokers
PULL_COUNT = 32
TOPICS_MAX = 500  # topics that are searched for a unique key when no topic is given
TOPICS_AT_ONCE = 16


@dataclass
class FoundRecords:
    """Found messages, in store order. ``cut`` is the reason of a truncation; empty if complete."""

    messages: list[StoredMessage] = field(default_factory=list)
    cut: str = ""


class Lookups:
    """Searches at all brokers that may have the messages."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin

    async def by_id(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Return the message with an offset id, a unique key, or a key that only one message of the topic
        has.

        Raises NotFound, which lists the attempts.
        """
        tried: list[str] = []
        place = place_of(message_id)
        if topic is not None:
            found = await self.by_key(topic, message_id, unique=True)
            if found.messages:
                # A message may be stored twice, after a retry of its producer.
                return found.messages[0]
            tried.append(f"as unique key in topic {topic}")
            found = await self.by_key(topic, message_id)
            if len(found.messages) > 1:
                raise NotFound(
                    f"{message_id} is the key of {len(found.messages)} messages of topic {topic}. See them "
                    f"all: kerolox message find {topic} --key {message_id}"
                )
            if found.messages:
                return found.messages[0]
            tried.append("as key there")
        if place is not None:
            try:
                return await self._at(place)
            except (RequestFailed, ConnectFailed) as error:
                if isinstance(error, RequestFailed) and error.response_code == ResponseCode.SYSTEM_BUSY:
                    raise  # the message may exist: the broker cannot read it now
                tried.append(f"as offset id at broker {host_text(place.store_host)}: {_reason(error, place)}")
        hint = "" if topic is not None else ". To search by key, give the topic: --topic"
        if topic is None:
            if place is None:
                tried.append("not an offset id")
            topics = await self._admin.made_by_people(await self._admin.topics())
            if len(topics) <= TOPICS_MAX:
                found = await self._in_topics(topics, message_id)
                if found.messages:
                    return found.messages[0]
                tried.append("as unique key in every topic")
            else:
                hint = f". To search by unique key, give the topic (there are {len(topics)}): --topic"
        raise NotFound(f"no message {message_id} was found; tried: {', '.join(tried)}{hint}")

    async def _in_topics(self, topics: list[str], unique_key: str) -> FoundRecords:
        """Return the messages with a unique key in the first topic that has any."""
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            some = topics[start : start + TOPICS_AT_ONCE]
            asked = (self.by_key(topic, unique_key, unique=True) for topic in some)
            for found in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(found, FoundRecords):
                    if found.messages:
                        return found
                elif not isinstance(found, NoSuchTopic):  # deleted meanwhile
                    raise found
        return FoundRecords()

    async def _at(self, place: OffsetId) -> StoredMessage:
        asked = ViewMessageRequest(offset=place.physical_offset)
        address = host_text(place.store_host)
        answer = await self._admin.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, asked)
        return decode_record(answer.body)

    async def by_key(
        self, topic: str, key: str, *, unique: bool = False, begin_ms: int = 0, end_ms: int = INT64_MAX
    ) -> FoundRecords:
        """Return messages with a key; ``unique``: with a unique key of their producer."""
        asked = QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=COUNT_MAX,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key=unique,
        )

        async def one(name: str, address: str) -> tuple[str, Command]:
            ok = (0, ResponseCode.QUERY_NOT_FOUND)
            return name, await self._admin.ask(
                address, RequestCode.QUERY_MESSAGE, asked, ok=ok, timeout_s=18.0
            )

        result = FoundRecords()
        brokers = await self._admin.brokers_of(topic)
        for name, answer in await asyncio.gather(*(one(*broker) for broker in brokers.items())):
            if answer.code != 0:
                continue
            records = decode_records(answer.body)
            if answer.remark:
                result.cut = f"{name}: {answer.remark}"
            elif not unique and len(records) >= COUNT_MAX:
                result.cut = f"{name} returns only the newest {COUNT_MAX}: narrow the time range"
            for record in records:
                record.broker_name = name
                # The index has only hashes, so other keys may match.
                if record.topic == topic and (record.unique_key == key if unique else key in record.keys):
                    result.messages.append(record)
        result.messages.sort(key=_order)
        return result

    async def by_time(
        self,
        topic: str,
        begin_ms: int,
        end_ms: int,
        count_max: int,
        wanted: Callable[[StoredMessage], bool] = lambda message: True,
    ) -> FoundRecords:
        """Return messages stored between two times, the earliest of every queue first."""
        queues = await self._admin.queues(topic)
        parts = await asyncio.gather(
            *(self._queue_by_time(topic, queue, begin_ms, end_ms, count_max, wanted) for queue in queues)
        )
        result = FoundRecords()
        for part in parts:
            result.messages += part.messages
            result.cut = result.cut or part.cut
        result.messages.sort(key=_order)
        if len(result.messages) > count_max:
            result.messages = result.messages[:count_max]
            result.cut = f"the first {count_max} of more"
        return result

    async def _queue_by_time(
        self,
        topic: str,
        queue: BrokerQueue,
        begin_ms: int,
        end_ms: int,
        count_max: int,
        wanted: Callable[[StoredMessage], bool],
    ) -> FoundRecords:
        result = FoundRecords()
        offset = await self._admin.offset_at(queue.address, topic, queue.queue_id, begin_ms)
        while True:
            messages, following, end = await self.pull(topic, queue, offset)
            for message in messages:
                if message.store_timestamp > end_ms:
                    return result
                if message.store_timestamp < begin_ms or not wanted(message):
                    continue
                if len(result.messages) >= count_max:
                    result.cut = f"the first {count_max} of more"
                    return result
                result.messages.append(message)
            if following <= offset or (following >= end and not messages):
                return result
            offset = following

    async def pull(
        self,
        topic: str,
        queue: BrokerQueue,
        offset: int,
        *,
        hold_ms: int = 0,
        expression: str = "*",
        expression_type: str = "TAG",
        count_max: int = PULL_COUNT,
    ) -> tuple[list[StoredMessage], int, int]:
        """Pull messages from an offset. Return them, the next offset, and the end of the queue.

        With ``hold_ms`` the broker holds the pull until a message arrives.
        """
        asked = pull_request(
            topic,
            None,
            queue.queue_id,
            offset,
            count_max,
            group=TOOLS_GROUP,
            expression=expression,
            kind=expression_type,
            hold_ms=hold_ms,
        )
        answer = await self._admin.ask(
            queue.address,
            RequestCode.PULL_MESSAGE,
            asked,
            ok=PULL_CODES,
            timeout_s=hold_ms / 1000 + 10.0,
        )
        pulled = read_pull(answer, offset, queue.address)
        messages: list[StoredMessage] = []
        for record in decode_records(pulled.block):
            messages += unwrap(record)
        for message in messages:
            message.broker_name = queue.broker
        return messages, pulled.next_offset, pulled.max_offset


def place_of(message_id: str) -> OffsetId | None:
    """Return the broker address and log offset of an offset id; None for other ids.

    Unique keys have the same length, but process and random numbers instead of a valid port.
    """
    try:
        place = read_offset_id(message_id)
    except InvalidRequest:
        return None
    port = int.from_bytes(place.store_host[-4:])
    return place if 0 < port <= PORT_MAX and place.physical_offset >= 0 else None


def _reason(error: KeroloxError, place: OffsetId) -> str:
    if isinstance(error, RequestFailed):
        return f"it has no message at offset {place.physical_offset}"
    return "the broker is unreachable from here"


def _order(message: StoredMessage) -> tuple[int, str, int, int]:
    return message.store_timestamp, message.broker_name, message.physical_offset, message.queue_offset
