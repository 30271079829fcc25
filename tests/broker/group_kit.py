"""The part of a broker that deals with groups, on a real port, and clients that talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kerolox.broker.access.room import Access
from kerolox.broker.base import Base, lanes_of
from kerolox.broker.consume.filters import Filters
from kerolox.broker.consume.group_offsets import GroupOffsets, Resets
from kerolox.broker.consume.group_reads import GroupReads
from kerolox.broker.consume.message_waits import MessageWaits
from kerolox.broker.consume.pulls import Pulls
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.fellows.lock_requests import LockRequests
from kerolox.broker.members.compiled_filters import CompiledFilters
from kerolox.broker.members.groups import Groups
from kerolox.broker.members.heartbeats import Heartbeats
from kerolox.broker.members.members import Members
from kerolox.broker.members.queue_locks import QueueLocks
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.tables.room import Tables
from kerolox.broker.tables.topics import Topics
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import rows_of
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.filters.bloom import BloomFilter
from kerolox.protocol.header import Header
from kerolox.protocol.headers import offset as offset_headers
from kerolox.protocol.headers.heartbeat import ConsumerIdsChanged, ConsumerListRequest
from kerolox.protocol.subscription import subscription
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.tables import ConsumerOffsets, GroupTable, TopicTable
from kerolox.store.tables.filters import FilterTable
from kerolox.testing.clock import ManualClock


def options_for(path: Path, **changes: Any) -> BrokerOptions:
    values: dict[str, Any] = {
        "store_path": str(path),
        "broker_name": "broker-a",
        "commit_log_file_bytes": 64 * 1024,
        "queue_file_bytes": 20 * 50,
        "index_slots": 100,
        "index_entries": 400,
        "disk_free_enough": 64 << 20,
    }
    return BrokerOptions(**{**values, **changes})


class Part:
    """Everything but the store is there at once; ``running`` opens that and listens."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.clock = ManualClock()
        self.options = options_for(path, **changes)
        config = path / "config"
        self.topics = Topics(TopicTable(Files(), config, clock=self.clock), self.options, None)
        self.members = Members(self.options, self.clock)
        self.groups = Groups(GroupTable(Files(), config, clock=self.clock), self.members, self.options, None)
        self.offsets = ConsumerOffsets(Files(), config, clock=self.clock)
        self.store = MessageStore(self.options, clock=self.clock)
        self.leadership = Leadership(self.store, self.options.role)
        self.waits = MessageWaits(self.clock)
        self.heartbeats = Heartbeats(
            self.members, self.groups, self.topics, self.options, CompiledFilters(), None
        )
        self.locks = QueueLocks(self.clock)
        self.lock_requests = LockRequests(self.locks, None)
        bloom = BloomFilter(self.options.filter_error_percent, self.options.filter_users)
        self.filters = Filters(
            FilterTable(
                Files(),
                config,
                clock=self.clock,
                bits=bloom.bits,
                places=bloom.places,
                dead_kept_ms=lambda: self.options.filter_keep_ms,
            ),
            bloom,
            self.options,
            self.clock,
        )
        tables = Tables(self.store, self.options, self.clock)
        self.base = Base(
            self.options,
            self.clock,
            self.store,
            lanes_of(self.options, self.clock),
            Endpoints("127.0.0.1", 10911, 10909, 10912),
            self.leadership,
            Access(self.options, self.clock, lambda: tables).guard,
            Dialer(clock=self.clock),
        )
        self.group_offsets = GroupOffsets(self.base, self.topics, self.groups, self.offsets)
        self.resets = Resets(
            self.base, self.topics, self.groups, self.members, self.offsets, self.waits, None
        )
        self.reads = GroupReads(self.base, self.topics, self.groups, self.offsets, self.filters, self.waits)
        self.pulls = Pulls(self.base, self.reads)
        self.store.dispatcher.listeners.append(self.waits.arrived)
        self.address = ""

    def handlers(self) -> RemotingHandlers:
        handlers = RemotingHandlers()
        lane = Lane("test")
        rows = rows_of(self.heartbeats, self.lock_requests, self.group_offsets, self.resets, self.pulls)
        handlers.serve([row._replace(lane="test") for row in rows], {"test": lane})
        return handlers

    def topic(self, name: str, queues: int = 1, **settings: Any) -> None:
        self.topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **settings)
        )

    async def put(self, topic: str, count: int = 1, queue_id: int = 0) -> None:
        for number in range(count):
            await self.store.put(topic, queue_id, b"message %d" % number)


@asynccontextmanager
async def running(path: Path, **changes: Any) -> AsyncIterator[Part]:
    part = Part(path, **changes)
    async with part.store:
        await part.leadership.start()
        # Connections live by real time: what expires here does so by the members' own clock.
        async with Server(part.handlers(), host="127.0.0.1", events=part.members) as server:
            part.address = server.address
            yield part
            await part.group_offsets.close()
            await part.pulls.close()
            part.waits.close()
            part.filters.close()
        part.members.close()


class TestClient:
    """One client with one connection, and what the broker told it unasked."""

    __test__ = False

    def __init__(self, part: Part, client_id: str) -> None:
        self.part = part
        self.client_id = client_id
        self.notices: list[str] = []  # groups that changed
        self.told: list[Command] = []  # everything else
        self.status_answer = Answer(code=1)
        handlers = RemotingHandlers()
        lane = Lane("client")
        handlers.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notice, ConsumerIdsChanged, lane)
        handlers.add(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._tell, offset_headers.ResetOffsetRequest, lane
        )
        handlers.add(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._ask, offset_headers.ConsumerStatusRequest, lane
        )
        self.dialer = Dialer(handlers)

    def _notice(self, request: Request[ConsumerIdsChanged]) -> None:
        assert request.is_one_way
        self.notices.append(request.header.consumer_group)

    def _tell(self, request: Request[Any]) -> None:
        assert request.is_one_way
        self.told.append(request.ticket)

    def _ask(self, request: Request[Any]) -> Answer:
        self.told.append(request.ticket)
        return self.status_answer

    async def call(self, code: int, header: Header | None = None, body: bytes = b"", **more: Any) -> Command:
        return await self.dialer.call(self.part.address, code, header, body, **more)

    async def heartbeat(
        self,
        *groups: ConsumerData,
        producers: tuple[str, ...] = (),
        fingerprint: int = 0,
        without_sub: bool = False,
    ) -> Command:
        body = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=groups,
            producer_data_set=tuple(ProducerData(group_name=group) for group in producers),
            heartbeat_fingerprint=fingerprint,
            without_sub=without_sub,
        )
        return await self.call(RequestCode.HEART_BEAT, body=body.encode())

    async def consumer_ids(self, group: str) -> Command:
        return await self.call(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerListRequest(consumer_group=group)
        )

    async def close(self) -> None:
        await self.dialer.close()


@asynccontextmanager
async def clients(part: Part, *client_ids: str) -> AsyncIterator[list[TestClient]]:
    made = [TestClient(part, client_id) for client_id in client_ids]
    try:
        yield made
    finally:
        for client in made:
            await client.close()


def wants(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    return subscription(topic, expression, version)


def consumer(
    group: str, *wanted: SubscriptionData, model: MessageModel = MessageModel.CLUSTERING, unit: bool = False
) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscription_data_set=wanted or (wants("t"),),
        unit_mode=unit,
    )


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in time")
