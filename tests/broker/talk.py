"""What producers and consumers say to a broker, for tests over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from kerolox.protocol.bodies.routes import TopicRoute
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.flags import PULL_SUBSCRIPTION
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.headers.send import SendRequest, SendRequestV2
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.protocol.subscription import subscription
from kerolox.testing.broker import RunningBroker

BORN_MS = 1_700_000_000_000


def send_fields(topic: str, properties: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "producer_group": "producers",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": BORN_MS,
        "flag": 0,
        "properties": None if properties is None else pack(properties).decode(),
        **fields,
    }


class Talk:
    """One client of one broker."""

    def __init__(self, dialer: Dialer, running: RunningBroker) -> None:
        self.dialer = dialer
        self.running = running
        self.address = running.address

    async def send(
        self, topic: str, body: bytes = b"hello", properties: dict[str, str] | None = None, **fields: Any
    ) -> Command:
        header = SendRequestV2(**send_fields(topic, properties, **fields))
        return await self.dialer.call(self.address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=10)

    async def send_v1(
        self, topic: str, body: bytes = b"hello", properties: dict[str, str] | None = None, **fields: Any
    ) -> Command:
        header = SendRequest(**send_fields(topic, properties, **fields))
        return await self.dialer.call(self.address, RequestCode.SEND_MESSAGE, header, body)

    async def send_batch(self, topic: str, body: bytes, **fields: Any) -> Command:
        header = SendRequestV2(**send_fields(topic, **{"batch": True, **fields}))
        return await self.dialer.call(self.address, RequestCode.SEND_BATCH_MESSAGE, header, body)

    async def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **fields: Any) -> Command:
        code = fields.pop("code", RequestCode.PULL_MESSAGE)
        timeout_s = fields.pop("timeout_s", 10.0)
        address = fields.pop("address", self.address)
        header = PullRequest(
            **{
                "consumer_group": "consumers",
                "topic": topic,
                "queue_id": queue_id,
                "queue_offset": offset,
                "max_msg_nums": 32,
                "sys_flag": PULL_SUBSCRIPTION,
                "commit_offset": 0,
                "suspend_timeout_millis": 15_000,
                "sub_version": 0,
                "subscription": "*",
                "expression_type": "TAG",
                **fields,
            }
        )
        return await self.dialer.call(address, code, header, timeout_s=timeout_s)

    async def messages(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        """All messages of a queue."""
        found: list[StoredMessage] = []
        while True:
            answer = await self.pull(topic, queue_id, offset)
            if answer.code != 0:
                return found
            found += decode_records(answer.body)
            offset = int(answer.fields["nextBeginOffset"])

    async def heartbeat(
        self, group: str, *subscriptions: SubscriptionData, model: MessageModel = MessageModel.CLUSTERING
    ) -> Command:
        data = HeartbeatData(
            client_id="client-1",
            consumer_data_set=(
                ConsumerData(
                    group_name=group,
                    consume_type=ConsumeType.CONSUME_PASSIVELY,
                    message_model=model,
                    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                    subscription_data_set=subscriptions,
                ),
            ),
        )
        return await self.dialer.call(self.address, RequestCode.HEART_BEAT, None, data.encode())

    async def route(self, topic: str) -> TopicRoute | None:
        """What the name server says of a topic."""
        answer = await self.dialer.call(
            self.running.nameserver_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic)
        )
        return TopicRoute.decode(answer.body) if answer.code == 0 else None


def subscribed(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    return subscription(topic, expression, version)


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in time")
