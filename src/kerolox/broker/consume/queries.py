"""Queries for messages by key and by place in the log, and for the entries of a queue."""

from __future__ import annotations

from typing import Protocol

from kerolox.access.guard import Guard
from kerolox.access.needs.consuming import VIEW
from kerolox.access.needs.kinds import on
from kerolox.access.needs.names import GET, SUB_OR_GET
from kerolox.broker.consume.filters import Filters
from kerolox.errors import KeroloxError, Overloaded, ProtocolError
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.bodies.stats import ConsumeQueueEntry, ConsumeQueueView
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.query import (
    QueryConsumeQueueRequest,
    QueryMessageAnswer,
    QueryMessageRequest,
    ViewMessageRequest,
)
from kerolox.protocol.json_dialect import dumps
from kerolox.protocol.record import decode_record
from kerolox.protocol.subscription import is_tag_type, matches_hash
from kerolox.store.errors import CorruptRecord, Unreadable
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.entry import BLANK_SIZE
from kerolox.store.queue.extension import Unit, is_address
from kerolox.store.queue.named_records import NoRecordThere
from kerolox.store.queue.reading import UnitFilter

UNIQUE_KEY_COUNT = 32  # fixed limit of a query by unique key
ANSWER_BYTES_MAX = 12 << 20  # a client closes its connection at a frame of more than 16 MiB
QUEUE_ENTRIES_MAX = 32_768  # entries in one answer


class Subscriptions(Protocol):
    """Part of the groups that queries use. See groups.py."""

    def members(self, group: str) -> SubscribedGroup | None: ...


class SubscribedGroup(Protocol):
    def subscription(self, topic: str) -> SubscriptionData | None: ...


class Queries:
    """Requests that find messages by key and by offset id, and that show entries of a queue."""

    def __init__(self, store: MessageStore, groups: Subscriptions, filters: Filters, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._groups = groups
        self._filters = filters

    @serves(
        RequestCode.QUERY_MESSAGE, QueryMessageRequest, on(SUB_OR_GET, topic="topic"), lane="query_message"
    )
    async def by_key(self, request: Request[QueryMessageRequest]) -> Answer:
        """Return the messages of a topic with a key."""
        asked = request.header
        store = self._store
        store.key_filler.put_pending()
        wanted = UNIQUE_KEY_COUNT if asked.unique_key else asked.max_num
        count = max(0, min(wanted, store.options.query_count_max))
        places = await store.readers.read(
            lambda: store.index.query(
                asked.topic, asked.key, count, asked.begin_timestamp, asked.end_timestamp
            ),
            limited=True,
        )
        records: list[bytes] = []
        size_bytes = 0
        cut = 0
        for place in sorted(places):
            try:
                record = await store.message_at(place)
                if decode_record(record).topic != asked.topic:
                    continue  # the index stores only hashes: a key of another topic may have the same hash
            except (Unreadable, Overloaded):
                raise  # "not found" would be wrong
            except KeroloxError:
                continue  # deleted meanwhile
            if records and size_bytes + len(record) > ANSWER_BYTES_MAX:
                cut += 1
                continue
            records.append(record)
            size_bytes += len(record)
        header = QueryMessageAnswer(
            index_last_update_timestamp=store.index.end_ms,
            index_last_update_phy_offset=max(0, store.index.end_physical),
        )
        if not records:
            return Answer(
                code=ResponseCode.QUERY_NOT_FOUND,
                header=header,
                remark="can not find message, maybe time range not correct",
            )
        remark = f"truncated: {cut} more messages do not fit into one answer" if cut else None
        return Answer(header=header, body=records, remark=remark)

    @serves(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest, VIEW, lane="query_message")
    async def by_place(self, request: Request[ViewMessageRequest]) -> Answer:
        """Return the message at a physical offset."""
        offset = request.header.offset
        try:
            record = await self._named(request, offset)
            topic = decode_record(record).topic
        except (CorruptRecord, ProtocolError) as error:
            self._guard.check_reading(request, None)
            return Answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"can not find message by the offset, {offset}: {error}",
            )
        self._guard.check_reading(request, topic)
        return Answer(body=record)

    async def _named(self, request: Request[ViewMessageRequest], offset: int) -> bytes:
        named = self._store.named
        try:
            return await named.record(offset)
        except NoRecordThere:
            if not self._guard.may_look(request):
                raise
        return await named.framed_record(offset)  # of a deleted topic: followers compare logs by these, too

    @serves(
        RequestCode.QUERY_CONSUME_QUEUE,
        QueryConsumeQueueRequest,
        on(GET, topic="topic", group="consumer_group"),
        lane="query_message",
    )
    async def queue_entries(self, request: Request[QueryConsumeQueueRequest]) -> Answer:
        """Return entries of a consume queue."""
        asked = request.header
        queue = self._store.queues.find(asked.topic, asked.queue_id)
        if queue is None:
            return Answer(
                code=ResponseCode.SYSTEM_ERROR, remark=f"{asked.queue_id}@{asked.topic} is not exist!"
            )
        wanted: SubscriptionData | None = None
        filter_data: str | None = None
        by_unit: UnitFilter | None = None
        if asked.consumer_group is not None:
            members = self._groups.members(asked.consumer_group)
            wanted = None if members is None else members.subscription(asked.topic)
            filter_data = f"{asked.consumer_group}@{asked.topic} is not online!" if wanted is None else "null"
            if wanted is not None:
                filter_data, by_unit = self._filters.shown(asked.topic, asked.consumer_group)
        count = max(0, min(asked.count, QUEUE_ENTRIES_MAX))
        entries, units = await self._store.queues.entries(queue, asked.index, count)
        if not entries and not queue.min_offset <= asked.index < queue.max_offset:
            return Answer(
                remark=f"Index {asked.index} of {asked.queue_id}@{asked.topic} is not exist!",
                body=ConsumeQueueView(
                    min_queue_index=queue.min_offset, max_queue_index=queue.max_offset, queue_data=()
                ).encode(),
            )
        view = ConsumeQueueView(
            min_queue_index=queue.min_offset,
            max_queue_index=queue.max_offset,
            subscription_data=wanted,
            filter_data=filter_data,
            queue_data=tuple(
                _entry(physical, size, tags_code, units.get(tags_code), wanted, by_unit)
                for physical, size, tags_code in entries
                if size != BLANK_SIZE
            ),
        )
        return Answer(body=view.encode())


def _entry(
    physical: int,
    size: int,
    tags_code: int,
    unit: Unit | None,
    wanted: SubscriptionData | None,
    by_unit: UnitFilter | None,
) -> ConsumeQueueEntry:
    """Return a queue entry of the answer, with the result of the group's filter without reading the
    message."""
    by_tag = wanted is not None and is_tag_type(wanted)
    if unit is None:
        lost = is_address(tags_code)
        return ConsumeQueueEntry(
            physic_offset=physical,
            physic_size=size,
            tags_code=tags_code,
            eval=by_tag and not lost and wanted is not None and matches_hash(wanted, tags_code),
            msg=f"Cq extend not exist!addr: {tags_code}" if lost else None,
        )
    matches = wanted is not None and (
        matches_hash(wanted, unit.tags_code) if by_tag else by_unit is None or by_unit(unit)
    )
    shown: dict[str, object] = {"msgStoreTime": unit.stored_ms, "size": unit.size, "tagsCode": unit.tags_code}
    return ConsumeQueueEntry(
        physic_offset=physical,
        physic_size=size,
        tags_code=unit.tags_code,
        eval=matches,
        extend_data_json=dumps({"filterBitMap": unit.bits, **shown} if unit.bits else shown).decode(),
        bit_map=_bit_map(unit.bits) if unit.bits else None,
    )


def _bit_map(bits: bytes) -> str:
    """Return a bit map as text: the highest bit first, eight bytes a line, as RocketMQ shows it."""
    digits = [f"{byte:08b}" + ("\n" if number % 8 == 0 else "") for number, byte in enumerate(bits)]
    return "".join(reversed(digits))
