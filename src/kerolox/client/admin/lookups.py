"""Finding messages: by id, by key, by time. What is found is complete, or said to be cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kerolox.client.admin.admin import Admin, BrokerQueue, NoSuchTopic
from kerolox.client.calls.pulls import PULL_CODES, pull_request
from kerolox.client.errors import NotFound
from kerolox.errors import ConnectFailed, InvalidRequest, KeroloxError, RequestFailed
from kerolox.protocol.batch import unwrap
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.pull import PullAnswer
from kerolox.protocol.headers.query import QueryMessageRequest, ViewMessageRequest
from kerolox.protocol.hosts import PORT_MAX, host_text
from kerolox.protocol.limits import INT64_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import OffsetId, read_offset_id
from kerolox.protocol.record import decode_record, decode_records
from kerolox.protocol.reserved import TOOLS_GROUP

COUNT_MAX = 64  # of one query by key: brokers give no more
PULL_COUNT = 32
TOPICS_MAX = 500  # in which a unique key is looked for when nobody says where
TOPICS_AT_ONCE = 16


@dataclass
class FoundRecords:
    """Messages, in the order they were stored. ``cut`` says why there may be more."""

    messages: list[StoredMessage] = field(default_factory=list)
    cut: str = ""


class Lookups:
    """Looks for messages at all brokers that may have them."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def by_id(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """The message with an offset id, which says where it is; with a unique key, which the index of its
        topic knows; or with a key that no other message of the topic has. Tells what was tried."""
        tried: list[str] = []
        place = place_of(message_id)
        if topic is not None:
            found = await self.by_key(topic, message_id, unique=True)
            if found.messages:
                # The same message may be stored twice, when its producer tried again.
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
                    raise  # it may be there: the broker cannot read it now
                tried.append(f"as offset id at broker {host_text(place.store_host)}: {_reason(error, place)}")
        hint = "" if topic is not None else ". Name its topic to find it by its key: --topic"
        if topic is None:
            if place is None:
                tried.append("it is no offset id")
            topics = await self._admin.made_by_people(await self._admin.topics())
            if len(topics) <= TOPICS_MAX:
                found = await self._in_topics(topics, message_id)
                if found.messages:
                    return found.messages[0]
                tried.append("as unique key in every topic")
            else:
                hint = f". There are {len(topics)} topics: name the one to find it as unique key in, --topic"
        raise NotFound(f"no message {message_id} was found; tried: {', '.join(tried)}{hint}")

    async def _in_topics(self, topics: list[str], unique_key: str) -> FoundRecords:
        """The messages of the first topic that has any with a unique key."""
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
        """Messages with a key; ``unique``: with the id their producer gave them."""
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
                result.cut = f"{name} gives the newest {COUNT_MAX} at most: narrow the time"
            for record in records:
                record.broker_name = name
                # The index knows hashes only.
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
        """Messages stored between two times, the earliest of every queue first."""
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
        """Messages from an offset on, where to go on, and the end of the queue. Holds if told to."""
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
        header = answer.header(PullAnswer)
        messages: list[StoredMessage] = []
        if answer.code == 0:
            for record in decode_records(answer.body):
                messages += unwrap(record)
            for message in messages:
                message.broker_name = queue.broker
        return messages, header.next_begin_offset, header.max_offset


def place_of(message_id: str) -> OffsetId | None:
    """The place an offset id names. Unique keys are as long, but have parts of process and random numbers
    where an offset id has the port: those are no port."""
    try:
        place = read_offset_id(message_id)
    except InvalidRequest:
        return None
    port = int.from_bytes(place.store_host[-4:])
    return place if 0 < port <= PORT_MAX and place.physical_offset >= 0 else None


def _reason(error: KeroloxError, place: OffsetId) -> str:
    if isinstance(error, RequestFailed):
        return f"it has no message at offset {place.physical_offset}"
    return "it cannot be reached from here"


def _order(message: StoredMessage) -> tuple[int, str, int, int]:
    return message.store_timestamp, message.broker_name, message.physical_offset, message.queue_offset
